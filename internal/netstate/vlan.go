// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package netstate

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nl"
)

// VLANs are the VLANs from First to Last of a port, both included. PVID makes the VLAN apply
// to untagged frames.
type VLANs struct {
	First, Last uint16
	PVID        bool
}

// PortVLANs sets the VLANs of a port.
type PortVLANs struct {
	Link, Bridge string
	KeepDefault  bool // keep the bridge's default VLAN
	List         []VLANs
}

// String returns the bridge commands.
func (p PortVLANs) String() string {
	var words []string
	if !p.KeepDefault {
		words = append(words, "del DEFAULT")
	}
	for _, v := range p.List {
		s := fmt.Sprintf("add %d", v.First)
		if v.Last > v.First {
			s += fmt.Sprintf("-%d", v.Last)
		}
		if v.PVID {
			s += " pvid untagged"
		}
		words = append(words, s)
	}
	return fmt.Sprintf("host: bridge vlan dev %s: %s", p.Link, strings.Join(words, ", "))
}

// Ensure sets the VLANs. Ensure has nothing to undo, because the kernel deletes the VLANs with
// the link.
func (p PortVLANs) Ensure(_ context.Context, env *Env) (Undo, error) {
	link, err := env.Link(Host, p.Link)
	if err != nil {
		return nil, err
	}
	if !p.KeepDefault {
		if err := p.removeDefault(env, link); err != nil {
			return nil, fmt.Errorf("failed to remove default vlan on interface %q: %w", p.Link, err)
		}
	}
	for _, v := range p.List {
		if err := v.add(env.Host, link); err != nil {
			return nil, fmt.Errorf("failed to setup vlan tag on interface %q: %w", p.Link, err)
		}
	}
	return nil, nil
}

func (v VLANs) add(conn *nl.Conn, link netlink.Link) error {
	if v.Last > v.First {
		return conn.BridgeVlanAddRange(link, v.First, v.Last, v.PVID, v.PVID, false, true)
	}
	return conn.BridgeVlanAdd(link, v.First, v.PVID, v.PVID, false, true)
}

// removeDefault removes the default VLAN that the bridge gave to the port. A bridge without
// VLAN filtering gives none.
func (p PortVLANs) removeDefault(env *Env, link netlink.Link) error {
	br, err := env.Link(Host, p.Bridge)
	if err != nil {
		return err
	}
	vid := uint16(1)
	if b, ok := br.(*netlink.Bridge); ok && b.VlanDefaultPVID != nil {
		vid = *b.VlanDefaultPVID
	}
	if vid == 0 {
		return nil
	}
	err = env.Host.BridgeVlanDel(link, vid, false, false, false, true)
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// Tagged reports whether a port of a bridge has a VLAN whose frames have a tag in the container. Only a bridge that
// filters VLANs is asked.
func Tagged(conn *nl.Conn, bridge, port netlink.Link) (bool, error) {
	if b, ok := bridge.(*netlink.Bridge); !ok || b.VlanFiltering == nil || !*b.VlanFiltering {
		return false, nil
	}
	all, err := conn.BridgeVlanList()
	if err != nil {
		return false, fmt.Errorf("list vlans: %w", err)
	}
	return slices.ContainsFunc(all[int32(port.Attrs().Index)], func(v *vnl.BridgeVlanInfo) bool { //nolint:gosec // the kernel's own type
		return v.Flags&vnl.BRIDGE_VLAN_INFO_UNTAGGED == 0
	}), nil
}

// Diff reports which VLANs the port lacks. The kernel has only a request for the VLANs of all
// ports. So only the CHECK of a port with VLANs sends it.
func (p PortVLANs) Diff(_ context.Context, env *Env) (string, error) {
	link, err := env.Link(Host, p.Link)
	if err != nil {
		return diffMissing(err)
	}
	all, err := env.Host.BridgeVlanList()
	if err != nil {
		return "", fmt.Errorf("list vlans: %w", err)
	}
	have := make(map[uint16]bool) // VLAN id: whether it is the PVID
	for _, v := range all[int32(link.Attrs().Index)] {
		have[v.Vid] = v.Flags&vnl.BRIDGE_VLAN_INFO_PVID != 0
	}
	want := make(map[uint16]bool)
	for _, v := range p.List {
		for id := v.First; id <= v.Last; id++ {
			want[id] = v.PVID
		}
	}
	for id, pvid := range want {
		if got, ok := have[id]; !ok || got != pvid {
			return fmt.Sprintf("port %s lacks vlan %d (pvid %v)", p.Link, id, pvid), nil
		}
	}
	return "", nil
}

// VLANGateway is a veth pair on the host that carries a network's gateway in one VLAN of a
// bridge. Name has the address, and Peer is the port. Like the bridge, the pair belongs to the
// network, and no DEL removes it.
type VLANGateway struct {
	Name, Peer  string
	Bridge      string
	VLAN        uint16
	KeepDefault bool

	// Settings are written before the link goes up, because the kernel then starts to look for
	// duplicates of the link-local address.
	Settings []LinkIPv6
}

// String returns the ip command that makes the pair.
func (g VLANGateway) String() string {
	return fmt.Sprintf("host: ip link add %s type veth peer name %s up; %s; %s", g.Name, g.Peer, g.port(), g.vlans()) +
		fmt.Sprintf("\n%s\nhost: ip link set %s up", g.settings(), g.Name)
}

func (g VLANGateway) settings() IPv6 { return IPv6{Where: Host, List: g.Settings} }

func (g VLANGateway) port() Port { return Port{Link: g.Peer, Bridge: g.Bridge} }

func (g VLANGateway) vlans() PortVLANs {
	return PortVLANs{Link: g.Peer, Bridge: g.Bridge, KeepDefault: g.KeepDefault, List: []VLANs{{g.VLAN, g.VLAN, true}}}
}

// Ensure creates the pair. If a killed ADD left an incomplete pair, Ensure completes it.
func (g VLANGateway) Ensure(ctx context.Context, env *Env) (Undo, error) {
	link, err := env.Link(Host, g.Name)
	if nl.IsNotFound(err) {
		link, err = g.make(env)
	}
	if err != nil {
		return nil, fmt.Errorf("failed to create vlan interface: %w", err)
	}
	if link.Type() != "veth" {
		return nil, fmt.Errorf("failed to create vlan interface: %q exists and is a %s", g.Name, link.Type())
	}
	peer, err := env.Host.LinkAt(link.Attrs().ParentIndex)
	if err != nil {
		return nil, fmt.Errorf("failed to create vlan interface: find the peer of %s: %w", g.Name, err)
	}
	if peer.Attrs().MasterIndex != 0 && link.Attrs().Flags&net.FlagUp != 0 {
		return nil, nil
	}
	return nil, g.attach(ctx, env, link, peer)
}

func (g VLANGateway) make(env *Env) (netlink.Link, error) {
	br, err := env.Link(Host, g.Bridge)
	if err != nil {
		return nil, err
	}
	pair := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: g.Peer}
	pair.Name, pair.MTU = g.Name, br.Attrs().MTU
	if err := env.Host.LinkAdd(pair); err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, fmt.Errorf("faild to create vlan gateway %q: %w", g.Name, err)
	}
	return env.Link(Host, g.Name)
}

func (g VLANGateway) attach(ctx context.Context, env *Env, link, peer netlink.Link) error {
	g.Peer = peer.Attrs().Name // the reference chooses a random name
	env.Remember(Host, peer)
	for _, o := range []Object{g.port(), g.vlans(), Up{Where: Host, Link: g.Peer}, g.settings(), Up{Where: Host, Link: link.Attrs().Name}} {
		if _, err := o.Ensure(ctx, env); err != nil {
			return fmt.Errorf("failed to create vlan interface: %w", err)
		}
	}
	return nil
}

// Diff reports whether the interface is missing. Gateway checks its address.
func (g VLANGateway) Diff(ctx context.Context, env *Env) (string, error) {
	return Up{Where: Host, Link: g.Name}.Diff(ctx, env)
}
