// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package patchbay_test

import (
	"cmp"
	"go/ast"
	"maps"
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
	_, table, _ := strings.Cut(string(text), "## Glossary")
	table, _, _ = strings.Cut(table, "\n## ")
	if rows := strings.Count(table, "\n| ") - 2; len(terms) != rows || rows < 10 {
		t.Fatalf("ARCHITECTURE.md: read %d of %d rows of the glossary, want all, and 10 or more", len(terms), rows)
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

// vague are words that once had three to six meanings each in this code. A reader who finds one as the name of a
// function cannot say what it does, and grep finds all meanings of it. The kernel or the field has a better word: lock,
// acquire, allocate, remove, deleted, locked, reserved, exists, installed, cached, read, find.
var vague = []string{
	"held", "take", "takes", "taken", "took", "left", "stand", "stands", "standing", "gone", "look", "looks", "looked", "known", "there",
}

// meanings lists the types, functions and methods that have such a word for a name, each with its one meaning: that of
// an API that others use, or the counterpart of "unknown".
var meanings = map[string]string{
	"netns.Gone":                   "the namespace no longer exists",
	"ipam.Tx.Held":                 "addresses that are reserved for an owner",
	"conformance.World.Left":       "objects that exist now and did not at the start",
	"internal/policy/mirror.Known": "the policies are known on this node",
}

// A vague word names nothing, or what the list says.
func TestVagueWordsAreListed(t *testing.T) {
	_, files := parsed(t)
	unused := maps.Clone(meanings)
	for path, file := range files {
		if !product(path) {
			continue
		}
		for _, name := range declared(file) {
			base := name[strings.LastIndex(name, ".")+1:]
			if !slices.Contains(vague, strings.ToLower(base)) {
				continue
			}
			name = filepath.ToSlash(filepath.Dir(path)) + "." + name
			if delete(unused, name); meanings[name] == "" {
				t.Errorf("%s: %s has a vague word for a name: take the kernel's or the field's word, or list its meaning in repo_glossary_test.go", path, name)
			}
		}
	}
	for name := range unused {
		t.Errorf("repo_glossary_test.go lists %s, which no product declares", name)
	}
}

// declared returns the names of a file's types, functions and methods. A method's has its type: "Dir.Read".
func declared(file *ast.File) (names []string) {
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.TypeSpec:
			names = append(names, n.Name.Name)
		case *ast.FuncDecl:
			names = append(names, receiver(n)+n.Name.Name)
		}
		return true
	})
	return names
}

// receiver returns the type of a method's receiver and a dot, or "".
func receiver(f *ast.FuncDecl) (name string) {
	if f.Recv == nil {
		return ""
	}
	ast.Inspect(f.Recv.List[0].Type, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok && name == "" {
			name = id.Name + "."
		}
		return name == ""
	})
	return name
}
