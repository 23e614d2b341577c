// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/netns"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

func TestUnnamed(t *testing.T) {
	one, two := nft.Element{Set: "s", Key: nft.Hex{1}, Comment: "now"}, nft.Element{Set: "s", Key: nft.Hex{2}}
	named := record.CurrentRecord{Record: &record.Record{Elements: []nft.Element{{Set: "s", Key: nft.Hex{1}, Comment: "before"}}}}
	if got := unnamed([]nft.Element{one, two}, []record.CurrentRecord{named}); len(got) != 1 || !got[0].SameKey(two) {
		t.Errorf("%v", got)
	}
}

// lose is a GC of what has lost its record. It returns the containers of the elements that it removed.
func (c *caller) lose(valid string) (did collection, err error) {
	c.t.Helper()
	err = c.do(spec.GC, "portmap", "", `,"cni.dev/valid-attachments":[`+valid+`]`, func(ctx context.Context, r *plugin.Request) error {
		k := Of(r)
		err := k.SweepLost(r, func(nft.Element) bool { return true }, func(lost *record.Record) error {
			did.removed = append(did.removed, strings.Split(lost.Elements[0].Comment, "/")[1])
			k.Withdraw(lost)
			return k.NFT.Commit(ctx)
		})
		did.spared = r.Spared()
		return err
	})
	slices.Sort(did.removed)
	return did, err
}

// forget removes a container's record.
func (c *caller) forget(id string) {
	c.t.Helper()
	c.must(os.Remove(filepath.Join(paths.Default().Run, "attachments", c.network, string(c.owner(id))+".portmap")))
}

// A GC removes elements without a record, unless the list has the attachment, a record names them, or the
// attachment's veth pair is in use.
func TestSweepLost(t *testing.T) {
	c := newCaller(t)
	for id, addr := range map[string]string{"lost": "10.9.4.1", "valid": "10.9.4.2", "recorded": "10.9.4.3", "carries": "10.9.4.4", "down": "10.9.4.5"} {
		c.must(c.add(id, addr))
	}
	for _, id := range []string{"lost", "valid", "carries", "down"} {
		c.forget(id)
	}
	c.pair("carries", true)
	second := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "second", TxQLen: -1}} // in place of bandwidth's ifb, which has the mark, too
	c.must(netlink.LinkAdd(second))
	c.t.Cleanup(func() { _ = netlink.LinkDel(second) })
	c.must(netlink.LinkSetAlias(second, c.owner("carries").Alias()))
	c.pair("down", false)
	did, err := c.lose(`{"containerID":"valid","ifname":"eth0"}`)
	c.must(err)
	if want := []string{"down", "lost"}; !slices.Equal(did.removed, want) {
		t.Errorf("removed %v, want %v", did.removed, want)
	}
	if !slices.Equal(ids(did.spared), []string{"carries"}) || !strings.Contains(c.log.String(), "carries, so its container lives") {
		t.Errorf("spared %v: %s", did.spared, c.log.String())
	}
	for addr, want := range map[string]string{"10.9.4.1": "", "10.9.4.2": "valid", "10.9.4.3": "recorded", "10.9.4.4": "carries", "10.9.4.5": ""} {
		if got := c.has(addr); got != want {
			t.Errorf("%s: %q, want %q", addr, got, want)
		}
	}
}

// pair makes a veth pair with the mark of a container, up or down.
func (c *caller) pair(id string, up bool) {
	c.t.Helper()
	ns, err := netns.Open(c.netNS)
	c.must(err)
	defer ns.Close() //nolint:errcheck // read only
	host, peer := c.owner(id).LinkName("veth", 0), "p"+string(c.owner(id))[:8]
	attrs := netlink.NewLinkAttrs()
	attrs.Name = host
	link := &netlink.Veth{LinkAttrs: attrs, PeerName: peer}
	c.must(netlink.LinkAdd(link))
	c.t.Cleanup(func() { _ = netlink.LinkDel(link) }) // a test may have removed it
	c.must(netlink.LinkSetAlias(link, c.owner(id).Alias()))
	end, err := netlink.LinkByName(peer)
	c.must(err)
	c.must(netlink.LinkSetNsFd(end, ns.Fd()))
	if !up {
		return
	}
	c.must(netlink.LinkSetUp(link))
	c.must(ns.Do(func() error {
		end, err := netlink.LinkByName(peer)
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(end)
	}))
}

// A record that cannot be read is derived again from what has the owner's key. If the attachment's names are not
// known and its pair is in use, a GC keeps it.
func TestDerive(t *testing.T) {
	c := newCaller(t)
	c.must(c.add("torn", "10.9.5.1"))
	c.pair("torn", false)
	path := filepath.Join(paths.Default().Run, "attachments", c.network, string(c.owner("torn"))+".portmap")
	c.must(os.WriteFile(path, []byte("{"), 0o600))
	var got *record.Record
	did, err := c.collect("portmap", "", func(rec *record.Record) error { got = rec; return nil })
	c.must(err)
	if len(did.removed) != 1 || got.ContainerID != "torn" || got.IfName != "eth0" || len(got.Elements) != 1 || !slices.Contains(got.Links, c.owner("torn").LinkName("veth", 0)) {
		t.Errorf("%+v", got)
	}
	c.pair("nameless", true)
	path = filepath.Join(filepath.Dir(path), string(c.owner("nameless"))+".portmap")
	c.must(os.MkdirAll(filepath.Dir(path), 0o700))
	c.must(os.WriteFile(path, []byte("{"), 0o600))
	did, err = c.collect("portmap", "", nothing)
	c.must(err)
	if len(did.removed) > 0 || len(did.spared) != 1 || did.spared[0] != (spec.AttachmentKey{}) || len(c.files()) != 1 {
		t.Errorf("%+v, records %v", did, c.files())
	}
}
