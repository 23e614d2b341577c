// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/daemons/docker/state"
	"github.com/patchbay-net/patchbay/daemons/hosts/store"
	"github.com/patchbay-net/patchbay/internal/paths"
)

// BenchmarkApply measures one pass over 500 hosts with 50 containers each, after one new container.
func BenchmarkApply(b *testing.B) {
	dir := b.TempDir()
	a, err := New(Options{
		Store: nil, Name: "me", Underlay: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, ConfDir: dir + "/net.d", DataRoot: dir,
		Paths: paths.Paths{State: dir + "/state", CNI: dir + "/cni", Proc: "/proc"}, TTL: time.Second, Reclaim: time.Hour, DNS: []string{"*"},
		Fabric: &fakeFabric{}, Log: func(string, ...any) {},
	})
	must(b, err)
	wide := lan()
	wide.Subnets = prefixes("10.200.0.0/14")
	m := &a.mirror
	m.synced = true
	m.networks.Put("lan", wide)
	for n := range 500 {
		id := fmt.Sprintf("%016x", n)
		block := nth(wide.Subnets[0], 24, uint64(n))
		m.nodes.Put(id, store.Node{ID: id, Name: id, Underlay: []netip.Addr{netip.AddrFrom4([4]byte{192, 0, byte(2 + n/250), byte(n % 250)})}})
		m.blocks.Put(id, store.Block{Network: "lan", Prefix: block, Node: id})
		for c := range 50 {
			e := store.Entry{Network: "lan", ID: fmt.Sprint(c), Node: id, Addrs: []netip.Addr{nth(block, 32, uint64(c+2)).Addr()}, Names: []string{fmt.Sprint("web", n, "-", c), fmt.Sprint("alias", c)}}
			m.endpoints.Put(e.Key(), e)
		}
	}
	for i := 0; b.Loop(); i++ {
		m.endpoints.Put("one", store.Entry{Network: "lan", ID: "one", Node: "x", Names: []string{fmt.Sprint(i)}})
		a.apply(context.Background(), false)
	}
}

// manyContainers writes the files of the driver and of dockerd for n containers.
func manyContainers(tb testing.TB, n int) *docker {
	tb.Helper()
	dir := tb.TempDir()
	d := &docker{state: filepath.Join(dir, "state"), data: filepath.Join(dir, "data")}
	st, err := state.Open(d.state, "docker")
	must(tb, err)
	must(tb, st.Networks.Save(&state.Network{ID: "n1", Config: []byte(`{"name":"lan","plugins":[]}`)}))
	for i := range n {
		must(tb, st.Endpoints.Save(&state.Endpoint{
			ID: fmt.Sprint("e", i), Network: "n1", Phase: state.Joined,
			Kernel: &state.Snapshot{MAC: "02:00:00:00:00:01", Addrs: prefixes(fmt.Sprintf("10.200.%d.%d/16", i/250, i%250+2))},
		}))
		d.rename(tb, i, "web")
	}
	return d
}

// rename rewrites dockerd's file of container i.
func (d *docker) rename(tb testing.TB, i int, name string) {
	tb.Helper()
	dir := filepath.Join(d.data, "containers", fmt.Sprint("c", i))
	must(tb, os.MkdirAll(dir, 0o755))
	text := fmt.Sprintf(`{"ID":"c%d","Name":"/%s%d","NetworkSettings":{"Networks":{"lan":{"NetworkID":"n1","EndpointID":"e%d"}}}}`, i, name, i, i)
	must(tb, os.WriteFile(filepath.Join(dir, "config.v2.json"), []byte(text), 0o644))
}

// The agent reads twice a second, and nearly always nothing has changed. Then it builds and
// compares nothing.
func TestReadOnlyNews(t *testing.T) {
	d := manyContainers(t, 3)
	read := func() []container {
		t.Helper()
		all, _, err := d.read()
		must(t, err)
		return all
	}
	first, second := read(), read()
	if len(first) != 3 || &first[0] != &second[0] {
		t.Fatalf("%d of 3, and %d put together again", len(first), len(second))
	}
	d.rename(t, 1, "mail")
	if now := read(); now[1].Names[0] != "mail1" || now[0].Names[0] != "web0" {
		t.Errorf("after a container was renamed: %+v", now)
	}
	must(t, os.RemoveAll(filepath.Join(d.data, "containers/c2")))
	if now := read(); len(now[2].Names) != 0 {
		t.Errorf("after a container's file went: %+v", now[2])
	}
	st, err := state.Open(d.state, "docker")
	must(t, err)
	must(t, st.Endpoints.Drop("e0"))
	if now := read(); len(now) != 2 {
		t.Errorf("after one left: %+v", now)
	}
}

// BenchmarkRead measures one read of 2000 containers, of which one or none has changed.
func BenchmarkRead(b *testing.B) {
	for _, name := range []string{"same", "changed"} {
		b.Run(name, func(b *testing.B) {
			d := manyContainers(b, 2000)
			for i := 0; b.Loop(); i++ {
				if name == "changed" {
					d.rename(b, 7, fmt.Sprint("v", i, "-"))
				}
				_, _, err := d.read()
				must(b, err)
			}
		})
	}
}
