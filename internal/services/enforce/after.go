// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/patchbay-net/patchbay/internal/conntrack"
	"github.com/patchbay-net/patchbay/internal/l4"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/services"
)

// owed is what must be done after changes are in force.
type owed struct {
	flows map[services.Frontend][]netip.AddrPort // the endpoints that flows of UDP may go to
	moved []netip.Prefix                         // all memories of these clients must go
	judge bool                                   // the memories of all clients must be compared with the program
	again bool                                   // once more, by Settle
}

// owe notes what a change asks for. If it is not known what was before it, all memories are compared.
func (e *Enforcer) owe(c services.Change, unknown bool) {
	if e.owed.flows == nil {
		e.owed.flows = make(map[services.Frontend][]netip.AddrPort)
	}
	for _, f := range c.Flows {
		e.owed.flows[f.Frontend] = f.Serving
	}
	e.owed.moved = append(e.owed.moved, c.Moved...)
	e.owed.judge = e.owed.judge || unknown || len(c.Forget)+len(c.Moved) > 0
	e.owed.again = e.owed.again || e.owed.judge
}

// pay does what is owed. What fails is done at the next call of Load, Apply or Settle.
func (e *Enforcer) pay() error {
	if e.owed.judge {
		if err := e.forget(); err != nil {
			return err
		}
		e.owed.judge, e.owed.moved = false, nil
	}
	if err := e.endFlows(); err != nil {
		return fmt.Errorf("end flows of UDP that a Service must not have: %w", err)
	}
	clear(e.owed.flows)
	return nil
}

// Settle forgets once more what clients must not remember after the last changes: a packet that met the rules before a change may have
// written it after the first time. Call it a moment after a change; it does nothing if nothing is owed.
func (e *Enforcer) Settle() error {
	if e.loaded == nil || !e.owed.again {
		return nil
	}
	e.owed.judge = true
	err := e.pay()
	e.owed.again = err != nil
	return err
}

// forget deletes what clients remember and the program does not allow. The program judges all memories, so the lists of a change
// only say that there is something to do.
func (e *Enforcer) forget() error {
	var errs []error
	for _, ipv6 := range []bool{false, true} {
		var keys [][]byte
		err := e.fw.EachElement(nft.AffinityMap(ipv6), func(key, data []byte, _ bool) {
			if k, ok := memoryOf(key, data, ipv6); !ok || e.owed.hasMoved(k.From) || !e.loaded.Remembers(k) {
				keys = append(keys, slices.Clone(key))
			}
		})
		errs = append(errs, err, e.fw.DropMemories(ipv6, keys))
	}
	return errors.Join(errs...)
}

func (o *owed) hasMoved(client netip.Addr) bool {
	return slices.ContainsFunc(o.moved, func(r netip.Prefix) bool { return r.Contains(client) })
}

// memoryOf reads an element of a map of affinity.
func memoryOf(key, data []byte, ipv6 bool) (k services.Packet, ok bool) {
	r, to := reader{key, true}, reader{data, true}
	k.From = r.addr(ipv6)
	addr := r.addr(ipv6)
	k.Protocol = l4.Protocol(r.next(4)[0])
	k.To = netip.AddrPortFrom(addr, r.port())
	k.Remembered = netip.AddrPortFrom(to.addr(ipv6), to.port())
	return k, r.whole() && to.whole()
}

// fewFrontends is up to how many frontends the kernel's table of connections is searched for each. It is long, and the kernel
// sends only what matches.
const fewFrontends = 4

// endFlows deletes flows of UDP that go to no serving endpoint of their frontend.
func (e *Enforcer) endFlows() error {
	if len(e.owed.flows) == 0 {
		return nil
	}
	conn, err := conntrack.Dial()
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // nothing is lost
	var errs []error
	for _, filter := range e.owed.filters() {
		flows, err := conn.List(filter)
		errs = append(errs, err)
		for _, f := range flows {
			if e.stale(f) {
				errs = append(errs, conn.Delete(f))
			}
		}
	}
	return errors.Join(errs...)
}

// filters returns what to ask the kernel for.
func (o *owed) filters() (list []conntrack.Filter) {
	if len(o.flows) > fewFrontends {
		for _, ipv6 := range []bool{false, true} {
			list = append(list, conntrack.Filter{IPv6: ipv6, Protocol: uint8(l4.UDP)})
		}
		return list
	}
	for f := range o.flows {
		filter := conntrack.Filter{IPv6: f.Addr.Is6(), Protocol: uint8(f.Protocol), OrigDstPort: f.Port}
		if !f.Addr.IsUnspecified() {
			filter.OrigDst = f.Addr
		}
		list = append(list, filter)
	}
	return list
}

// stale reports whether a flow came to a frontend, and goes to no serving endpoint of it.
func (e *Enforcer) stale(f conntrack.Flow) bool {
	to := services.Frontend{Addr: f.Orig.Dst.Addr(), Protocol: l4.Protocol(f.Orig.Protocol), Port: f.Orig.Dst.Port()}
	serving, ok := e.owed.flows[to]
	if !ok && e.loaded.HasNodePorts(to.Addr) {
		to.Addr = unspecified(to.Addr.Is6())
		serving, ok = e.owed.flows[to]
	}
	return ok && !slices.Contains(serving, f.Reply.Src)
}
