// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package lightjson

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"reflect"
	"strings"
	"testing"
	"time"
)

// all has a field of each kind, and of each shape that has a rule of its own.
type all struct {
	Text   string            `json:"text"`
	Empty  string            `json:"empty,omitempty"`
	Bool   bool              `json:"bool,omitempty"`
	Int    int               `json:"int,omitempty"`
	Small  int8              `json:"small"`
	Number uint16            `json:"number,omitzero"`
	Float  float64           `json:"float,omitempty"`
	Any    any               `json:"any,omitempty"`
	Raw    json.RawMessage   `json:"raw,omitempty"`
	Addr   netip.Addr        `json:"addr,omitzero"`
	Prefix *netip.Prefix     `json:"prefix,omitempty"`
	IP     net.IP            `json:"ip,omitempty"`
	Net    net.IPNet         `json:"net"`
	Bytes  []byte            `json:"bytes,omitempty"`
	List   []*all            `json:"list,omitempty"`
	Texts  []string          `json:"texts"`
	Array  [2]int            `json:"array"`
	Map    map[string]string `json:"map,omitempty"`
	Maps   map[string]*all   `json:"maps,omitempty"`
	Keys   map[int]string    `json:"keys,omitempty"`
	Time   time.Time         `json:"time,omitzero"`
	Struct struct {
		A, B string
	} `json:"struct,omitzero"`
	Self     *all           `json:"self,omitempty"`
	Quoted   int            `json:"quoted,string"`
	Upper    upper          `json:"upper"`
	Uppers   []upper        `json:"uppers,omitempty"`
	Enum     enum           `json:"enum,omitempty"`
	Empties  map[string]any `json:"empties,omitempty"`
	Hidden   string         `json:"-"`
	NoTag    int
	Embedded outer `json:"embedded"`
}

// upper has methods with pointers as receivers.
type upper struct{ text string }

func (u *upper) MarshalText() ([]byte, error) { return []byte(strings.ToUpper(u.text)), nil }
func (u *upper) UnmarshalText(b []byte) error {
	if u.text = string(b); u.text == "wrong" {
		return fmt.Errorf("%s is wrong", b)
	}
	return nil
}

// enum has methods with values as receivers.
type enum int

func (e enum) MarshalJSON() ([]byte, error) {
	return fmt.Appendf(nil, ` { "e" : "<%d>" } `, int(e)), nil
}
func (e *enum) UnmarshalJSON(b []byte) error {
	*e = enum(len(b))
	return nil
}

type (
	outer struct {
		Inner
		Other
		Name string `json:"name"`
	}
	Inner struct {
		Name   string `json:"name"`
		Of     string `json:"of"`
		Twice  int    `json:"twice"`
		Deeper `json:"deeper"`
	}
	Other struct {
		Twice int
		Alone string
		Deepest
	}
	Deeper  struct{ Way int }
	Deepest struct{ Of, Low string }
)

// plain has only fields that Marshal writes without encoding/json.
type plain struct {
	Name  string            `json:"name"`
	List  []netip.Prefix    `json:"list,omitempty"`
	Inner *plain            `json:"inner,omitempty"`
	Map   map[string]uint16 `json:"map,omitempty"`
	Raw   json.RawMessage   `json:"raw,omitempty"`
	Zero  netip.Addr        `json:"zero,omitzero"`
	When  time.Time         `json:"when,omitzero"`
	Up    upper             `json:"up"`
	Any   any               `json:"any,omitempty"`
}

func FuzzUnmarshal(f *testing.F) {
	for _, text := range documents() {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		sameDecoded[all](t, text)
		sameDecoded[outer](t, text)
		sameDecoded[plain](t, text)
		sameDecoded[map[string]plain](t, text)
	})
}

// sameDecoded compares Unmarshal and Marshal with encoding/json: from nothing, and from a value that
// the document before has filled.
func sameDecoded[T any](t *testing.T, text string) {
	t.Helper()
	var got, want T
	for range 2 {
		err, wantErr := Unmarshal([]byte(text), &got), json.Unmarshal([]byte(text), &want)
		if fmt.Sprint(err) != fmt.Sprint(wantErr) || !reflect.DeepEqual(got, want) {
			t.Fatalf("%T from %s:\ngot  %+v, %v\nwant %+v, %v", got, text, got, err, want, wantErr)
		}
		sameEncoded(t, &got)
		sameEncoded(t, got)
		text = strings.ToUpper(text[:len(text)/2]) + text[len(text)/2:]
	}
}

func sameEncoded(t *testing.T, v any) {
	t.Helper()
	data, err := Marshal(v)
	want, wantErr := json.Marshal(v)
	if string(data) != string(want) || fmt.Sprint(err) != fmt.Sprint(wantErr) {
		t.Fatalf("Marshal of %+v:\ngot  %s, %v\nwant %s, %v", v, data, err, want, wantErr)
	}
	data, err = MarshalIndent(v, "", "    ")
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "    ")
	if wantErr = enc.Encode(v); string(data) != strings.TrimSuffix(out.String(), "\n") || fmt.Sprint(err) != fmt.Sprint(wantErr) {
		t.Fatalf("MarshalIndent of %+v:\ngot  %s, %v\nwant %s, %v", v, data, err, &out, wantErr)
	}
}

func documents() []string {
	return []string{
		``, ` `, `null`, `true`, `{`, `{}`, ` { } `, `[]`, `{} x`, `{"text":"a",}`, "{\"text\":\"\x01\"}", `{"text":"a\u00e9\"","Text":"b"}`,
		`{"text":"é","TEXT":"b","ſmall":3,"unknown":{"a":[1,{"b":"}\"]"}]}}`, `{"small":128}`, `{"small":-128}`, `{"small":1.0}`, `{"small":"1"}`,
		`{"number":-1,"text":"after"}`, `{"number":65535,"int":-0}`, `{"int":1e2}`, `{"bool":null,"text":null,"list":null,"raw":null,"addr":null,"enum":null}`,
		`{"addr":"10.1.0.5","prefix":"fd00::/64","ip":"10.1.0.1","time":"2026-11-23T00:00:00Z"}`, `{"addr":"10.1.0.300"}`, `{"addr":5}`, `{"upper":"wrong"}`,
		`{"upper":"a","uppers":["b","c"],"enum":[1, 2]}`, `{"any":{"b":[1,"x",null,true],"a":1.5},"float":1.5,"bytes":"aGk=","array":[1,2,3],"keys":{"1":"a"}}`,
		`{"list":[{"text":"1"},null,{"list":[]}],"texts":[],"map":{"b":"<","a":""},"maps":{"x":{"self":{"int":1}},"y":null}}`,
		`{"list":[{"text":"1"}],"list":[{"int":1}],"map":{"a":"1","a":"2"}}`, `{"struct":{"A":"x","b":"y"},"self":{"self":{"text":"z"}},"quoted":"7","net":{"IP":"10.0.0.0","Mask":"/wAAAA=="}}`,
		`{"-":"dash","":"x","Hidden":"x","own":"x","NoTag":3,"notag":4}`, `{"embedded":{"name":"a","of":"b","Of":"c","twice":1,"Twice":2,"Alone":"d","low":"e","Low":"f","deeper":{"Way":1}}}`,
		`{"name":"a","list":["10.0.0.0/8"],"inner":{"name":"b","raw":{ "x" : 1 }},"map":{"z":1,"y":2},"zero":"::1","when":"2026-11-23T00:00:00Z","up":"u","any":[{"x":1}]}`,
		`{"Alone":"d","twice":1}`, `{"Alone":"d","Of":"x"}`, `{"raw":"<&>","text":"<&>"}`, strings.Repeat(`{"self":`, 120) + `{}` + strings.Repeat(`}`, 120),
		strings.Repeat(`[`, 10001) + strings.Repeat(`]`, 10001),
	}
}

func TestNumbers(t *testing.T) {
	type numbers struct {
		N json.Number            `json:"n,omitempty"`
		M map[string]json.Number `json:"m"`
	}
	for _, text := range []string{`{"n":"abc"}`, `{"n":"5"}`, `{"n":5.50}`, `{"n":""}`, `{"n":null,"m":{"a":"x"}}`, `{"m":{"a":1e400,"b":-0}}`} {
		sameDecoded[numbers](t, text)
	}
	sameEncoded(t, numbers{N: "x"})
}

func TestDocuments(t *testing.T) {
	for _, text := range documents() {
		sameDecoded[all](t, text)
		sameDecoded[outer](t, text)
		sameDecoded[plain](t, text)
		sameDecoded[map[string]plain](t, text)
	}
	for _, v := range []any{nil, 1, "a", (*all)(nil), all{}, all{Any: make(chan int)}, plain{Raw: json.RawMessage("{")}, []any{1, nil}, struct{ error }{}} {
		sameEncoded(t, v)
	}
	for _, to := range []any{nil, all{}, (*all)(nil)} {
		if err, want := Unmarshal([]byte(`{}`), to), json.Unmarshal([]byte(`{}`), to); fmt.Sprint(err) != fmt.Sprint(want) {
			t.Errorf("into a %T: %v, want %v", to, err, want)
		}
	}
}
