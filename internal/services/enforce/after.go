// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"context"
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
	again bool                                   // Settle has something to do

	retired map[services.Element]bool // what Settle removes
}

// postpone returns the steps without those that stop endpoints from coming back to themselves, which Settle does. A packet on its way may
// have drawn such an endpoint before the change, and meets the rule of the masquerade after it. Without it, its connection would hang.
func (e *Enforcer) postpone(steps []services.Step) (now []services.Step) {
	for _, s := range steps {
		if s = e.owed.postpone(s); len(s.Remove)+len(s.Add) > 0 {
			now = append(now, s)
		}
	}
	return now
}

// postpone returns the rest of a step. What comes back before Settle is still there.
func (o *owed) postpone(s services.Step) services.Step {
	isHairpin := func(e services.Element) bool { return e.Set == services.Hairpin }
	if !slices.ContainsFunc(s.Remove, isHairpin) && !slices.ContainsFunc(s.Add, isHairpin) {
		return s
	}
	s.Add = slices.DeleteFunc(slices.Clone(s.Add), func(e services.Element) bool {
		back := o.retired[e]
		delete(o.retired, e)
		return back
	})
	s.Remove = slices.DeleteFunc(slices.Clone(s.Remove), func(e services.Element) bool {
		if isHairpin(e) {
			o.retire(e)
		}
		return isHairpin(e)
	})
	return s
}

func (o *owed) retire(e services.Element) {
	if o.retired == nil {
		o.retired = make(map[services.Element]bool)
	}
	o.retired[e], o.again = true, true
}

// retire removes what was postponed. If it fails, the next Load does it.
func (e *Enforcer) retire(ctx context.Context) error {
	var steps []services.Step
	for element := range e.owed.retired {
		steps = append(steps, services.Step{Remove: []services.Element{element}})
	}
	e.owed.retired = nil
	if len(steps) == 0 {
		return nil
	}
	return e.change(ctx, e.loaded, steps)
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

// Settle does what must wait for the packets that met the rules before the last changes. It forgets once more what clients must not
// remember: such a packet may have written it after the first time. And endpoints that left can no longer come back to themselves. Call it a
// moment after a change; it does nothing if nothing is owed.
func (e *Enforcer) Settle(ctx context.Context) error {
	if e.loaded == nil || !e.owed.again {
		return nil
	}
	e.owed.judge = true
	err := e.pay()
	e.owed.again = err != nil
	return errors.Join(err, e.retire(ctx))
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
