// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package doctor_test

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/txtar"
)

// wrong are the lists in scripts that must be refused.
var wrong = []string{"typo", "types", "range", "inner", "order", "other", "full", "wrapped", "syntax", "noname", "broken", "taken", "early", "empty"}

// TestScripts judges the networks that the scripts attach, except those with a plugin of the test
// itself. None may be refused.
func TestScripts(t *testing.T) {
	scripts, err := filepath.Glob("../testdata/*.txtar")
	if err != nil {
		t.Fatal(err)
	}
	more, _ := filepath.Glob("../testdata/pains/*.txtar") // the pattern is sound
	n := 0
	for _, script := range append(scripts, more...) {
		a, err := txtar.ParseFile(script)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range a.Files {
			name, isList := strings.CutSuffix(filepath.Base(f.Name), ".conflist")
			if !isList || slices.Contains(wrong, name) || strings.Contains(string(f.Data), `"fake"`) {
				continue
			}
			n++
			for _, r := range first(judge(t, string(f.Data))) {
				if !strings.Contains(r, "failed to find plugin") {
					t.Errorf("%s: %s: %s", script, f.Name, r)
				}
			}
		}
	}
	if n < 40 {
		t.Errorf("only %d networks in the scripts: they were not found", n)
	}
}

func first(refused, _ []string) []string { return refused }
