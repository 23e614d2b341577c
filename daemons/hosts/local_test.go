// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/daemons/docker/state"
	"github.com/patchbay-net/patchbay/daemons/hosts/store"
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
		{ID: "ofgone", Network: "gone", Ranges: prefixes("10.77.0.0/24"), Ours: true},
	}}
	parts := []part{{plan: plan{Network: lan()}, holding: holding{have: prefixes("10.200.4.0/24")}}}
	wrong := a.stale(parts, map[string]string{"gone": "network gone was removed", "podnet": "it is not ours"})
	if len(wrong) != 2 || !strings.Contains(wrong["0123456789ab"].Error(), "has 10.200.3.0/24, which is not this host's block of lan") ||
		!strings.Contains(wrong["ofgone"].Error(), "network gone was removed") {
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

// A file is replaced within one tick of the kernel's clock, by one of the same size.
func TestReplacedWithinATick(t *testing.T) {
	dir := t.TempDir()
	path, at := filepath.Join(dir, "config.v2.json"), time.Now()
	write := func(name string) {
		t.Helper()
		must(t, os.WriteFile(path+"~", []byte(`{"Name":"/`+name+`"}`), 0o600))
		must(t, os.Chtimes(path+"~", at, at))
		must(t, os.Rename(path+"~", path))
	}
	write("one")
	was, err := readConfig(path, dockerConfig{})
	must(t, err)
	before, err := fingerprint(dir)
	must(t, err)
	write("two")
	now, err := readConfig(path, was)
	if err != nil || now.config.Name != "/two" {
		t.Errorf("%+v, %v", now.config, err)
	}
	if after, err := fingerprint(dir); err != nil || after == before {
		t.Errorf("%q, and before %q: %v", after, before, err)
	}
	if again, err := readConfig(path, now); err != nil || again.config != now.config {
		t.Errorf("it was read again: %v", err)
	}
}

// A container has more names than an object of the store can hold.
func TestManyNames(t *testing.T) {
	var aliases []string
	for i := range 100_000 {
		aliases = append(aliases, fmt.Sprint("alias", i))
	}
	if got := dockerNames(&containerConfig{ID: newID, Name: "/web"}, aliases); len(got) != maxNames || got[0] != "web" {
		t.Errorf("%d names: %q …", len(got), got[0])
	}
}
