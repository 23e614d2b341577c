// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package patchbay_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const (
	painsPage    = "docs/pains.md"
	painsScripts = "cli/testdata/pains/"
	pains        = 40
)

// TestPains checks docs/pains.md: it has forty rows, each with an existing script or test,
// or a reason why the pain is not ours; and it names every script.
func TestPains(t *testing.T) {
	text, err := os.ReadFile(painsPage)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(line, " | ")
		if !strings.HasPrefix(line, fmt.Sprintf("| %d | ", n+1)) || len(cells) != 4 {
			continue
		}
		n++
		refs := evidence(cells[3])
		if len(refs) == 0 && !strings.Contains(cells[2], "Not ours") {
			t.Errorf("%s: row %d names no script or test under test, and no reason why it is not ours", painsPage, n)
		}
		for _, ref := range refs {
			if err := exists(ref); err != nil {
				t.Errorf("%s: row %d: %v", painsPage, n, err)
			}
		}
	}
	if n != pains {
		t.Errorf("%s: %d rows in order, want %d: row %d is missing or has not four cells", painsPage, n, pains, n+1)
	}
	scripts, err := filepath.Glob(painsScripts + "*.txtar")
	if err != nil || len(scripts) == 0 {
		t.Fatalf("no scripts in %s: %v", painsScripts, err)
	}
	for _, path := range scripts {
		if !strings.Contains(string(text), "`"+path+"`") {
			t.Errorf("%s does not name %s", painsPage, path)
		}
	}
}

// evidence returns what a cell has between backticks.
func evidence(cell string) (refs []string) {
	for i, part := range strings.Split(cell, "`") {
		if i%2 == 1 {
			refs = append(refs, part)
		}
	}
	return refs
}

// exists checks "path.txtar", which must begin with the pains it is about, or
// "path_test.go TestName".
func exists(ref string) error {
	path, name, isTest := strings.Cut(ref, " ")
	text, err := os.ReadFile(path)
	switch {
	case err != nil:
		return err
	case isTest && !strings.Contains(string(text), "\nfunc "+name+"("):
		return fmt.Errorf("%s has no %s", path, name)
	case !isTest && !strings.HasSuffix(path, ".txtar"):
		return fmt.Errorf("%s is no script", path)
	case strings.HasPrefix(path, painsScripts) && !strings.HasPrefix(string(text), "# Pain"):
		return fmt.Errorf("%s does not begin with the pain it is about", path)
	}
	return nil
}
