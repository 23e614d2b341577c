// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package patchbay_test

import (
	"encoding/json"
	"errors"
	"go/importer"
	"go/token"
	"go/types"
	"io"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// api are the packages that a program of another project imports.
var api = []string{"spec", "invoke", "chain", "plugin", "plugin/plugintest", "ipam", "netns", "conformance"}

// Another project cannot name a type of a package below internal, unless the package that shows it has an alias for it
// (plugin.OwnerKey): it can neither declare a variable of it nor write a function that takes it. A type of another
// package of ours would be a promise that no page makes.
func TestAPINamesNoInternalType(t *testing.T) {
	imp := exportData(t)
	for _, name := range api {
		p, err := imp.Import(module + "/" + name)
		if err != nil {
			t.Fatal(err)
		}
		w := apiWalk{p: p, seen: make(map[types.Type]bool), report: t.Errorf}
		for _, n := range p.Scope().Names() {
			if o := p.Scope().Lookup(n); o.Exported() {
				w.walk(name+"."+n, o.Type())
			}
		}
	}
}

// apiName is a name of two packages of the library in a page: a package's object, and a field or method of it.
var apiName = regexp.MustCompile("`(chain|spec)\\.([A-Z][A-Za-z]+)(?:\\.([A-Z][A-Za-z]+))?`")

// docs/libcni.md says to users of other libraries what takes the place of what.
func TestNamesOfTheAPIExist(t *testing.T) {
	text, err := os.ReadFile("docs/libcni.md")
	if err != nil {
		t.Fatal(err)
	}
	imp := exportData(t)
	names := apiName.FindAllStringSubmatch(string(text), -1)
	if len(names) < 20 {
		t.Errorf("docs/libcni.md: read %d names, want 20 or more", len(names))
	}
	for _, m := range names {
		p, err := imp.Import(module + "/" + m[1])
		if err != nil {
			t.Fatal(err)
		}
		o := p.Scope().Lookup(m[2])
		if o != nil && m[3] != "" {
			o, _, _ = types.LookupFieldOrMethod(o.Type(), true, p, m[3])
		}
		if o == nil {
			t.Errorf("docs/libcni.md names %s, which is not there", m[0])
		}
	}
}

// exportData returns an importer that reads the compiler's export data of each package.
func exportData(t *testing.T) types.Importer {
	t.Helper()
	args := []string{"list", "-export", "-deps", "-json=ImportPath,Export"}
	for _, name := range api {
		args = append(args, "./"+name)
	}
	cmd := exec.Command("go", args...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	files := make(map[string]string)
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p struct{ ImportPath, Export string }
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		files[p.ImportPath] = p.Export
	}
	return importer.ForCompiler(token.NewFileSet(), "gc", func(path string) (io.ReadCloser, error) { return os.Open(files[path]) })
}

// apiWalk follows what a user of package p can reach.
type apiWalk struct {
	p      *types.Package
	seen   map[types.Type]bool
	report func(format string, args ...any)
}

func (w apiWalk) walk(at string, t types.Type) {
	if w.seen[t] {
		return
	}
	w.seen[t] = true
	switch t := t.(type) {
	case *types.Alias:
		w.walk(at, types.Unalias(t))
	case *types.Named:
		w.named(at, t)
	case *types.Struct:
		for f := range t.Fields() {
			if f.Exported() || f.Embedded() {
				w.walk(at+"."+f.Name(), f.Type())
			}
		}
	case *types.Interface:
		for m := range t.Methods() {
			w.walk(at+"."+m.Name(), m.Type())
		}
		for e := range t.EmbeddedTypes() {
			w.walk(at, e)
		}
	case *types.Signature:
		w.walk(at, t.Params())
		w.walk(at, t.Results())
		for p := range t.TypeParams().TypeParams() {
			w.walk(at, p.Constraint())
		}
	case *types.Tuple:
		for v := range t.Variables() {
			w.walk(at, v.Type())
		}
	case *types.Map:
		w.walk(at, t.Key())
		w.walk(at, t.Elem())
	case *types.Union:
		for term := range t.Terms() {
			w.walk(at, term.Type())
		}
	case interface{ Elem() types.Type }: // pointer, slice, array, channel
		w.walk(at, t.Elem())
	}
}

// named reports a type of ours outside the API, follows a type of package p, and ignores types of other packages.
func (w apiWalk) named(at string, t *types.Named) {
	for arg := range t.TypeArgs().Types() {
		w.walk(at, arg)
	}
	of := t.Obj().Pkg()
	if of == nil {
		return // error, comparable
	}
	name, ours := strings.CutPrefix(of.Path(), module+"/")
	switch {
	case ours && w.hasAlias(t):
		w.members(at, t)
	case ours && !slices.Contains(api, name):
		w.report("%s shows %s, which is not part of the API", at, t)
	case of == w.p:
		w.members(of.Name()+"."+t.Obj().Name(), t)
	}
}

func (w apiWalk) members(at string, t *types.Named) {
	w.walk(at, t.Underlying())
	for m := range t.Methods() {
		if m.Exported() {
			w.walk(at+"."+m.Name(), m.Signature())
		}
	}
}

// hasAlias reports whether package p has an exported alias of t.
func (w apiWalk) hasAlias(t *types.Named) bool {
	return slices.ContainsFunc(w.p.Scope().Names(), func(name string) bool {
		o, ok := w.p.Scope().Lookup(name).(*types.TypeName)
		return ok && o.Exported() && o.IsAlias() && types.Identical(types.Unalias(o.Type()), t)
	})
}
