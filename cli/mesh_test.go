// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/mesh"
	"github.com/patchbay-net/patchbay/internal/paths"
)

// meshProgram is `mesh apply` and `mesh clear`. Like an agent, it makes or removes the mesh of a
// host that has one other host on its link.
func meshProgram() {
	if err := meshTurn(os.Args[1]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func meshTurn(verb string) error {
	m, err := mesh.Open(mesh.Options{Paths: paths.Default()})
	if err != nil {
		return err
	}
	defer m.Close()
	if verb == "clear" {
		return m.Clear(context.Background(), mesh.Self{})
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "uplink0"
	link := &netlink.Bridge{LinkAttrs: attrs}
	addr, err := netlink.ParseAddr("192.0.2.1/24")
	if err == nil {
		err = netlink.LinkAdd(link)
	}
	if err := errors.Join(err, netlink.AddrReplace(link, addr), netlink.LinkSetUp(link)); err != nil {
		return err
	}
	self := mesh.Self{
		ID: "a", Underlay: []netip.Addr{netip.MustParseAddr("192.0.2.1")},
		Subnets: []mesh.Subnet{{Network: "wide", Prefix: netip.MustParsePrefix("10.99.0.0/16")}},
		Blocks:  []netip.Prefix{netip.MustParsePrefix("10.99.1.0/24")}, Exempt: []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")},
	}
	return m.Apply(context.Background(), self, []mesh.Peer{{
		ID: "b", Underlay: []netip.Addr{netip.MustParseAddr("192.0.2.2")}, Transport: mesh.Routes,
		Blocks: []netip.Prefix{netip.MustParsePrefix("10.99.2.0/24")},
	}})
}
