// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"encoding"
	"encoding/json"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/patchbay-net/patchbay/internal/jsonat"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// field is a key that our code reads from a configuration.
type field struct {
	key  string
	kind reflect.Type
}

// fieldsOf lists the keys of a struct, or of the struct that a pointer points to. It includes
// the keys of embedded structs.
func fieldsOf(t reflect.Type) (out []field) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return nil
	}
	for i := range t.NumField() {
		f := t.Field(i)
		key, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case key == "-" || !f.IsExported() && !f.Anonymous:
		case f.Anonymous && key == "":
			out = append(out, fieldsOf(f.Type)...)
		case key == "":
			out = append(out, field{f.Name, f.Type})
		default:
			out = append(out, field{key, f.Type})
		}
	}
	return out
}

// listKeys returns the keys of a network's file. Tools write the keys args and generatedBy.
func listKeys() (known []field) {
	for _, key := range []string{"name", "cniVersion", "cniVersions", "plugins", "disableCheck", "disableGC", "loadOnlyInlinedPlugins", "args", "generatedBy"} {
		known = append(known, field{key: key})
	}
	return known
}

// conf checks the configuration of one plugin. Keys that belong to the runtime or to other
// plugins are allowed. conf does not look at their values.
func (v *vetter) conf(n *jsonat.Node, t reflect.Type, path string) {
	known := fieldsOf(t)
	foreign := []string{"cniVersion", "name", "type", "ipam", "args", "runtimeConfig", "prevResult", "capabilities"}
	for _, key := range append(foreign, "dns") {
		if !slices.ContainsFunc(known, func(f field) bool { return strings.EqualFold(f.key, key) }) {
			known = append(known, field{key: key})
		}
	}
	v.keys(n, known, path, foreign)
}

// keys checks the keys of an object and their values. It ignores comments (keys that begin with "_"
// or "//") and the runtime's keys, which begin with "cni.dev/".
func (v *vetter) keys(n *jsonat.Node, known []field, path string, skip []string) {
	if n == nil {
		return
	}
	for _, m := range n.Members {
		i := slices.IndexFunc(known, func(f field) bool { return strings.EqualFold(f.key, m.Key) })
		switch {
		case i >= 0 && (known[i].kind == nil || slices.ContainsFunc(skip, func(s string) bool { return strings.EqualFold(s, m.Key) })):
		case i >= 0:
			v.value(m.Value, known[i].kind, strings.TrimPrefix(path+"."+known[i].key, "."))
		case strings.HasPrefix(m.Key, "cni.dev/"), strings.HasPrefix(m.Key, "_"), strings.HasPrefix(m.Key, "//"):
		default:
			names := make([]string, len(known))
			for i, f := range known {
				names[i] = f.key
			}
			if path == "" {
				v.warn(m.Offset, "unknown key %q%s", m.Key, didYouMean(m.Key, names))
				continue
			}
			v.warn(m.Offset, "%s: unknown key %q%s", path, m.Key, didYouMean(m.Key, names))
		}
	}
}

// value checks one value against the Go type into which it is decoded. If the type has its own
// UnmarshalJSON, value leaves the check to the plugin's own decoding.
func (v *vetter) value(n *jsonat.Node, t reflect.Type, path string) {
	for t.Kind() == reflect.Pointer && !readsItself(t) {
		t = t.Elem()
	}
	if n == nil || n.Token == nil || readsItself(t) || t.Kind() == reflect.Interface {
		return
	}
	switch t.Kind() {
	case reflect.Struct:
		if v.is(n, json.Delim('{'), t, path) {
			v.keys(n, fieldsOf(t), path, nil)
		}
	case reflect.Map:
		if v.is(n, json.Delim('{'), t, path) {
			for _, m := range n.Members {
				v.value(m.Value, t.Elem(), path+"."+m.Key)
			}
		}
	case reflect.Slice, reflect.Array:
		if v.is(n, json.Delim('['), t, path) {
			for i, item := range n.Items {
				v.value(item, t.Elem(), path+"["+strconv.Itoa(i)+"]")
			}
		}
	default:
		if !fits(n.Token, t) {
			v.mismatch(n, t, path)
		}
	}
}

func (v *vetter) is(n *jsonat.Node, want json.Delim, t reflect.Type, path string) bool {
	if n.Token != want {
		v.mismatch(n, t, path)
	}
	return n.Token == want
}

func (v *vetter) mismatch(n *jsonat.Node, t reflect.Type, path string) {
	v.problem(n, spec.Errorf(spec.CodeDecoding, "%s: want %s, got %s", path, plugin.KindWord(t), n))
}

// fits reports whether encoding/json decodes a scalar into a type.
func fits(token json.Token, t reflect.Type) bool {
	switch token := token.(type) {
	case string:
		return t.Kind() == reflect.String
	case bool:
		return t.Kind() == reflect.Bool
	case json.Number:
		return json.Unmarshal([]byte(token), reflect.New(t).Interface()) == nil
	}
	return false
}

func readsItself(t reflect.Type) bool {
	p := reflect.PointerTo(t)
	return p.Implements(reflect.TypeFor[json.Unmarshaler]()) || p.Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
}
