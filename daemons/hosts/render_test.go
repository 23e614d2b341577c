// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/daemons/hosts/store"
	"github.com/patchbay-net/patchbay/spec"
)

var update = flag.Bool("update", false, "write the golden files")

func TestRender(t *testing.T) {
	for name, p := range map[string]plan{
		"plain": {Network: lan(), Blocks: prefixes("10.200.3.0/24")},
		"dual": {
			Network: store.Network{Name: "a-name-that-is-long", Subnets: prefixes("10.200.0.0/16", "fd00::/48")}, Blocks: prefixes("10.200.3.0/24", "fd00:0:0:3::/64"), MTU: 1450, DNS: true,
		},
		"plugins": {
			Network: store.Network{Name: "lan", Subnets: lan().Subnets, Plugins: []json.RawMessage{[]byte(`{"type":"tuning","sysctl":{"net.core.somaxconn":"500"}}`)}},
			Blocks:  prefixes("10.200.3.0/24"),
		},
		"isolated":   {Network: store.Network{Name: "lan", Subnets: lan().Subnets, Isolate: true}, Blocks: prefixes("10.200.3.0/24")},
		"no plugins": {Network: store.Network{Name: "lan", Subnets: lan().Subnets, Plugins: []json.RawMessage{}}, Blocks: prefixes("10.200.3.0/24")},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := render(&p)
			if err != nil {
				t.Fatal(err)
			}
			list, err := chain.ParseList(got)
			if err != nil || list.Name != p.Network.Name || list.CNIVersion != cniVersion || len(list.Plugins) != 1+len(following(&p.Network)) {
				t.Errorf("as a runtime sees it: %+v, %v", list, err)
			}
			golden(t, filepath.Join("testdata", name+".conflist"), got)
		})
	}
}

func golden(t *testing.T, path string, got []byte) {
	t.Helper()
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s (%v): got\n%s", path, err, got)
	}
}

func TestBridgeNames(t *testing.T) {
	for network, want := range map[string]string{"lan": "pb-lan", "a23456789012": "pb-a23456789012"} {
		if got := bridgeName(network); got != want {
			t.Errorf("%s: %s", network, got)
		}
	}
	a, b := bridgeName("a234567890123"), bridgeName("a234567890124")
	if a == b || spec.ValidateIfName(a) != nil {
		t.Errorf("%s %s", a, b)
	}
}

func TestConfs(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "net.d")
	ourText := []byte(`{"generatedBy":"` + mark + `","n":1}`)
	must(t, writeConf(dir, "lan", ourText))
	changed := bytes.Replace(ourText, []byte("1"), []byte("2"), 1)
	must(t, writeConf(dir, "lan", changed))
	if got, err := os.ReadFile(filepath.Join(dir, "lan.conflist")); err != nil || !bytes.Equal(got, changed) {
		t.Errorf("%s %v", got, err)
	}
	theirs := filepath.Join(dir, "theirs.conflist")
	must(t, os.WriteFile(theirs, []byte(`{"name":"theirs"}`), 0o644))
	must(t, os.Symlink("lan.conflist", filepath.Join(dir, "link.conflist")))
	for _, name := range []string{"theirs", "link"} {
		if err := writeConf(dir, name, ourText); err == nil {
			t.Errorf("%s: overwritten", name)
		}
	}
	must(t, os.WriteFile(filepath.Join(dir, "torn.conflist"), []byte(`{"gen`), 0o644))
	removed, err := removeConfs(dir, func(string) bool { return false })
	if err != nil || len(removed) != 1 || removed[0] != "lan" {
		t.Errorf("removed %v, %v", removed, err)
	}
	if _, err := os.Stat(theirs); err != nil {
		t.Error(err)
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
