// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/netns"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// Found reads the veth pair of an attachment from the previous result. The host's end is the peer
// of the container's interface, and must be in the result too.
func Found(r *plugin.Request, env *netstate.Env) (*Pair, error) {
	inside, err := findInside(r, env)
	if err != nil {
		return nil, err
	}
	p := &Pair{Owner: r.Owner, IfName: inside.Name, NetNS: inside.Sandbox}
	if p.MAC, err = parseMAC(inside); err != nil {
		return nil, err
	}
	link, err := env.Link(netstate.Sandbox, r.IfName)
	if nl.IsNotFound(err) {
		return nil, spec.Errorf(spec.CodeInternal, "CNI created interface in container %s not found", r.IfName)
	}
	if err != nil {
		return nil, err
	}
	peer, err := env.Host.LinkAt(link.Attrs().ParentIndex)
	if err != nil {
		return nil, fmt.Errorf("look up the peer of %s: %w", r.IfName, err)
	}
	for _, i := range r.Prev().Interfaces {
		if i.Sandbox == "" && i.Name == peer.Attrs().Name {
			p.Host = i.Name
			p.HostMAC, err = parseMAC(i)
			return p, err
		}
	}
	return nil, spec.Errorf(spec.CodeInternal, "CNI veth created for %s was not found in prevResult: its peer is %s", r.IfName, peer.Attrs().Name)
}

// findInside returns the result's entry for the interface in the namespace. findInside accepts
// another path of the same namespace.
func findInside(r *plugin.Request, env *netstate.Env) (spec.Interface, error) {
	sandbox := ""
	for _, i := range r.Prev().Interfaces {
		if i.Name != r.IfName || i.Sandbox == "" {
			continue
		}
		if i.Sandbox == r.NetNS || sameNS(i.Sandbox, env.Sandbox.NS) {
			return i, nil
		}
		sandbox = i.Sandbox
	}
	return spec.Interface{}, spec.Invalid("Sandbox in prevResult %s doesn't match configured netns: %s", sandbox, r.NetNS)
}

func sameNS(path string, ns *netns.NS) bool {
	other, err := netns.Open(path)
	if err != nil {
		return false
	}
	defer other.Close() //nolint:errcheck // read only
	a, err := other.ID()
	if err != nil {
		return false
	}
	b, err := ns.ID()
	return err == nil && a == b
}

// MACOf returns the Ethernet address of a host interface in a result, or nil if the result has
// none.
func MACOf(result *spec.Result, name string) (net.HardwareAddr, error) {
	for _, i := range result.Interfaces {
		if i.Name == name && i.Sandbox == "" {
			return parseMAC(i)
		}
	}
	return nil, nil
}

// Check compares the kernel with a state. It also checks the table that all forwarded traffic
// passes. If the reference plugin made the attachment, Check leaves the firewall out, because the
// reference's masquerade does the same as ours. An attachment of the reference has no record, and
// no mark of ours on the host's end.
func Check(ctx context.Context, r *plugin.Request, env *netstate.Env, s netstate.State) error {
	rec, err := kernel.Of(r).Records.Read(r.Network, r.Owner, r.Plugin.Name)
	if err != nil {
		kernel.Warn(r, err)
	}
	if rec == nil && err == nil && !marked(r, env, s) {
		return checkReference(ctx, r, env, s)
	}
	if rec != nil {
		s = append(s, attachedEgress(rec)...)
	}
	return kernel.Check(ctx, env, append(s, netstate.Table{}))
}

func checkReference(ctx context.Context, r *plugin.Request, env *netstate.Env, s netstate.State) error {
	var addrs []netip.Addr
	var masquerade netstate.State
	for _, o := range s {
		e, ok := o.(netstate.Element)
		if !ok || e.Set != nft.SetMasqueraded4 && e.Set != nft.SetMasqueraded6 {
			continue
		}
		if a, ok := netip.AddrFromSlice(e.Key); ok {
			addrs, masquerade = append(addrs, a), append(masquerade, e)
		}
	}
	stands, err := kernel.Attachment(r).Masquerading(addrs).Exist(env.NFT, r.Session.Paths.Proc)
	s = slices.DeleteFunc(s, inFirewall)
	if !stands {
		s = append(s, masquerade...)
	}
	return errors.Join(err, kernel.Unrecorded(kernel.Check(ctx, env, s)))
}

// marked reports whether the host's end has our mark.
func marked(r *plugin.Request, env *netstate.Env, s netstate.State) bool {
	return slices.ContainsFunc(s, func(o netstate.Object) bool {
		v, ok := o.(netstate.Veth)
		if !ok {
			return false
		}
		link, err := env.Link(netstate.Host, v.Name)
		return err == nil && link.Attrs().Alias == r.Owner.Alias()
	})
}

func inFirewall(o netstate.Object) bool {
	switch o.(type) {
	case netstate.Element, netstate.HeldFact:
		return true
	}
	return false
}

// Ready checks for STATUS whether an ADD can write its record.
func Ready(r *plugin.Request) error {
	if err := kernel.Of(r).Records.Ready(r.Network); err != nil {
		return spec.Errorf(spec.CodeNotAvailable, "no record can be written: %w", err)
	}
	return nil
}

// FirewallReady checks for STATUS whether we may use nftables.
func FirewallReady(r *plugin.Request) error {
	if err := kernel.Of(r).NFT.Status(); err != nil {
		return spec.Errorf(spec.CodeNotAvailable, "the firewall cannot be used: %w", err)
	}
	return nil
}

func parseMAC(i spec.Interface) (net.HardwareAddr, error) {
	if i.Mac == "" {
		return nil, nil
	}
	mac, err := net.ParseMAC(i.Mac)
	if err != nil {
		return nil, spec.Errorf(spec.CodeDecoding, "interface %s in prevResult: %w", i.Name, err)
	}
	return mac, nil
}
