// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package netfile

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/record"
)

// bridge removes the network's bridge if one of our plugins made it and no port is on it.
func (m *Remover) bridge(r *Removal, l *chain.List, i Info) error {
	if i.Driver != driverBridge {
		return nil
	}
	name := record.MadeBridge(i.Interface)
	link, err := m.Host.Link(i.Interface)
	if nl.IsNotFound(err) {
		return m.Records.ForgetMade(name)
	}
	if err != nil {
		return fmt.Errorf("look for the bridge %s: %w", i.Interface, err)
	}
	why, err := m.used(link, l, i)
	if err != nil {
		return err
	}
	note, err := m.Records.Made(name)
	switch {
	case err != nil:
		why = err.Error()
	case why == "" && (note == nil || note.Index != link.Attrs().Index || link.Type() != "bridge"):
		why = "no note says that patchbay made it, as it notes its own: ip link del " + i.Interface
	}
	if why != "" {
		r.left("bridge %s: %s", i.Interface, why)
		return nil
	}
	if err := m.unlink(link, i); err != nil {
		return err
	}
	r.removed("bridge %s", i.Interface)
	return m.Records.ForgetBridge(i.Interface, note.Index)
}

// vlanGateway is the gateway's port in a VLAN, which the bridge plugin makes.
func vlanGateway(i Info) string {
	return owner.Of("vlan gateway", i.Interface, fmt.Sprintf("%s.%d", i.Interface, i.Vlan)).LinkName("veth", 0)
}

// used gives the reason to keep the bridge: what else is on it.
func (m *Remover) used(link netlink.Link, l *chain.List, i Info) (why string, err error) {
	dir, err := chain.LoadDir(m.Dir)
	if err != nil {
		return "", err
	}
	for _, other := range dir.Lists {
		if other.File != l.File && Describe(other).Interface == i.Interface {
			return fmt.Sprintf("network %s is on it too", other.Name), nil
		}
	}
	links, err := m.Host.LinkList()
	if err != nil {
		return "", fmt.Errorf("list the ports of %s: %w", i.Interface, err)
	}
	index := link.Attrs().Index
	for _, p := range links {
		a := p.Attrs()
		if a.MasterIndex == index && a.Name != vlanGateway(i) || a.ParentIndex == index && a.NetNsID < 0 {
			return a.Name + " is on it", nil
		}
	}
	addrs, err := m.Host.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return "", fmt.Errorf("list the addresses of %s: %w", i.Interface, err)
	}
	for _, a := range addrs {
		p := nl.PrefixOf(a.IPNet)
		if !p.Addr().IsLinkLocalUnicast() && !slices.Contains(i.Prefixes(), p.Masked()) {
			return fmt.Sprintf("it has the address %s, which is none of the network's", p), nil
		}
	}
	return "", nil
}

// unlink deletes the gateway in the bridge's VLAN, then the bridge.
func (m *Remover) unlink(bridge netlink.Link, i Info) error {
	gateway, err := m.Host.Link(vlanGateway(i))
	if err == nil && gateway.Attrs().MasterIndex == bridge.Attrs().Index {
		err = m.Host.LinkDel(gateway)
	}
	if nl.IsNotFound(err) {
		err = nil
	}
	derr := m.Host.LinkDel(bridge)
	if err := cmp.Or(err, derr); err != nil && !nl.IsNotFound(err) {
		return fmt.Errorf("remove the bridge %s: %w", i.Interface, err)
	}
	return nil
}
