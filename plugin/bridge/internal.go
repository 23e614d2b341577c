// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/life"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/plugin/kernel"
	"github.com/patchbay-net/patchbay/spec"
)

// isolation keeps the host from forwarding to and from an internal network. The bridge's
// attachments share it; the kernel identifies forwarded packets by the bridge alone. In a
// VLAN it covers the bridge as well, which may be in that VLAN.
func isolation(in input) (s netstate.State) {
	if !in.conf.Internal {
		return nil
	}
	links := []string{in.conf.Bridge}
	if in.conf.Vlan != 0 {
		links = append(links, in.conf.gatewayLink())
	}
	for _, link := range links {
		s = append(s, netstate.Fact{
			Fact:  record.Fact{Name: record.InternalFact(link), Elements: nft.Internal(link, in.network)},
			Owner: in.pair.Owner,
		})
	}
	return s
}

// fits refuses an internal bridge for a network that is not internal, and for an internal
// network a bridge whose traffic the firewall sees on another link.
func (c *Conf) fits(k *kernel.Kernel) error {
	link, err := c.find(k)
	if err != nil {
		return err
	}
	if !c.Internal {
		if k.Records.Stands(record.InternalFact(c.gatewayLink())) {
			return spec.Invalid("bridge %q belongs to an internal network, and this one is not internal", c.Bridge).
				WithDetails("give one of them a bridge of its own; patchbay gc removes dead containers of the other")
		}
		return nil
	}
	if link != nil && link.Attrs().MasterIndex != 0 {
		return spec.Invalid("bridge %q cannot be internal: it is in a VRF", c.Bridge).
			WithDetails("the firewall would see forwarded packets by that; ip link set %s nomaster", c.Bridge)
	}
	return nil
}

// find returns the bridge, nil when it does not exist yet. A configuration may name it by
// an alternative name: find sets the name that the firewall sees, which records have too.
func (c *Conf) find(k *kernel.Kernel) (netlink.Link, error) {
	host, err := k.Host()
	if err != nil {
		return nil, err
	}
	link, err := host.Link(c.Bridge)
	if nl.IsNotFound(err) {
		return nil, nil //nolint:nilnil // an ADD makes it
	}
	if err != nil {
		return nil, err
	}
	c.Bridge = link.Attrs().Name
	return link, nil
}

// alone refuses to make a bridge internal while containers of a network that is not
// internal use it: they would lose their connection to the outside.
func (c *Conf) alone(k *kernel.Kernel) error {
	all, _, _ := k.Records.Scan("") // an unreadable record names no bridge
	for _, rec := range all {
		if rec.Plugin != name || rec.Bridge != c.Bridge || slices.Contains(rec.Shared, record.InternalFact(c.Bridge)) {
			continue
		}
		if state, _ := k.Life(rec); state != life.Dead {
			return spec.Invalid("bridge %q cannot be internal: container %s of network %s is on it and is not internal", c.Bridge, rec.ContainerID, rec.Network).
				WithDetails("give the internal network a bridge of its own")
		}
	}
	return nil
}
