// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package libcni_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/internal/test/chaintest"
)

// TestRefusedLists compares our messages with those of libcni, which refuses the same lists.
func TestRefusedLists(t *testing.T) {
	const p = `"plugins":[{"type":"rec1"}]`
	tests := []struct{ data, msg string }{
		{`{`, "error parsing configuration list: unexpected end of JSON input"},
		{`[]`, "error parsing configuration list: json: cannot unmarshal array"},
		{`{` + p + `}`, "error parsing configuration list: no name"},
		{`{"name":1,` + p + `}`, "error parsing configuration list: invalid name type float64"},
		{`{"name":null,` + p + `}`, "error parsing configuration list: invalid name type <nil>"},
		{`{"name":"n","cniVersion":1,` + p + `}`, "error parsing configuration list: invalid cniVersion type float64"},
		{`{"name":"n","cniVersions":"1.0.0",` + p + `}`, "error parsing configuration list: invalid type for cniVersions: "},
		{`{"name":"n","cniVersions":[{}],` + p + `}`, "error parsing configuration list: invalid type for cniVersions index 0: map[string]interface {}"},
		{`{"name":"n","cniVersions":["x"],` + p + `}`, "error parsing configuration list: invalid cniVersions entry x at index 0: "},
		{`{"name":"n","cniVersion":"x","cniVersions":[],` + p + `}`, "error parsing configuration list: invalid cniVersion x: "},
		{`{"name":"n","disableCheck":1,` + p + `}`, "error parsing configuration list: invalid type float64 for disableCheck"},
		{`{"name":"n","disableGC":"Maybe",` + p + `}`, `error parsing configuration list: invalid value "maybe" for disableGC`},
		{`{"name":"n","loadOnlyInlinedPlugins":[],` + p + `}`, "error parsing configuration list: invalid type []interface {} for loadOnlyInlinedPlugins"},
		{`{"name":"n","loadOnlyInlinedPlugins":true}`, "error parsing configuration list: `loadOnlyInlinedPlugins` is true, and no 'plugins' key"},
		{`{"name":"n","plugins":{}}`, "error parsing configuration list: invalid 'plugins' type map[string]interface {}"},
		{`{"name":"n","plugins":[]}`, "error parsing configuration list: no plugins in list"},
		{`{"name":"n","plugins":[{}]}`, "failed to parse plugin config 0: error parsing configuration: missing 'type'"},
		{`{"name":"n","plugins":[{"type":"a"},{"type":1}]}`, "failed to parse plugin config 1: error parsing configuration: json: cannot unmarshal number"},
	}
	for _, test := range tests {
		_, ours := chain.ParseList([]byte(test.data))
		_, theirs := libcni.NetworkConfFromBytes([]byte(test.data))
		for who, err := range map[string]error{"ours": ours, "libcni": theirs} {
			if err == nil || !strings.HasPrefix(err.Error(), test.msg) {
				t.Errorf("%s: %s: %v, want %s", test.data, who, err, test.msg)
			}
		}
	}
}

// TestRefusedByUs lists configurations that libcni accepts and we refuse.
func TestRefusedByUs(t *testing.T) {
	for data, msg := range map[string]string{
		`{"name":"../x","plugins":[{"type":"rec1"}]}`: "invalid characters found in network name",
		`{"name":"","plugins":[{"type":"rec1"}]}`:     "missing network name",
		`{"name":"n","plugins":[{"type":"../x"}]}`:    "invalid plugin name",
	} {
		if _, err := libcni.NetworkConfFromBytes([]byte(data)); err != nil {
			t.Errorf("libcni refuses %s: %v", data, err)
		}
		if _, err := chain.ParseList([]byte(data)); err == nil || !strings.Contains(err.Error(), msg) {
			t.Errorf("%s: %v", data, err)
		}
	}
}

func TestNegotiateVersion(t *testing.T) {
	for _, versions := range []string{
		`"cniVersion":"0.4.0"`, `"cniVersions":["0.4.0","1.0.0"]`, `"cniVersion":"1.1.0","cniVersions":["0.3.1"]`,
		`"cniVersion":"0.3.1","cniVersions":["0.4.0","9.0.0"]`, `"cniVersion":"9.0.0","cniVersions":["9.1.0"]`,
		`"cniVersion":"9.0.0","cniVersions":["1.0.0"]`, `"cniVersions":[]`, `"x":1`, `"cniVersion":""`, `"cniVersions":["1","0.4"]`,
	} {
		data := []byte(`{"name":"n",` + versions + `,"plugins":[{"type":"rec1"}]}`)
		theirs, err := libcni.NetworkConfFromBytes(data)
		if err != nil {
			t.Fatal(err)
		}
		ours, err := chain.ParseList(data)
		if err != nil {
			t.Fatal(err)
		}
		if ours.CNIVersion != theirs.CNIVersion {
			t.Errorf("%s: %q, libcni says %q", versions, ours.CNIVersion, theirs.CNIVersion)
		}
	}
}

// named returns a list of one plugin.
func named(name string) string {
	return `{"name":"` + name + `","cniVersion":"1.0.0","plugins":[{"type":"rec1"}]}`
}

// LoadFile appends the plugins of <confdir>/<name>/*.conf to the list, sorted by file name.
func TestSubDirectory(t *testing.T) {
	b := newBench(t)
	chaintest.Write(t, b.ConfDir, map[string]string{
		"net.conflist":   named("net"),
		"net/20-c.conf":  `{"type":"rec3"}`,
		"net/10-b.conf":  `{"type":"rec2"}`,
		"net/30-d.json":  `{"type":"no"}`,
		"only.conflist":  strings.Replace(named("only"), `"name"`, `"loadOnlyInlinedPlugins":true,"name"`, 1),
		"only/1.conf":    `{"type":"no"}`,
		"bare.conflist":  `{"name":"bare","cniVersion":"1.0.0"}`,
		"bare/1.conf":    `{"type":"rec1"}`,
		"empty.conflist": `{"name":"empty"}`,
		"wrong.conflist": named("wrong"),
		"wrong/1.conf":   `{"typo":"rec1"}`,
	})
	types := func(name string) string {
		l, err := b.Load(name)
		theirs, terr := libcni.NetworkConfFromFile(filepath.Join(b.ConfDir, name+".conflist"))
		if (err == nil) != (terr == nil) || err == nil && len(l.Plugins) != len(theirs.Plugins) {
			t.Errorf("%s: ours %v, libcni %v", name, err, terr)
		}
		if err != nil {
			return err.Error()
		}
		var out []string
		for _, p := range l.Plugins {
			out = append(out, p.Type)
		}
		return strings.Join(out, " ")
	}
	for name, want := range map[string]string{"net": "rec1 rec2 rec3", "only": "rec1", "bare": "rec1"} {
		if got := types(name); got != want {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	for name, want := range map[string]string{"empty": "no plugin configs found", "wrong": "1.conf: error parsing configuration: missing 'type'"} {
		if got := types(name); !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", name, got, want)
		}
	}
	list, err := b.Load("net")
	if err != nil {
		t.Fatal(err)
	}
	cached := chaintest.List(t, string(list.Bytes)) // a parsed list needs no file
	if len(cached.Plugins) != 3 || !cached.LoadOnlyInlinedPlugins {
		t.Errorf("inlined: %s", list.Bytes)
	}
}

func FuzzParseList(f *testing.F) {
	f.Add([]byte(`{"cniVersion":"1.1.0","name":"net","plugins":[{"type":"rec1"},{"type":"rec2"},{"type":"rec3"}]}`))
	f.Add([]byte(`{"name":"n","cniVersions":["1.0.0",1],"disableGC":"TRUE","plugins":[{"type":"a","capabilities":{"x":true}}]}`))
	f.Add([]byte(`{"Name":"n","NAME":null,"plugins":[{"TYPE":"a"}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		ours, err := chain.ParseList(data)
		if err != nil {
			return
		}
		theirs, terr := libcni.NetworkConfFromBytes(data)
		if terr != nil {
			t.Fatalf("libcni refuses what we take: %v\n%s", terr, data)
		}
		if ours.Name != theirs.Name || ours.CNIVersion != theirs.CNIVersion || len(ours.Plugins) != len(theirs.Plugins) ||
			ours.DisableCheck != theirs.DisableCheck || ours.DisableGC != theirs.DisableGC {
			t.Fatalf("ours %+v\nlibcni %+v", ours, theirs)
		}
	})
}
