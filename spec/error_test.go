// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package spec

import (
	"errors"
	"fmt"
	"testing"
)

// errors.Is finds a code however deep it is, also in the error object that another program printed.
func TestIsCode(t *testing.T) {
	printed, ok := ParseError([]byte(`{"code":11,"msg":"later"}`))
	if !ok {
		t.Fatal("not read")
	}
	full := errors.New("disk full")
	for about, err := range map[string]error{
		"printed": printed, "wrapped": fmt.Errorf("add: %w", printed), "joined": errors.Join(full, printed),
		"made": Errorf(CodeTryAgain, "wait: %w", full), "object": AsError(fmt.Errorf("add: %w", printed)),
	} {
		if !errors.Is(err, CodeTryAgain) || errors.Is(err, CodeIO) {
			t.Errorf("%s: %v has another code", about, err)
		}
	}
	if errors.Is(full, CodeInternal) || errors.Is(full, CodeUnknown) {
		t.Error("an error without a code has one")
	}
	if got := fmt.Sprintf("%d %v", CodeTryAgain, CodeTryAgain); got != "11 CNI error code 11" {
		t.Errorf("printed as %q", got)
	}
}
