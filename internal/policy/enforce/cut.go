// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"errors"
	"maps"
	"net/netip"
	"slices"

	"github.com/patchbay-net/patchbay/internal/conntrack"
	"github.com/patchbay-net/patchbay/internal/l4"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/policy"
)

// Types of ICMP echo requests, the only ICMP that has connections.
const (
	echoRequest  = 8
	echoRequest6 = 128
)

// Cut is the connections that still have to end after some calls of Load.
type Cut struct {
	program *policy.Program     // the last one that is in force
	judged  map[netip.Addr]bool // the addresses of which a change may deny connections
	vacated map[netip.Addr]bool // the addresses that no pod has any more: none of their connections may stay
	renewed bool                // the program in force has changed: it may allow flows again that ended
	fw      *nft.Conn
}

// leave notes the addresses that pods of this node have in the kernel's program, and no pod has in the
// next one. A Load that fails, or that finds ErrChanged, leaves them to the next Load.
func (e *Enforcer) leave(before *state, next *policy.Program) error {
	if e.opts.KeepConnections {
		return nil
	}
	if e.cut.vacated == nil {
		e.cut.vacated = make(map[netip.Addr]bool)
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
			e.cut.vacated[local.first] = true
		}
	}
	for i := range next.Pods {
		for _, a := range next.Pods[i].Addresses {
			delete(e.cut.vacated, a)
		}
	}
	return nil
}

// owe notes the addresses of which a new program may deny connections.
func (e *Enforcer) owe(addrs map[netip.Addr]bool) {
	if e.opts.KeepConnections {
		return
	}
	if e.cut.judged == nil {
		e.cut.judged = make(map[netip.Addr]bool)
	}
	maps.Copy(e.cut.judged, addrs)
}

// DrainCut returns the connections that have to end since it was last called, with Options.CutLater. It returns
// nil if there are none.
func (e *Enforcer) DrainCut() *Cut {
	if e.cut.program == nil || len(e.cut.judged)+len(e.cut.vacated) == 0 && !e.cut.renewed {
		return nil
	}
	c := e.cut
	c.fw = e.fw
	e.cut = Cut{}
	return &c
}

// Update tells a Cut what has changed since DrainCut: the program that is in force, and that pods have its addresses again.
func (e *Enforcer) Update(c *Cut) {
	if e.cut.program == nil {
		return // no Load since
	}
	c.program = e.cut.program
	for i := range c.program.Pods {
		for _, a := range c.program.Pods[i].Addresses {
			delete(c.vacated, a)
		}
	}
}

// GiveBack takes back a Cut that failed. The next Cut includes its connections.
func (e *Enforcer) GiveBack(c *Cut) {
	e.Update(c)
	if e.cut.program == nil {
		e.cut.program = c.program
	}
	e.cut.renewed = e.cut.renewed || c.renewed
	for _, m := range []struct {
		to   *map[netip.Addr]bool
		from map[netip.Addr]bool
	}{{&e.cut.judged, c.judged}, {&e.cut.vacated, c.vacated}} {
		if *m.to == nil {
			*m.to = make(map[netip.Addr]bool)
		}
		maps.Copy(*m.to, m.from)
	}
}

// Do deletes the connections that the program denies, and all connections of addresses that pods have left:
// otherwise a new pod with the address would get their packets, even if it is closed. It needs no Enforcer while it
// reads the kernel's table, so policies can change meanwhile. Before it deletes anything, it calls update, which
// calls Enforcer.Update. Otherwise it would delete connections of new pods, because an outdated program denies
// them. The answers in a deleted connection cannot begin it anew (hold). The namespace is that of the calling thread.
func (c *Cut) Do(update func(*Cut)) error {
	own, err := ownAddresses()
	if err != nil {
		return err
	}
	addrs := maps.Clone(c.judged)
	maps.Copy(addrs, c.vacated)
	ends := func(f conntrack.Flow) bool {
		from, to := f.Orig.Src.Addr(), f.Reply.Src.Addr()
		return c.vacated[from] || c.vacated[to] || !own[from] && denied(c.program, f)
	}
	flows, err := conntrack.Among(addrs, ends)
	if err != nil {
		return err
	}
	update(c)
	flows, held := c.hold(slices.DeleteFunc(flows, func(f conntrack.Flow) bool { return !ends(f) }))
	return errors.Join(held, conntrack.End(flows))
}

// denied reports whether a program denies a connection. It uses the addresses after destination NAT and before
// source NAT: those of the end that answers and of the end that asked.
func denied(p *policy.Program, f conntrack.Flow) bool {
	proto, port := l4.Protocol(f.Orig.Protocol), f.Reply.Src.Port()
	switch proto {
	case l4.ICMP:
		port = echoRequest
	case l4.ICMPv6:
		port = echoRequest6
	}
	v, _ := p.Allows(f.Orig.Src.Addr(), f.Reply.Src.Addr(), proto, port)
	return v == policy.Deny
}

// ownAddresses returns the addresses of this network namespace. The node may always reach its pods.
func ownAddresses() (map[netip.Addr]bool, error) {
	list, err := addressesHere()
	if err != nil {
		return nil, err
	}
	own := make(map[netip.Addr]bool)
	for _, a := range list {
		if addr, ok := netip.AddrFromSlice(a.IP); ok {
			own[addr.Unmap()] = true
		}
	}
	return own, nil
}
