// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package patchbay_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// homes lists what only one package does itself, so that one rule stands in one place.
var homes = []struct {
	what     string
	home     string            // the package's directory
	names    []string          // functions and constants of the packages os, unix and syscall
	literals []string          // texts
	also     map[string]string // other files, with the reason
}{
	{
		what:  "lock a file: use internal/flock, or internal/durable for an error with a CNI code",
		home:  "internal/flock",
		names: []string{"Flock", "LOCK_EX", "LOCK_SH", "LOCK_NB"},
	},
	{
		what:  "write a file whole: use internal/durable",
		home:  "internal/durable",
		names: []string{"Rename", "Renameat", "Renameat2", "O_TMPFILE", "CreateTemp"},
		also: map[string]string{
			"cli/daemon/keeperlog.go":    "keeps the file that is full; the next one is written line by line",
			"cli/installer.go":           "moves a link to a program, not a file with data",
			"cnm/serve.go":               "moves a socket",
			"hosts/store/etcd/serve.go":  "moves a directory",
			"internal/handover/serve.go": "moves a socket",
			"ipam/indexfile.go":          "a cache whose writer goes on changing it in place through the descriptor",
			"policy/mirror/write.go":     "moves a directory",
		},
	},
	{
		what:     "know libcni's cache of results: use internal/results",
		home:     "internal/results",
		literals: []string{"results", ".result-", "cniCacheV1"},
	},
}

func TestHomes(t *testing.T) {
	files := slices.DeleteFunc(goFiles(t), func(path string) bool { return !product(path) })
	for _, h := range homes {
		for path, why := range h.also {
			if !slices.Contains(files, path) || len(uses(t, path, h.names, h.literals)) == 0 {
				t.Errorf("%s needs no exception any more: %s", path, why)
			}
		}
		for _, path := range files {
			if filepath.Dir(path) == h.home || h.also[path] != "" {
				continue
			}
			for _, use := range uses(t, path, h.names, h.literals) {
				t.Errorf("%s: only %s may %s", use, h.home, h.what)
			}
		}
	}
}

// uses returns the places where a file uses one of the names, or one of the texts.
func uses(t *testing.T, path string, names, literals []string) (list []string) {
	t.Helper()
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.StructType:
			return false // tags
		case *ast.SelectorExpr:
			pkg, ok := n.X.(*ast.Ident)
			if ok && slices.Contains([]string{"os", "unix", "syscall"}, pkg.Name) && slices.Contains(names, n.Sel.Name) {
				list = append(list, set.Position(n.Pos()).String()+": "+pkg.Name+"."+n.Sel.Name)
			}
		case *ast.BasicLit:
			if text, err := strconv.Unquote(n.Value); err == nil && slices.ContainsFunc(literals, func(l string) bool { return strings.TrimSuffix(text, "*") == l }) {
				list = append(list, set.Position(n.Pos()).String()+": "+n.Value)
			}
		}
		return true
	})
	return list
}
