// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package pages

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/fields"
	"github.com/patchbay-net/patchbay/plugin"
)

// Comments returns the comments on the fields of plugins' configurations, as fields.Of reads them.
func Comments(t *testing.T, plugins []*plugin.Plugin) string {
	t.Helper()
	types := map[string][]string{}
	seen := map[reflect.Type]bool{}
	for _, p := range plugins {
		if p.Conf != nil {
			typesOf(reflect.TypeOf(p.Conf()), types, seen)
		}
	}
	docs := map[string]string{}
	for dir, names := range types {
		commentsOf(t, dir, names, docs)
	}
	var b strings.Builder
	last := ""
	for _, name := range slices.Sorted(maps.Keys(docs)) {
		at := strings.LastIndexByte(name, '.')
		short := name
		if name[:at] == last {
			short = name[at:]
		}
		last = name[:at]
		b.WriteString(short + "\t" + docs[name] + "\n")
	}
	return b.String()
}

// typesOf collects the names of the types of this module that a value of type t contains, by their packages. A package
// may have other types with JSON keys, such as the content of a file.
func typesOf(t reflect.Type, out map[string][]string, seen map[reflect.Type]bool) {
	if seen[t] {
		return
	}
	seen[t] = true
	if dir, ok := strings.CutPrefix(t.PkgPath(), fields.Module); ok {
		out[dir] = append(out[dir], t.Name())
	}
	switch t.Kind() {
	case reflect.Pointer, reflect.Slice, reflect.Map, reflect.Array:
		typesOf(t.Elem(), out, seen)
	case reflect.Struct:
		for i := range t.NumField() {
			if f := t.Field(i); f.IsExported() || f.Anonymous { // as in fields.Of, no other field is a key
				typesOf(f.Type, out, seen)
			}
		}
	}
}

// commentsOf adds the comments of the struct fields of some types of a package.
func commentsOf(t *testing.T, dir string, types []string, docs map[string]string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root(t), dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		tree, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(tree, func(n ast.Node) bool {
			if spec, ok := n.(*ast.TypeSpec); ok && slices.Contains(types, spec.Name.Name) {
				structComments(dir+"."+spec.Name.Name, spec.Type, docs)
			}
			return true
		})
	}
}

func structComments(at string, expr ast.Expr, docs map[string]string) {
	switch e := expr.(type) {
	case *ast.StarExpr:
		structComments(at, e.X, docs)
	case *ast.ArrayType:
		structComments(at, e.Elt, docs)
	case *ast.MapType:
		structComments(at, e.Value, docs)
	case *ast.StructType:
		for _, f := range e.Fields.List {
			text := strings.Join(strings.Fields(f.Doc.Text()+" "+f.Comment.Text()), " ")
			for _, name := range f.Names {
				if text != "" && name.IsExported() && f.Tag != nil {
					docs[at+"."+name.Name] = columns(text, name.Name)
				}
				structComments(at+"."+name.Name, f.Type, docs)
			}
		}
	}
}

// columns splits a comment into what a field does, its default, and how the reference differs.
// The comment may have the parts "Default: ..." and "Reference: ..." at its end.
func columns(text, name string) string {
	text, reference, _ := strings.Cut(" "+text, " Reference: ")
	text, byDefault, _ := strings.Cut(text, " Default: ")
	return strings.Join([]string{plain(strings.TrimSpace(text), name), plain(byDefault, ""), plain(reference, "")}, "\t")
}

// plain turns a Go comment on a field into a phrase about a key.
func plain(text, name string) string {
	if rest, ok := strings.CutPrefix(text, name+" "); ok && name != "" {
		text = strings.TrimPrefix(strings.TrimPrefix(rest, "is "), "are ")
	}
	return strings.TrimSuffix(text, ".")
}
