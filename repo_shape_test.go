// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package patchbay_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/plugin/all"
)

const (
	// maxFileLines only catches files that grew by several ideas. A file is one idea: a lower limit cuts it by size, and
	// its reader opens two files to follow one function.
	maxFileLines     = 700
	maxFunctionLines = 60
)

func TestFileLength(t *testing.T) {
	for _, path := range goFiles(t) {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(text), "\n"); n > maxFileLines {
			t.Errorf("%s: %d lines, %d at most: split it by topic", path, n, maxFileLines)
		}
	}
}

func TestFunctionLength(t *testing.T) {
	eachFunction(t, func(set *token.FileSet, f *ast.FuncDecl) {
		at := set.Position(f.Pos())
		if strings.HasSuffix(at.Filename, "_test.go") {
			return // a table of cases is long and easy to read
		}
		if n := set.Position(f.End()).Line - at.Line + 1; n > maxFunctionLines {
			t.Errorf("%s: %s has %d lines, %d at most", at, f.Name.Name, n, maxFunctionLines)
		}
	})
}

// A skip must be proven: nettest.Need probes for the missing kernel feature, and
// scripts/test-kernel fails a test that every kernel skips.
func TestNoUnprovenSkips(t *testing.T) {
	eachFunction(t, func(set *token.FileSet, f *ast.FuncDecl) {
		at := set.Position(f.Pos())
		if filepath.Dir(at.Filename) == "internal/test/nettest" {
			return
		}
		ast.Inspect(f, func(n ast.Node) bool {
			sel, ok := n.(*ast.SelectorExpr)
			if ok && (sel.Sel.Name == "Skip" || sel.Sel.Name == "Skipf" || sel.Sel.Name == "SkipNow") {
				t.Errorf("%s: a skip by hand; say with nettest.Need what the kernel lacks, or fail", set.Position(n.Pos()))
			}
			return true
		})
	})
}

// Our programs do not run the machine's network tools, because the tools may be slow, missing, or
// too old to read the machine's tables.
func TestNoForksOfNetworkTools(t *testing.T) {
	tools := map[string]bool{"iptables": true, "ip6tables": true, "nft": true, "ip": true, "tc": true, "sysctl": true, "bridge": true}
	eachFunction(t, func(set *token.FileSet, f *ast.FuncDecl) {
		at := set.Position(f.Pos())
		if !product(at.Filename) {
			return
		}
		ast.Inspect(f, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			sel, ok := call.Fun.(*ast.SelectorExpr)
			if !ok || (sel.Sel.Name != "Command" && sel.Sel.Name != "CommandContext" && sel.Sel.Name != "LookPath") {
				return true
			}
			for _, arg := range call.Args {
				if lit, ok := arg.(*ast.BasicLit); ok && tools[strings.Trim(lit.Value, `"`)] {
					t.Errorf("%s: runs %s; say it over netlink", set.Position(n.Pos()), lit.Value)
				}
			}
			return true
		})
	})
}

// Only these files start programs, so no text of a configuration reaches a shell. A configuration
// names programs only by their plugin type, except in wrap's file.
func TestWhoStartsPrograms(t *testing.T) {
	may := map[string]string{
		"invoke/exec.go":          "a plugin of CNI_PATH, by its validated type, without a shell",
		"plugin/wrap/command.go":  "what wrap is for: programs the operator names in the configuration, by absolute paths, arguments as a list, without a shell",
		"plugin/tap/selinux.go":   "this program again, under the SELinux label of the configuration",
		"plugin/dhcp/start.go":    "patchbayd, where its package puts it",
		"cli/run.go":              "waits for the command the user typed",
		"cli/inside.go":           "the command the user typed",
		"cli/trace.go":            "patchbayd trace, with fixed arguments and no shell",
		"cli/again.go":            "waits for this program, run again",
		"internal/apart/apart.go": "this program again, in new namespaces",

		"conformance/command/beside.go": "the shell command the user typed, which the plugin under test needs beside it",
		"conformance/runtimes/run.go":   "the command the user typed, which reaches the runtime under test",

		"daemons/cli/install.go":     "systemctl of patchbayd docker install, with fixed arguments and no shell",
		"daemons/cli/nodeinstall.go": "patchbay install, the program beside this one",
		"cli/gc/programs.go":         "the operator's gc and doctor: crictl, podman, docker, iptables-legacy, patchbayd, with fixed arguments and no shell",
	}
	for _, path := range goFiles(t) {
		if !product(path) {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, imp := range file.Imports {
			if imp.Path.Value == `"os/exec"` && may[path] == "" {
				t.Errorf("%s imports os/exec: only %v may start programs", path, may)
			}
		}
	}
}

// product reports whether a file is linked into a program of ours.
func product(path string) bool {
	if strings.HasSuffix(path, "_test.go") {
		return false
	}
	for _, dir := range append([]string{"examples/", "plugin/plugintest/"}, forTests...) {
		if strings.HasPrefix(path, dir) {
			return false
		}
	}
	return true
}

func TestEveryPluginIsListed(t *testing.T) {
	list, err := os.ReadFile("plugin/all/all.go")
	if err != nil {
		t.Fatal(err)
	}
	dirs, err := os.ReadDir("plugin")
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range dirs {
		name := d.Name()
		if !d.IsDir() || slices.Contains([]string{"all", "plugintest", "testdata"}, name) {
			continue
		}
		if !strings.Contains(string(list), "&"+name+".Plugin,") {
			t.Errorf("plugin/%s is in no program: add the line\n\t&%s.Plugin,\nand the import to plugin/all/all.go", name, name)
		}
	}
	for _, p := range all.Plugins() {
		if _, err := os.Stat(filepath.Join("docs", "plugins", p.Name+".md")); err != nil {
			t.Errorf("plugin %s has no page (HACKING.md, Adding a plugin, step 5): %v", p.Name, err)
		}
	}
}

// pathInText is a path of this repository between backquotes. It has a slash, but not at the
// beginning, and no placeholder.
var pathInText = regexp.MustCompile("`([A-Za-z0-9_.-]+/[A-Za-z0-9_./*-]*)`")

func TestDocumentedPathsExist(t *testing.T) {
	for _, doc := range []string{"ARCHITECTURE.md", "HACKING.md"} {
		text, err := os.ReadFile(doc)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range pathInText.FindAllStringSubmatch(string(text), -1) {
			if strings.Contains(m[1], "foo") {
				continue // the plugin of HACKING.md's example
			}
			if found, err := filepath.Glob(strings.TrimSuffix(m[1], "/")); err != nil || len(found) == 0 {
				t.Errorf("%s names %s, which is not there", doc, m[1])
			}
		}
	}
}

// TestMapNamesEveryPackage looks for each package directly below these directories in the map of ARCHITECTURE.md. A
// newcomer who searches the map for a subject then finds its package.
func TestMapNamesEveryPackage(t *testing.T) {
	text, err := os.ReadFile("ARCHITECTURE.md")
	if err != nil {
		t.Fatal(err)
	}
	missing := make(map[string]bool)
	for _, file := range goFiles(t) {
		dir := filepath.Dir(file)
		if !product(file) || !slices.Contains([]string{"internal", "daemons", "daemons/internal", "cli"}, filepath.Dir(dir)) {
			continue
		}
		if !strings.Contains(string(text), "`"+dir+"`") && !strings.Contains(string(text), "`"+dir+"/") {
			missing[dir] = true
		}
	}
	for _, dir := range slices.Sorted(maps.Keys(missing)) {
		t.Errorf("the map of ARCHITECTURE.md does not name `%s`: add a row, or add it to the row of its subject", dir)
	}
	rows := make(map[string]bool)
	for line := range strings.Lines(string(text)) {
		first, _, _ := strings.Cut(strings.TrimPrefix(line, "| "), ",")
		if first, _, _ = strings.Cut(first, " | "); !strings.HasPrefix(line, "| `") {
			continue
		}
		if rows[first] {
			t.Errorf("the map of ARCHITECTURE.md has two rows of %s", first)
		}
		rows[first] = true
	}
}

// eachFunction calls f for every function of the tree, tests included.
func eachFunction(t *testing.T, f func(*token.FileSet, *ast.FuncDecl)) {
	t.Helper()
	set, files := parsed(t)
	for _, file := range files {
		for _, decl := range file.Decls {
			if fn, ok := decl.(*ast.FuncDecl); ok && fn.Body != nil {
				f(set, fn)
			}
		}
	}
}

// tree is every Go file by its path, parsed once for all laws.
var tree = struct {
	set   *token.FileSet
	files map[string]*ast.File
}{set: token.NewFileSet()}

// parsed returns every Go file by its path, tests included.
func parsed(t *testing.T) (*token.FileSet, map[string]*ast.File) {
	t.Helper()
	if tree.files != nil {
		return tree.set, tree.files
	}
	files := make(map[string]*ast.File)
	for _, path := range goFiles(t) {
		file, err := parser.ParseFile(tree.set, path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files[path] = file
	}
	tree.files = files
	return tree.set, tree.files
}

// A number such as "ADR 39" names exactly one decision.
func TestDecisionsAreNumbered(t *testing.T) {
	files, err := filepath.Glob("docs/adr/*.md")
	if err != nil {
		t.Fatal(err)
	}
	by := make(map[string]string)
	for _, path := range files {
		number, _, _ := strings.Cut(filepath.Base(path), "-")
		if other := by[number]; other != "" {
			t.Errorf("%s: %s has the number too", path, other)
		}
		by[number] = path
	}
}
