// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/docker/state"
	"github.com/patchbay-net/patchbay/hosts/store"
)

// Container files of two versions of Docker: 20.10, and 29 with DNSNames.
const (
	oldID     = "0123456789ab0123456789ab0123456789ab0123456789ab0123456789ab0123"
	newID     = "abcdef012345abcdef012345abcdef012345abcdef012345abcdef0123456789"
	oldConfig = `{"ID":"` + oldID + `","Name":"/old","Config":{"Hostname":"0123456789ab"},"NetworkSettings":{"Networks":{
		"lan":{"NetworkID":"n1","EndpointID":"e1","Aliases":["sql","0123456789ab"]}, "bridge":{"NetworkID":"n9","EndpointID":"e9","Aliases":null}}}}`
	newConfig = `{"ID":"` + newID + `","Name":"/new","Config":{"Hostname":"box"},"NetworkSettings":{"Networks":{
		"lan":{"NetworkID":"n1","EndpointID":"","Aliases":["db"],"DNSNames":["new","db","abcdef012345","box"]}}}}`
)

func TestDockerFiles(t *testing.T) {
	dir := t.TempDir()
	d := docker{state: filepath.Join(dir, "state"), data: filepath.Join(dir, "data")}
	if all, copies, err := d.read(); err != nil || all != nil || copies != nil {
		t.Errorf("without a driver: %v %v %v", all, copies, err)
	}
	st, err := state.Open(d.state, "docker")
	must(t, err)
	must(t, st.Networks.Save(&state.Network{ID: "n1", Config: []byte(
		`{"name":"lan","plugins":[{"type":"bridge","ipam":{"type":"host-local","ranges":[[{"subnet":"10.200.3.0/24"}],[{"subnet":"fd00::/64"}]]}},{"type":"firewall"}]}`)}))
	kernel := func(addr string) *state.Snapshot {
		return &state.Snapshot{MAC: "02:00:00:00:00:01", Addrs: prefixes(addr)}
	}
	must(t, st.Endpoints.Save(&state.Endpoint{ID: "e1", Network: "n1", Phase: state.Joined, Kernel: kernel("10.200.3.2/24")}))
	must(t, st.Endpoints.Save(&state.Endpoint{ID: "e2", Network: "n1", Phase: state.Joined, Kernel: kernel("10.200.3.3/24"), Container: newID, Name: "new"}))
	must(t, st.Endpoints.Save(&state.Endpoint{ID: "e3", Network: "n1", Phase: state.Leaving, Kernel: kernel("10.200.3.4/24")}))
	must(t, st.Endpoints.Save(&state.Endpoint{ID: "e4", Network: "nx", Phase: state.Joined, Kernel: kernel("10.200.3.5/24")}))
	for id, text := range map[string]string{oldID: oldConfig, newID: newConfig, "torn": "{"} {
		must(t, os.MkdirAll(filepath.Join(d.data, "containers", id), 0o755))
		must(t, os.WriteFile(filepath.Join(d.data, "containers", id, "config.v2.json"), []byte(text), 0o644))
	}
	all, copies, err := d.read()
	if err == nil || !strings.Contains(err.Error(), "torn") {
		t.Errorf("a torn file: %v", err)
	}
	if len(all) != 2 || len(copies) != 1 || copies[0].Network != "lan" || !slices.Equal(copies[0].Ranges, prefixes("10.200.3.0/24", "fd00::/64")) {
		t.Fatalf("%+v %+v", all, copies)
	}
	for i, want := range []container{
		{ID: "e1", Docker: oldID, Names: []string{"old", "sql", "0123456789ab"}},
		{ID: "e2", Docker: newID, Names: []string{"new", "db", "abcdef012345", "box"}},
	} {
		if got := all[i]; got.ID != want.ID || got.Docker != want.Docker || !slices.Equal(got.Names, want.Names) || got.Network != "lan" {
			t.Errorf("got %+v", got)
		}
	}
	must(t, os.RemoveAll(filepath.Join(d.data, "containers", "torn")))
	must(t, st.Endpoints.Drop("e1"))
	if all, _, err := d.read(); err != nil || len(all) != 1 {
		t.Errorf("after one left: %+v %v", all, err)
	}
}

// A Docker network from a time when the host had another block is reported.
func TestStaleCopies(t *testing.T) {
	a := &Agent{copies: []dockerCopy{
		{ID: "0123456789abcdef", Network: "lan", Ranges: prefixes("10.200.3.0/24")},
		{ID: "fits", Network: "lan", Ranges: prefixes("10.200.4.0/24")},
		{ID: "others", Network: "podnet", Ranges: prefixes("10.88.0.0/16")},
	}}
	wrong := a.stale([]part{{plan: plan{Network: lan()}, holding: holding{have: prefixes("10.200.4.0/24")}}})
	if len(wrong) != 1 || !strings.Contains(wrong["0123456789ab"].Error(), "it gives out 10.200.3.0/24, which is not this host's block of lan") {
		t.Errorf("%v", wrong)
	}
}

func TestUsable(t *testing.T) {
	first, second, broken, home := lan(), lan(), lan(), lan()
	second.Name, second.Subnets = "a-second", prefixes("10.200.128.0/17")
	broken.Name, broken.Transport = "broken", "pigeon"
	home.Name, home.Subnets = "home", prefixes("192.0.2.0/24")
	home.BlockBits4 = 28
	w := &world{Networks: []store.Network{second, broken, home, first}, Own: map[string][]netip.Prefix{"lan": prefixes("10.200.3.0/24")}}
	a := &Agent{self: "me"}
	a.opts.Paths.Proc = "/proc"
	out, wrong := a.usable(w, []netip.Addr{netip.MustParseAddr("192.0.2.7")})
	if len(out) != 1 || out[0].Name != "lan" || len(wrong) != 3 {
		t.Errorf("%v %v", out, wrong)
	}
}
