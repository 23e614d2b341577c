// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package jsonat

import (
	"encoding/json"
	"testing"
)

func TestSyntax(t *testing.T) {
	for text, want := range map[string]string{
		"{\n  \"a\": [\n    1,\n  ]\n}": `4:3: unexpected "]" (trailing comma?)`,
		"{\"a\": 1,}":                   `1:9: unexpected "}" (trailing comma?)`,
		"{\"a\": 1\n \"b\": 2}":         `2:2: unexpected "\"" (missing comma?)`,
		"{\n// no\n}":                   `2:1: unexpected "/" (JSON has no comments)`,
		"{'a': 1}":                      `1:2: unexpected "'" (strings are in double quotes)`,
		"{\"a\": [1, 2\n":               "1:12: unexpected end of the file (a bracket or quote is not closed?)",
		"":                              "1:1: unexpected end of the file (a bracket or quote is not closed?)",
		"{\"a\": \"x\ny\"}":             "1:9: unexpected end of the line",
		"{\"name\": \"é\", \"a\": é}":   "1:21: unexpected \"é\"",
	} {
		var v any
		got, ok := Syntax([]byte(text), json.Unmarshal([]byte(text), &v))
		if !ok || got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
	if _, ok := Syntax(nil, json.Unmarshal([]byte("{}"), new(int))); ok {
		t.Error("a type is no syntax")
	}
}

func TestParse(t *testing.T) {
	data := []byte("{\n  \"a\": [1, {\"B\" : \"x\"}],\n  \"c\": null }")
	n, err := Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	b := n.Get("a").Items[1].Members[0]
	if line, column := Position(data, b.Offset); line != 2 || column != 13 || b.Key != "B" {
		t.Errorf("%s at %d:%d", b.Key, line, column)
	}
	if line, column := Position(data, b.Value.Offset); line != 2 || column != 19 || b.Value.String() != `"x"` {
		t.Errorf("%s at %d:%d", b.Value, line, column)
	}
	if n.Get("C").String() != "null" || n.Get("d") != nil || n.Get("a").String() != "a list" {
		t.Errorf("%v", n)
	}
	for _, bad := range []string{"", "{", `{"a"`, `[1`, `{"a":}`} {
		if _, err := Parse([]byte(bad)); err == nil {
			t.Errorf("%q is read", bad)
		}
	}
}

func TestNearest(t *testing.T) {
	known := []string{"isGateway", "isDefaultGateway", "ipMasq", "mtu", "vlan", "bridge"}
	for word, want := range map[string]string{
		"isGatway": "isGateway", "ipMask": "ipMasq", "mut": "mtu", "brigde": "bridge", "isgateway": "isGateway", "colour": "", "x": "",
	} {
		if got := Nearest(word, known); got != want {
			t.Errorf("%s: %q, want %q", word, got, want)
		}
	}
}
