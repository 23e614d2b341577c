// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package packed

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
)

func raws(texts ...string) (list []json.RawMessage) {
	for _, t := range texts {
		list = append(list, json.RawMessage(t))
	}
	return list
}

// TestPack checks that a packed plugin declares its members' capabilities, without those that are
// off, and that Unpack returns the same bytes.
func TestPack(t *testing.T) {
	for _, c := range []struct {
		plugins []json.RawMessage
		want    string
	}{
		{raws(`{"type":"a"}`), `{"type":"patchbay","plugins":[{"type":"a"}]}`},
		{raws(`{"type":"a","capabilities":{"x":true,"y":false}}`, `{"type":"b","Capabilities":{"z":true}}`),
			`{"type":"patchbay","capabilities":{"x":true,"z":true},"plugins":[{"type":"a","capabilities":{"x":true,"y":false}},{"type":"b","Capabilities":{"z":true}}]}`},
	} {
		got, err := Pack(c.plugins)
		if err != nil || string(got) != c.want {
			t.Errorf("%s, %v, want %s", got, err, c.want)
		}
		back, err := Unpack(got)
		if err != nil || !slices.EqualFunc(back, c.plugins, func(a, b json.RawMessage) bool { return string(a) == string(b) }) {
			t.Errorf("unpacked %s, %v, want %s", back, err, c.plugins)
		}
	}
}

func TestUnpack(t *testing.T) {
	for in, want := range map[string]string{
		`{"type":"patchbay","name":"n","cniVersion":"1.0.0","plugins":[{"type":"a"},{"type":"b"}]}`:                                   `{"type":"a"} {"type":"b"}`,
		`{"type":"patchbay","capabilities":{"x":true},"plugins":[{"type":"a","capabilities":{"x":true,"y":true}}]}`:                   `{"capabilities":{"x":true},"type":"a"}`,
		`{"type":"patchbay","capabilities":{"x":false},"plugins":[{"type":"a","mtu":9000000000000000001,"Capabilities":{"x":true}}]}`: `{"mtu":9000000000000000001,"type":"a"}`,
		`{"type":"patchbay","plugins":[{"type":"a","capabilities":{"y":false}}]}`:                                                     `{"type":"a","capabilities":{"y":false}}`,
		`{"type":"patchbay","builtIn":true,"plugins":[{"type":"a"}]}`:                                                                 `error: its plugin patchbay has the key builtIn, which separate plugins cannot have`,
		`{"type":"patchbay","args":{},"plugins":[{"type":"a"}]}`:                                                                      `error: its plugin patchbay has the key args, which separate plugins cannot have`,
		`{"type":"patchbay","plugins":[]}`:                                                                                            `error: the plugin patchbay has no plugins`,
		`{"type":"patchbay","plugins":[{"type":"a"},7]}`:                                                                              `error: member 2 of 2: error parsing configuration: json: cannot unmarshal number into Go value of type packed.head`,
		`{"type":"patchbay","plugins":[{"type":"a"},{"type":"../b"}]}`:                                                                `error: member 2 of 2: `,
	} {
		list, err := Unpack(json.RawMessage(in))
		var texts []string
		for _, raw := range list {
			texts = append(texts, string(raw))
		}
		got := strings.Join(texts, " ")
		if err != nil {
			got = "error: " + err.Error()
		}
		if got != want && (err == nil || !strings.HasPrefix(got, want) || !strings.HasSuffix(want, ": ")) {
			t.Errorf("%s:\n%s\nwant\n%s", in, got, want)
		}
	}
	var k *KeyError
	if _, err := Unpack(json.RawMessage(`{"BUILTIN":true}`)); !errors.As(err, &k) || k.Key != "BUILTIN" {
		t.Errorf("%v", err)
	}
}

func TestPackRefuses(t *testing.T) {
	for in, want := range map[string]string{
		``:                    "no plugins in list",
		`{"type":"patchbay"}`: "it has a plugin of type patchbay already",
		`{"type":""}`:         "missing",
		`7`:                   "cannot unmarshal",
	} {
		var list []json.RawMessage
		if in != "" {
			list = raws(in)
		}
		if out, err := Pack(list); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %s, %v, want %s", in, out, err, want)
		}
	}
}
