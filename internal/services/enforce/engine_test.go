// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/internal/l4"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/services"
	"github.com/patchbay-net/patchbay/internal/test/draw"
	"github.com/patchbay-net/patchbay/internal/test/servicetest"
)

// TestRules compares what the rules do, on elements in the kernel's bytes, with Program.Verdict and with an oracle.
func TestRules(t *testing.T) {
	servicetest.Compare(t, func() servicetest.Engine { return &engine{kernel: newKernel()} },
		servicetest.Plan{Tables: draw.Number(t, "PATCHBAY_SERVICE_TABLES", 120, 2000)})
}

// TestBetweenLookups sends packets while changes become visible.
func TestBetweenLookups(t *testing.T) {
	servicetest.Compare(t, func() servicetest.Engine { return &engine{kernel: newKernel(), flips: true} },
		servicetest.Plan{Tables: draw.Number(t, "PATCHBAY_SERVICE_FLIPS", 60, 1000), Packets: 1})
}

// engine is the program of a node, and the kernel that has its rules and elements.
type engine struct {
	program *services.Program
	kernel  *kernel
	lacks   func(kind string) bool // rules that are left out; nil: none
	flips   bool                   // packets are sent while steps become visible
	sets    []string               // of the layout, which loses none with flips
}

// Load compiles all, and loads what differs.
func (e *engine) Load(c servicetest.Cluster) ([]servicetest.Flow, error) {
	s, err := stateOf(c)
	if err != nil {
		return nil, err
	}
	p := services.Compile(s, e.program)
	change := services.Diff(e.program, p)
	if e.sets = append(e.sets, p.Sets()...); !e.flips {
		e.sets = p.Sets()
	}
	layout, err := nft.LayoutOfServices(e.sets...)
	if err != nil {
		return nil, err
	}
	table, err := layout.Table()
	if err != nil {
		return nil, err
	}
	e.leaveOut(table.Rules)
	e.program, e.kernel.rules = p, table.Rules
	e.kernel.local = func(a netip.Addr) bool {
		return a.IsLoopback() || slices.Contains(append(s.Addresses, s.Node.Addresses...), a)
	}
	if err := e.apply(change.Steps); err != nil {
		return nil, err
	}
	e.forget(change)
	var flows []servicetest.Flow
	for _, f := range change.Flows {
		flows = append(flows, servicetest.Flow{To: netip.AddrPortFrom(f.Frontend.Addr, f.Frontend.Port), Serving: f.Serving})
	}
	return flows, nil
}

// apply applies steps. With flips, it sends packets while each step becomes visible.
func (e *engine) apply(steps []services.Step) error {
	if !e.flips {
		return e.kernel.apply(steps)
	}
	for i := range steps {
		before := e.kernel.clone()
		if err := e.kernel.apply(steps[i : i+1]); err != nil {
			return err
		}
		if err := before.flip(e.kernel, steps[i]); err != nil {
			return err
		}
	}
	return nil
}

// flip sends packets to the frontends of a step that becomes visible before any of their lookups. What was and is translated must be
// translated, or dropped, so that the client tries again.
func (k *kernel) flip(after *kernel, s services.Step) error {
	frontends := make(map[services.Frontend]bool)
	for _, e := range s.Add {
		if f := e.Frontend; f.Port != 0 && !f.Addr.IsUnspecified() {
			frontends[f] = true
		}
	}
	for f := range frontends {
		from := netip.MustParseAddr(map[bool]string{false: "203.0.113.7", true: "2001:db8:7::7"}[f.Addr.Is6()])
		send := func(k *kernel) fate {
			return k.walk("prerouting", &packet{from: netip.AddrPortFrom(from, 40000), to: netip.AddrPortFrom(f.Addr, f.Port), proto: byte(f.Protocol), slot: 1})
		}
		if send(k.clone()) != accepted || send(after.clone()) != accepted {
			continue
		}
		for n := range 60 {
			now := k.clone()
			now.next, now.lookups = after.sets, n
			if got := send(now); got != accepted && got != dropped {
				return fmt.Errorf("%s: %v is visible after %d lookups, and a packet gets %d", f, s, n, got)
			}
		}
	}
	return nil
}

// forget does what Enforcer.forget does.
func (e *engine) forget(c services.Change) {
	if len(c.Forget)+len(c.Moved) == 0 {
		return
	}
	o := owed{moved: c.Moved}
	for _, ipv6 := range []bool{false, true} {
		for key, data := range e.kernel.sets[nft.AffinityMap(ipv6)] {
			if k, ok := memoryOf([]byte(key), data, ipv6); !ok || o.hasMoved(k.From) || !e.program.Remembers(k) {
				delete(e.kernel.sets[nft.AffinityMap(ipv6)], key)
			}
		}
	}
}

// Decide asks the rules and the program, which must agree.
func (e *engine) Decide(q servicetest.Packet) (servicetest.Answer, error) {
	proto, err := l4.Parse(q.Protocol)
	if err != nil {
		return servicetest.Answer{}, err
	}
	byRules, err := e.walk(q, proto)
	if err != nil {
		return byRules, err
	}
	k := services.Packet{From: q.From, To: q.To, Protocol: proto}
	if to, ok := e.kernel.has(nft.AffinityMap(q.From.Is6()), memoryKey(q, proto)); ok {
		r := reader{to, true}
		k.Remembered = netip.AddrPortFrom(r.addr(q.From.Is6()), r.port())
	}
	if byProgram := answer(e.program.Verdict(k)); !reflect.DeepEqual(byProgram, byRules) {
		return byRules, fmt.Errorf("the program says %s, the rules %s", byProgram, byRules)
	}
	return byRules, nil
}

// walk sends a packet through the chains, once for each slot that a rule may draw.
func (e *engine) walk(q servicetest.Packet, proto l4.Protocol) (a servicetest.Answer, err error) {
	most := uint32(1)
	for slot := uint32(0); slot < most; slot++ {
		p := &packet{from: netip.AddrPortFrom(q.From, 40000), to: q.To, original: q.To, proto: byte(proto), slot: slot}
		switch e.kernel.walk("prerouting", p) {
		case dropped:
			a.What = "drop"
		case rejected:
			a.What = "reject"
		case accepted:
			a.What = "endpoints"
			if err = e.after(&a, p); err != nil {
				return a, err
			}
		default:
			a.What = "pass"
		}
		most = max(most, p.most)
	}
	slices.SortFunc(a.To, func(x, y servicetest.To) int { return x.Endpoint.Compare(y.Endpoint) })
	a.To = slices.Compact(a.To)
	return a, nil
}

// after sends a translated packet through the chain postrouting.
func (e *engine) after(a *servicetest.Answer, p *packet) error {
	e.kernel.walk("postrouting", p)
	a.To = append(a.To, servicetest.To{Endpoint: p.to, Masquerade: p.masquerade})
	a.Seconds = int(p.timeout / time.Second)
	if p.remember != "" {
		k, ok := memoryOf([]byte(p.remember), []byte(p.endpoint), p.from.Addr().Is6())
		if want := (services.Packet{From: p.from.Addr(), To: p.original, Protocol: l4.Protocol(p.proto), Remembered: p.to}); !ok || k != want {
			return fmt.Errorf("the rules remember %+v, not %+v", k, want)
		}
	}
	return nil
}

func answer(v services.Verdict) servicetest.Answer {
	a := servicetest.Answer{What: [...]string{"pass", "endpoints", "reject", "drop"}[v.Action]}
	if v.Action == services.Translated {
		a.Seconds = int(v.Affinity)
	}
	for _, to := range v.To {
		a.To = append(a.To, servicetest.To(to))
	}
	slices.SortFunc(a.To, func(x, y servicetest.To) int { return x.Endpoint.Compare(y.Endpoint) })
	return a
}

// Remember is what a rule writes.
func (e *engine) Remember(q servicetest.Packet, to netip.AddrPort) {
	proto, err := l4.Parse(q.Protocol)
	if err != nil {
		return
	}
	set := nft.AffinityMap(q.From.Is6())
	if e.kernel.sets[set] == nil {
		e.kernel.sets[set] = make(map[string][]byte)
	}
	e.kernel.sets[set][string(memoryKey(q, proto))] = appendPort(appendAddr(nil, to.Addr()), to.Port())
}

func memoryKey(q servicetest.Packet, proto l4.Protocol) []byte {
	return appendPort(append(appendAddr(appendAddr(nil, q.From), q.To.Addr()), byte(proto), 0, 0, 0), q.To.Port())
}

// Checks returns the health checks.
func (e *engine) Checks() (list []servicetest.Check) {
	for _, h := range e.program.Health() {
		list = append(list, servicetest.Check{Service: h.Service.String(), Port: int(h.Port), V6: h.IPv6, Local: h.Local})
	}
	return list
}

// stateOf reads a cluster as the API serves it. Its addresses and ranges of the node can be read.
func stateOf(c servicetest.Cluster) (*services.State, error) {
	s := &services.State{Services: make(map[services.Name]*services.Service), Slices: make(map[services.Name][]*services.Slice)}
	s.Options.ProxyName, s.Options.IgnoreExternalIPs, s.Options.MasqueradeAll = c.Flags.ProxyName, c.Flags.IgnoreExternalIPs, c.Flags.MasqueradeAll
	for _, a := range c.Links {
		s.Addresses = append(s.Addresses, netip.MustParseAddr(a))
	}
	for _, r := range c.ServiceCIDRs {
		s.CIDRs = append(s.CIDRs, netip.MustParsePrefix(r).Masked())
	}
	for _, r := range c.Flags.NodePortAddresses {
		s.Options.NodePorts = append(s.Options.NodePorts, netip.MustParsePrefix(r).Masked())
	}
	var err error
	if s.Node, err = parsed(c.Node, services.ParseNode); err != nil {
		return nil, err
	}
	for _, o := range c.Services {
		svc, err := parsed(o, services.ParseService)
		if err != nil {
			return nil, err
		}
		s.Services[svc.Name] = &svc
	}
	for _, o := range c.Slices {
		slice, err := parsed(o, services.ParseSlice)
		if err != nil {
			return nil, err
		}
		s.Slices[slice.Service] = append(s.Slices[slice.Service], &slice)
	}
	return s, nil
}

func parsed[A, T any](object A, parse func([]byte) (T, error)) (T, error) {
	text, err := json.Marshal(object)
	if err != nil {
		panic(err) // plain values
	}
	return parse(text)
}
