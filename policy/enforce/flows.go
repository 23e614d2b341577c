// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/conntrack"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/policy"
)

// After a change, the kernel still accepts packets of connections that it tracks. So Load looks at
// the connections of those pods and addresses that the change concerns, and deletes the entries of
// connections that the new program denies. Their next packets are judged as first packets.

// Types of ICMP echo requests, the only ICMP that has connections.
const (
	echoRequest  = 8
	echoRequest6 = 128
)

// concerned returns the addresses whose connections a difference to a program may concern: of pods of
// this node whose chains, or sets in them, change, and of pods that get another identity.
func concerned(diff policy.Changes, after *policy.Program) map[netip.Addr]bool {
	addrs, parts := make(map[netip.Addr]bool), make(map[string]bool)
	for _, c := range diff.Switch {
		switch o := c.Object.(type) {
		case policy.Chain:
			parts[o.Name] = true
		case policy.Member:
			parts[o.Set] = true
		case policy.Span:
			parts[o.RangeSet] = true
		case policy.Address:
			addrs[o.Addr] = true
		case policy.LocalPod:
			addAll(addrs, o.Addresses)
			if was, ok := c.Was.(policy.LocalPod); ok {
				addAll(addrs, was.Addresses)
			}
		}
	}
	using(after, parts)
	for i := range after.Pods {
		if p := &after.Pods[i]; uses(p, parts) {
			addAll(addrs, p.Addresses)
		}
	}
	return addrs
}

func addAll(addrs map[netip.Addr]bool, list []netip.Addr) {
	for _, a := range list {
		addrs[a] = true
	}
}

// using adds the chains that use one of these sets.
func using(p *policy.Program, parts map[string]bool) {
	for i := range p.Chains {
		for _, r := range p.Chains[i].Rules {
			if parts[r.Set] || parts[r.RangeSet] {
				parts[p.Chains[i].Name] = true
			}
		}
	}
}

func uses(p *policy.LocalPod, parts map[string]bool) bool {
	for _, side := range p.Sides {
		for _, name := range side.Chains {
			if parts[name] {
				return true
			}
		}
	}
	return false
}

// leave notes the addresses that pods of this node have in the kernel's program, and no pod has in the
// next one. A Load that fails, or that finds ErrChanged, leaves them to the next Load.
func (e *Enforcer) leave(before *state, next *policy.Program) error {
	if e.opts.KeepConnections {
		return nil
	}
	if e.left == nil {
		e.left = make(map[netip.Addr]bool)
	}
	for _, family := range families {
		set := kindLocal + family
		if !before.sets[set] {
			continue
		}
		list, err := before.elements(set)
		if err != nil {
			return err
		}
		for _, local := range list {
			e.left[local.first] = true
		}
	}
	for i := range next.Pods {
		for _, a := range next.Pods[i].Addresses {
			delete(e.left, a)
		}
	}
	return nil
}

// pods returns the addresses of the pods of this node that have a policy.
func pods(p *policy.Program) map[netip.Addr]bool {
	addrs := make(map[netip.Addr]bool)
	for i := range p.Pods {
		if policed(&p.Pods[i]) {
			addAll(addrs, p.Pods[i].Addresses)
		}
	}
	return addrs
}

// cut deletes the connections of these addresses that the program denies, and all of addresses that
// pods have left: otherwise a new pod would get packets of a former one's, even if it is closed.
func (e *Enforcer) cut(p *policy.Program, addrs map[netip.Addr]bool) error {
	if len(addrs)+len(e.left) == 0 {
		return nil
	}
	own, err := ownAddresses()
	if err != nil {
		return err
	}
	flows, err := conntrack.All(func(f conntrack.Flow) bool {
		from, to := f.Orig.Src.Addr(), f.Reply.Src.Addr()
		return e.left[from] || e.left[to] || (addrs[from] || addrs[to]) && !own[from] && denied(p, f)
	})
	if err == nil {
		err = e.end(flows)
	}
	if err != nil {
		return err
	}
	clear(e.left)
	return nil
}

// end deletes connections.
func (e *Enforcer) end(flows []conntrack.Flow) (err error) {
	if e.conns == nil && len(flows) > 0 {
		if e.conns, err = conntrack.Dial(); err != nil {
			return err
		}
	}
	var errs []error
	for _, f := range flows {
		errs = append(errs, e.conns.Delete(f))
	}
	return errors.Join(errs...)
}

// denied reports whether a program denies a connection, by its addresses after destination NAT and
// before source NAT: what answers, and what asked.
func denied(p *policy.Program, f conntrack.Flow) bool {
	proto, port := policy.Protocol(f.Orig.Protocol), f.Reply.Src.Port()
	switch proto {
	case policy.ICMP:
		port = echoRequest
	case policy.ICMPv6:
		port = echoRequest6
	}
	v, _ := p.Allows(f.Orig.Src.Addr(), f.Reply.Src.Addr(), proto, port)
	return v == policy.Deny
}

// ownAddresses returns the addresses of this network namespace. The node may always reach its pods.
func ownAddresses() (map[netip.Addr]bool, error) {
	list, err := nl.Retry(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list the node's addresses: %w", err)
	}
	own := make(map[netip.Addr]bool)
	for _, a := range list {
		if addr, ok := netip.AddrFromSlice(a.IP); ok {
			own[addr.Unmap()] = true
		}
	}
	return own, nil
}
