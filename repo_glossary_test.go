// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package patchbay_test

import (
	"cmp"
	"go/ast"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// term is a row of the glossary: the word, its meaning, and the type that has its name.
var term = regexp.MustCompile("(?m)^\\| ([A-Za-z]+) \\| [^|]+ \\| (?:`([A-Za-z]+)` of `([a-z/]+)`|none) \\|$")

// A word of the glossary means one thing: at most one type has its name, in all products, and
// the glossary says which.
func TestGlossaryHasOneTypeEach(t *testing.T) {
	text, err := os.ReadFile("ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	types := productTypes(t)
	terms := term.FindAllStringSubmatch(string(text), -1)
	if len(terms) < 10 {
		t.Fatalf("ARCHITECTURE.md: read %d rows of the glossary, want 10 or more", len(terms))
	}
	for _, m := range terms {
		word, carrier := m[1], m[3]+"."+m[2]
		if carrier != "." && !slices.Contains(types, carrier) {
			t.Errorf("%s: the glossary names %s, which no product declares", word, carrier)
		}
		for _, name := range types {
			_, base, _ := strings.Cut(name, ".")
			if name != carrier && (strings.EqualFold(base, word) || strings.EqualFold(base, word+"s")) {
				t.Errorf("%s has the name of %s, whose type is %s in the glossary", name, word, cmp.Or(m[2], "none"))
			}
		}
	}
}

// productTypes lists the types that the products declare, as "internal/record.Record".
func productTypes(t *testing.T) (names []string) {
	t.Helper()
	_, files := parsed(t)
	for path, file := range files {
		if !product(path) {
			continue
		}
		ast.Inspect(file, func(n ast.Node) bool {
			if spec, ok := n.(*ast.TypeSpec); ok {
				names = append(names, filepath.ToSlash(filepath.Dir(path))+"."+spec.Name.Name)
			}
			return true
		})
	}
	return names
}
