// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/daemons/docker/state"
	"github.com/patchbay-net/patchbay/daemons/hosts/store"
	"github.com/patchbay-net/patchbay/ipam"
)

// give does what host-local does with a copy of the network's configuration.
func (h *host) give(network string, block netip.Prefix) error {
	h.t.Helper()
	s := grants{h.dir + "/cni"}.store(network)
	tx, err := s.Begin(h.t.Context(), ipam.Write)
	must(h.t, err)
	defer tx.Close()
	r, err := ipam.ParseRange(block.String(), "", "", "")
	must(h.t, err)
	set := ipam.RangeSet{r}
	must(h.t, set.Canonicalize())
	_, err = ipam.Allocate(tx, &ipam.Request{Holder: ipam.Holder{ID: fmt.Sprint(time.Now().UnixNano()), IfName: "eth0"}, Sets: []ipam.RangeSet{set}})
	return err
}

// copies makes a Docker network, which has a copy of the network's configuration.
func (h *host) copies(id, network string) {
	h.t.Helper()
	st, err := state.Open(h.dir+"/state", "docker")
	must(h.t, err)
	must(h.t, st.Networks.Save(&state.Network{ID: id, Config: []byte(h.conf(network))}))
}

func (h *host) refuses(network string, block netip.Prefix, why string) {
	h.t.Helper()
	if err := h.give(network, block); err == nil || !strings.Contains(err.Error(), why) {
		h.t.Errorf("an ADD of a copy of %s: %v, not %q", network, err, why)
	}
}

func (h *host) reports(part string) func() bool {
	return func() bool {
		return slices.ContainsFunc(h.agent.problems.All(), func(s string) bool { return strings.Contains(s, part) })
	}
}

// A network was removed. A Docker network still has a copy of its configuration, and gives out
// nothing. When the network is created again, the host has its old block, and gives out addresses.
func TestRemovedNetworkGivesNothing(t *testing.T) {
	s := openStore(t)
	must(t, Admin{s}.Create(t.Context(), lan()))
	h := newHost(t, s, 1)
	h.start()
	block := h.block("lan")
	h.copies("dockerlan", "lan")
	must(t, h.give("lan", block))
	must(t, Admin{s}.Remove(t.Context(), "lan", false))
	until(t, "ls reports the Docker network", h.reports("Docker network dockerlan: its containers get no addresses: network lan was removed from all hosts: remove it"))
	h.refuses("lan", block, "network lan was removed from all hosts")
	must(t, Admin{s}.Create(t.Context(), lan()))
	until(t, "it is configured again", func() bool { return h.conf("lan") != "" })
	if again := h.block("lan"); again != block {
		t.Errorf("it had %s, and has %s", block, again)
	}
	must(t, h.give("lan", block))
	until(t, "nothing is wrong", func() bool { return !h.reports("dockerlan")() })
}

// The grant of a removed network goes when no Docker network has a copy of it and no ADD can still
// run. After that another program may use the name.
func TestGrantGoes(t *testing.T) {
	s := openStore(t)
	must(t, Admin{s}.Create(t.Context(), lan()))
	h := newHost(t, s, 1)
	h.start()
	block := h.block("lan")
	h.copies("dockerlan", "lan")
	must(t, Admin{s}.Remove(t.Context(), "lan", false))
	until(t, "the grant is empty", func() bool { return h.conf("lan") == "" && h.give("lan", block) != nil })
	until(t, "the Docker network is reported", h.reports("network lan was removed from all hosts"))
	file, past := h.dir+"/cni/networks/lan/grant", time.Now().Add(-time.Hour)
	must(t, os.Chtimes(file, past, past))
	h.stop()
	h.start()
	until(t, "the Docker network is reported again", h.reports("network lan was removed from all hosts"))
	if _, err := os.Stat(file); err != nil {
		t.Errorf("a Docker network could use the addresses: %v", err)
	}
	st, err := state.Open(h.dir+"/state", "docker")
	must(t, err)
	must(t, st.Networks.Drop("dockerlan"))
	until(t, "the grant is gone", func() bool { _, err := os.Stat(file); return err != nil })
}

// The configuration of another program has the name of a network. It is not limited.
func TestForeignIsNotGranted(t *testing.T) {
	s := openStore(t)
	h := newHost(t, s, 1)
	must(t, os.MkdirAll(h.dir+"/net.d", 0o755))
	must(t, os.WriteFile(h.dir+"/net.d/lan.conflist", []byte(`{"name":"lan"}`), 0o644))
	h.start()
	must(t, Admin{s}.Create(t.Context(), lan()))
	until(t, "it is reported", h.reports("configuration of lan"))
	must(t, h.give("lan", prefix("10.77.0.0/24")))
	must(t, Admin{s}.Remove(t.Context(), "lan", false))
	until(t, "the removal was seen", func() bool { return !h.reports("configuration of lan")() })
	must(t, h.give("lan", prefix("10.77.0.0/24")))
}

// A runtime read the configuration before the agent removed it, and its ADD comes when the host has
// already given up the block.
func TestLateAdd(t *testing.T) {
	s := openStore(t)
	must(t, Admin{s}.Create(t.Context(), lan()))
	h := newHost(t, s, 1)
	h.start()
	block := h.block("lan")
	h.stop()
	w, _, _ := h.agent.mirror.snapshot()
	n := lan()
	must(t, h.agent.yield(&w, &n, []store.Block{{Network: "lan", Prefix: block, Node: "thief"}}))
	h.refuses("lan", block, "block "+block.String()+" of this host belongs to thief now")
}

// A pass read the world before the host gave up its block, and ends after that.
func TestGrantOfAnEarlierLook(t *testing.T) {
	s := openStore(t)
	must(t, Admin{s}.Create(t.Context(), lan()))
	h := newHost(t, s, 1)
	h.start()
	block := h.block("lan")
	h.stop()
	a, before := h.agent, h.agent.stops()
	must(t, a.stop("lan", "another host has it"))
	must(t, a.allow("lan", []netip.Prefix{block}, before))
	h.refuses("lan", block, "another host has it")
	must(t, a.allow("lan", []netip.Prefix{block}, a.stops()))
	must(t, h.give("lan", block))
}
