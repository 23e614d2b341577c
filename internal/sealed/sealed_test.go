// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package sealed

import (
	"bytes"
	"errors"
	"testing"
)

// Any change of a byte, and any lost end, is noticed.
func TestDamage(t *testing.T) {
	good := Seal("x", 1, []byte("one\ntwo\n"))
	if body, err := Open("x", 1, good); err != nil || string(body) != "one\ntwo\n" {
		t.Fatalf("%q, %v", body, err)
	}
	for i := range good {
		bad := bytes.Clone(good)
		bad[i] ^= 1
		if body, err := Open("x", 1, bad); err == nil {
			t.Errorf("byte %d changed: read as %q", i, body)
		}
		if body, err := Open("x", 1, good[:i]); err == nil {
			t.Errorf("cut at %d: read as %q", i, body)
		}
	}
}

func TestOthers(t *testing.T) {
	if _, err := Open("y", 1, Seal("x", 1, nil)); !errors.Is(err, ErrDamaged) {
		t.Errorf("another kind: %v", err)
	}
	if _, err := Open("x", 1, Seal("x", 2, nil)); !errors.Is(err, ErrSchema) {
		t.Errorf("another schema: %v", err)
	}
}
