// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package patchbay_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// homes lists what only one package does itself, so that one rule stands in one place.
var homes = []struct {
	what     string
	home     string            // the package's directory
	names    []string          // functions and constants: of os, unix and syscall, or of the package before the dot
	literals []string          // texts
	shapes   []string          // regular expressions of conditions and of functions' types, as types.ExprString writes them
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
			"daemons/cli/keeperlog.go":        "keeps the file that is full; the next one is written line by line",
			"cli/installer.go":                "moves a link to a program, not a file with data",
			"daemons/cnm/serve.go":            "moves a socket",
			"internal/handover/serve.go":      "moves a socket",
			"ipam/indexfile.go":               "a cache whose writer goes on changing it in place through the descriptor",
			"internal/policy/mirror/write.go": "moves a directory",
		},
	},
	{
		what:     "know libcni's cache of results: use internal/results",
		home:     "internal/results",
		literals: []string{"results", ".result-", "cniCacheV1"},
	},
	{
		what:     "compute the last address of a prefix, or know which addresses are link-local in IPv6: use internal/prefix",
		home:     "internal/prefix",
		literals: []string{"fe80::", "fe80::/10"},
		shapes: []string{
			`^func\(\w+ netip\.Prefix\) (netip\.Addr|\[\]byte)$`,
			`\.Is6\(\) && [^&|]+\.IsLinkLocalUnicast\(\)$`, `\.IsLinkLocalUnicast\(\) && [^&|]+\.Is6\(\)$`, `\.IsLinkLocalUnicast\(\) \|\| [^&|]+\.Is4\(\)$`,
		},
		also: map[string]string{
			"daemons/hosts/conf.go":            "a bridge has the first address of its block",
			"ipam/range.go":                    "no container has the broadcast address",
			"internal/policy/enforce/local.go": "beside other addresses that no rule of a local set judges",
		},
	},
	{
		what:  "ask only a path whether a namespace exists: whatever removes asks life.Judge, which also looks at all processes",
		home:  "internal/life",
		names: []string{"life.At"},
		also: map[string]string{
			"cli/doctor/attached.go":           "removes nothing",
			"daemons/cnm/remote/attachment.go": "an ADD: the runtime says that the container is new",
			"plugin/hostlocal/gc.go":           "an ADD: the runtime says that the container is new",
			"internal/kernel/kernel.go":        "an ADD: the runtime says that the container is new",
		},
	},
	{
		what:     "read CNI_NETNS_OVERRIDE: use spec.NetNSOverride",
		home:     "spec",
		literals: []string{"CNI_NETNS_OVERRIDE"},
		also:     map[string]string{"invoke/exec.go": "removes it from an environment, among others"},
	},
}

func TestHomes(t *testing.T) {
	files := slices.DeleteFunc(goFiles(t), func(path string) bool { return !product(path) })
	for _, h := range homes {
		for path, why := range h.also {
			if !slices.Contains(files, path) || len(uses(t, path, h.names, h.literals, h.shapes)) == 0 {
				t.Errorf("%s needs no exception any more: %s", path, why)
			}
		}
		for _, path := range files {
			if filepath.Dir(path) == h.home || h.also[path] != "" {
				continue
			}
			for _, use := range uses(t, path, h.names, h.literals, h.shapes) {
				t.Errorf("%s: only %s may %s", use, h.home, h.what)
			}
		}
	}
}

// uses returns the places where a file uses one of the names, one of the texts, or code of one of the shapes.
func uses(t *testing.T, path string, names, literals, shapes []string) (list []string) {
	t.Helper()
	shape := regexp.MustCompile(strings.Join(shapes, "|"))
	shaped := func(e ast.Expr) bool { return len(shapes) > 0 && shape.MatchString(types.ExprString(e)) }
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.StructType:
			return false // tags
		case *ast.FuncDecl:
			if shaped(n.Type) {
				list = append(list, set.Position(n.Pos()).String()+": "+n.Name.Name)
			}
		case *ast.BinaryExpr:
			if shaped(n) {
				list = append(list, set.Position(n.Pos()).String()+": "+types.ExprString(n))
			}
		case *ast.SelectorExpr:
			name := types.ExprString(n)
			of, short, _ := strings.Cut(name, ".")
			if slices.Contains(names, name) || slices.Contains([]string{"os", "unix", "syscall"}, of) && slices.Contains(names, short) {
				list = append(list, set.Position(n.Pos()).String()+": "+name)
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

// TestDumpsAreRepeated: a dump that the kernel interrupted lacks entries. So outside of internal/nl, a dump of the netlink
// library is the argument of nl.Retry. (The methods of nl.Conn repeat theirs.)
func TestDumpsAreRepeated(t *testing.T) {
	dump := regexp.MustCompile(`^netlink\.\w+List(Filtered)?$`)
	set, files := parsed(t)
	for path, file := range files {
		if filepath.Dir(path) == "internal/nl" {
			continue
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				return types.ExprString(n.Fun) != "nl.Retry"
			case *ast.SelectorExpr:
				if called := types.ExprString(n); dump.MatchString(called) {
					t.Errorf("%s: %s without nl.Retry", set.Position(n.Pos()), called)
				}
			}
			return true
		})
	}
}
