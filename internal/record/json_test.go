// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"encoding/json"
	"net/netip"
	"reflect"
	"testing"

	"github.com/patchbay-net/patchbay/internal/lightjson"
)

// lightjson.Marshal writes what json.Marshal writes. The test compares both for empty values, for each
// field alone, and for all fields.
func TestEncodeIsJSON(t *testing.T) {
	for _, empty := range []any{Record{}, Fact{}} {
		kind := reflect.TypeOf(empty)
		full := reflect.New(kind)
		sameJSON(t, "empty", full.Interface())
		for i := range kind.NumField() {
			alone := reflect.New(kind)
			fill(t, alone.Elem().Field(i))
			fill(t, full.Elem().Field(i))
			sameJSON(t, kind.Field(i).Name, alone.Interface())
		}
		sameJSON(t, "full", full.Interface())
	}
	bad := &Record{Remote: json.RawMessage("{")}
	if _, err := lightjson.Marshal(bad); err == nil {
		t.Error("a broken message is encoded")
	}
}

func sameJSON(t *testing.T, what string, v any) {
	t.Helper()
	want, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := lightjson.Marshal(v); err != nil || string(got) != string(want) {
		t.Errorf("%T, %s: %s, %v\nwant %s", v, what, got, err, want)
	}
}

// fill sets everything in v. Lists get a second, empty member.
func fill(t *testing.T, v reflect.Value) {
	t.Helper()
	switch v.Interface().(type) {
	case netip.Addr:
		v.Set(reflect.ValueOf(netip.MustParseAddr("fd00::1%eth0")))
		return
	case netip.Prefix:
		v.Set(reflect.ValueOf(netip.MustParsePrefix("198.18.0.0/15")))
		return
	case json.RawMessage:
		v.SetBytes([]byte(`{ "a": "<b>" }`))
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString("a<b>&\"\\\n\xff\u2028é")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int64:
		v.SetInt(-7)
	case reflect.Uint8, reflect.Uint64:
		v.SetUint(0xab)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(t, v.Elem())
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		fill(t, v.Index(0))
	case reflect.Map:
		v.Set(reflect.ValueOf(map[string]string{"b": "<", "a": ""}))
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				fill(t, v.Field(i))
			}
		}
	default:
		t.Fatalf("no value for a %s", v.Kind())
	}
}
