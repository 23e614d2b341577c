// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/jessevdk/go-flags"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/plugin/all"
)

// What the kernel refuses root is explained by what root lacks, and never by what it has.
func TestRefusedHint(t *testing.T) {
	const net, sys = 1 << unix.CAP_NET_ADMIN, 1 << unix.CAP_SYS_ADMIN
	for capabilities, want := range map[uint64]string{
		0:                 "root lacks CAP_NET_ADMIN and CAP_SYS_ADMIN here",
		net:               "root lacks CAP_SYS_ADMIN here",
		sys:               "root lacks CAP_NET_ADMIN here",
		net | sys | 1<<39: "root has CAP_NET_ADMIN and CAP_SYS_ADMIN here: a security module refuses",
	} {
		if got := refusedHint(capabilities); !strings.HasPrefix(got, want) {
			t.Errorf("capabilities %x: %q, want %q", capabilities, got, want)
		}
	}
	want := rootHint
	if os.Geteuid() == 0 { // with all capabilities, in namespaces of its own
		want = refusedHint(net | sys)
	}
	if got := hintFor(unix.EPERM); got != want {
		t.Errorf("hint of EPERM: %q, want %q", got, want)
	}
}

// Each command and flag that a hint names exists.
func TestHintsNameCommands(t *testing.T) {
	p, err := (&app{getenv: func(string) string { return "" }, plugins: all.Plugins()}).parser()
	if err != nil {
		t.Fatal(err)
	}
	known := map[string]bool{}
	collectFlags(p.Command, known)
	hints := sourceHints(t)
	for _, h := range hints {
		for _, named := range regexp.MustCompile(`patchbay( [a-z]+)+`).FindAllString(h, -1) {
			words := strings.Fields(named)[1:]
			if c := p.Find(words[0]); c == nil || len(c.Commands()) > 0 && (len(words) < 2 || c.Find(words[1]) == nil) {
				t.Errorf("no command %q, which a hint names: %s", named, h)
			}
		}
		h, _, _ = strings.Cut(h, "kubectl ") // with flags of its own
		h = strings.ReplaceAll(h, "kube-proxy --cleanup", "")
		for _, flag := range regexp.MustCompile(`(?:^| )--[a-z-]+`).FindAllString(h, -1) {
			if flag = strings.TrimSpace(flag); !known[flag] {
				t.Errorf("no flag %s, which a hint names: %s", flag, h)
			}
		}
	}
	if len(hints) < 50 {
		t.Errorf("only %d hints found", len(hints))
	}
}

func collectFlags(c *flags.Command, known map[string]bool) {
	known["--help"] = true
	for _, o := range c.Options() {
		known["--"+o.LongName] = true
	}
	for _, g := range c.Groups() {
		for _, o := range g.Options() {
			known["--"+o.LongName] = true
		}
	}
	for _, sub := range c.Commands() {
		collectFlags(sub, known)
	}
}

// sourceHints returns the texts of the calls that make hints, and of rootHint.
func sourceHints(t *testing.T) (hints []string) {
	t.Helper()
	files, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	hints = append(hints, rootHint)
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.CallExpr:
				hints = append(hints, callHint(n)...)
			case *ast.KeyValueExpr:
				if key, ok := n.Key.(*ast.Ident); ok && key.Name == "hint" {
					hints = append(hints, literals(n.Value)...)
				}
			}
			return true
		})
	}
	return hints
}

// callHint returns the texts of a hint: hinted and hint have its format behind or as the first argument, usage has it first.
func callHint(c *ast.CallExpr) []string {
	switch fun := c.Fun.(type) {
	case *ast.Ident:
		if fun.Name == "hinted" && len(c.Args) > 1 {
			return literals(c.Args[1])
		}
		if fun.Name == "usage" && len(c.Args) > 0 {
			return literals(c.Args[0])
		}
	case *ast.SelectorExpr:
		if fun.Sel.Name == "hint" && len(c.Args) > 0 {
			return literals(c.Args[0])
		}
	}
	return nil
}

func literals(e ast.Expr) (texts []string) {
	ast.Inspect(e, func(n ast.Node) bool {
		if l, ok := n.(*ast.BasicLit); ok && l.Kind == token.STRING {
			if text, err := strconv.Unquote(l.Value); err == nil && text != "" {
				texts = append(texts, text)
			}
		}
		return true
	})
	return texts
}
