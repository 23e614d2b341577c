// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"net"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/daemons/docker/state"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/netns"
)

// A container is in two networks whose links have one MAC address, as VLANs of one master have. Without its own link, an
// endpoint does not take the other's.
func TestTwins(t *testing.T) {
	const path, mac = "/run/netns/twins", "02:00:00:00:00:77"
	must(t, netns.Create(path))
	t.Cleanup(func() { must(t, netns.Delete(path)) })
	c, d := conn(t, path), newNode(t, portNet).driver
	twin := func(o owner.Key) *state.Endpoint {
		return &state.Endpoint{ID: strings.Repeat(string(o[:2]), 32), Kernel: &state.Snapshot{MAC: mac, Alias: o.Alias()}}
	}
	first, second := owner.Of("a", "c", "eth0"), owner.Of("b", "c", "eth0")
	hw, err := net.ParseMAC(mac)
	must(t, err)
	link := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "second", HardwareAddr: hw}}
	must(t, c.LinkAdd(link))
	must(t, c.LinkSetAlias(link, second.Alias()))
	must(t, d.state.Endpoints.Save(twin(second)))
	defer func() { must(t, d.state.Endpoints.Drop(twin(second).ID)) }()
	if l, err := d.find(c, twin(second)); err != nil || l.Attrs().Name != "second" {
		t.Errorf("its own: %v, %v", l, err)
	}
	if l, err := d.find(c, twin(first)); !nl.IsNotFound(err) {
		t.Errorf("the other's: %v, %v", l, err)
	}
	must(t, c.LinkSetAlias(link, owner.Of("outer", "c", "eth0").Alias())) // of a runtime above the driver
	if l, err := d.find(c, twin(first)); err != nil || l.Attrs().Name != "second" {
		t.Errorf("with a replaced alias: %v, %v", l, err)
	}
}

// The error for an endpoint without an interface has a text, and can be recognised on the host
// and in a sandbox.
func TestNoInterface(t *testing.T) {
	const path = "/run/netns/nolink"
	must(t, netns.Create(path))
	t.Cleanup(func() { must(t, netns.Delete(path)) })
	d := newNode(t, portNet).driver
	for _, at := range []string{"", path} {
		_, err := d.find(conn(t, at), &state.Endpoint{ID: strings.Repeat("e1", 32)})
		if !nl.IsNotFound(err) || !strings.Contains(err.Error(), "no interface of endpoint e1e1e1e1e1e1") {
			t.Errorf("%q: %v", at, err)
		}
	}
}
