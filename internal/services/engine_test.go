// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"testing"

	"github.com/patchbay-net/patchbay/internal/l4"
	"github.com/patchbay-net/patchbay/internal/test/draw"
	"github.com/patchbay-net/patchbay/internal/test/servicetest"
)

// engine is the program of one node and the table that the changes make. The bug, if there is one, is planted into what
// goes in and comes out.
type engine struct {
	bug     bug
	state   *State
	program *Program
	table   *table
	whole   bool // the last change was that of the whole program

	restarts bool // beside the table of the last state
	loads    int
}

// bug is a mistake that Compare must find.
type bug struct {
	cluster func(*servicetest.Cluster)
	state   func(*State)
	change  func(*Change)
}

// TestEngine compares programs, and tables made by changes only, with an oracle that was written apart from them.
func TestEngine(t *testing.T) {
	servicetest.Compare(t, func() servicetest.Engine { return &engine{table: newTable(), restarts: true} },
		servicetest.Plan{Tables: draw.Number(t, "PATCHBAY_SERVICE_TABLES", 400, 6000)})
}

// Load compiles what differs. The table must then be that of the program, and the program that of a new one.
func (e *engine) Load(c servicetest.Cluster) ([]servicetest.Flow, error) {
	if e.bug.cluster != nil {
		e.bug.cluster(&c)
	}
	s, err := stateOf(c)
	if err != nil {
		return nil, err
	}
	if e.bug.state != nil {
		e.bug.state(s)
	}
	change := e.follow(s)
	if e.bug.change != nil {
		e.bug.change(&change)
	}
	if e.loads++; e.restarts && e.loads%2 == 0 {
		if err := e.checkRestart(s); err != nil {
			return nil, err
		}
	}
	if err := e.checkSteps(change); err != nil {
		return nil, err
	}
	if err := e.table.apply(change, e.program.isLocal); err != nil {
		return nil, err
	}
	if err := e.check(s); err != nil {
		return nil, err
	}
	var flows []servicetest.Flow
	for _, f := range change.Flows {
		flows = append(flows, servicetest.Flow{To: netip.AddrPortFrom(f.Frontend.Addr, f.Frontend.Port), Serving: f.Serving})
	}
	return flows, nil
}

// follow updates the program for the Services that differ, or compiles all if anything else does.
func (e *engine) follow(s *State) Change {
	last := e.state
	if e.state, e.whole = s, last == nil || !sameNode(last, s); e.whole {
		old := e.program
		e.program = Compile(s, old)
		return Diff(old, e.program)
	}
	var names []Name
	for name := range allNames(last, s) {
		if !reflect.DeepEqual(last.Services[name], s.Services[name]) || !reflect.DeepEqual(last.Slices[name], s.Slices[name]) {
			names = append(names, name)
		}
	}
	return e.program.Update(s, names...)
}

func sameNode(a, b *State) bool {
	return reflect.DeepEqual(a.Node, b.Node) && reflect.DeepEqual(a.Addresses, b.Addresses) && reflect.DeepEqual(a.Options, b.Options)
}

func allNames(states ...*State) map[Name]bool {
	all := make(map[Name]bool)
	for _, s := range states {
		for name := range s.Services {
			all[name] = true
		}
		for name := range s.Slices {
			all[name] = true
		}
	}
	return all
}

// checkSteps compares, after each step of an update, where packets go with where they went before or will go after all. How a packet
// is refused may differ meanwhile: whether an address is a cluster IP is shared.
func (e *engine) checkSteps(c Change) error {
	if e.whole {
		return nil
	}
	now, after := e.table.clone(), e.table.clone()
	if err := after.apply(c, e.program.isLocal); err != nil {
		return err
	}
	for i, step := range c.Steps {
		if err := now.step(step); err != nil {
			return err
		}
		for f := range allFrontends(e.program) {
			k := Packet{From: netip.MustParseAddr("203.0.113.7"), To: netip.AddrPortFrom(f.Addr, f.Port), Protocol: f.Protocol}
			if f.Addr.Is6() {
				k.From = netip.MustParseAddr("2001:db8:7::7")
			}
			was, is, will := e.table.walk(k), now.walk(k), after.walk(k)
			refused := is.Action != Translated && (was.Action != Translated || will.Action != Translated)
			if !refused && !is.sameAs(was) && !is.sameAs(will) {
				return fmt.Errorf("after step %d of %v, %v gives %v; before all, %v, and after all, %v", i, c.Steps, k, is, was, will)
			}
		}
	}
	return nil
}

// checkRestart starts anew beside the table that the kernel has, as it was before the change. What then differs must make it the
// table of the new program, and if nothing differs, the table stays as it is.
func (e *engine) checkRestart(s *State) error {
	have := maps.Clone(e.table.elements)
	p := CompileOver(s, have)
	now := e.table.clone()
	if err := now.apply(p.From(have), p.isLocal); err != nil {
		return fmt.Errorf("restart: %w", err)
	}
	whole := newTable()
	if err := whole.apply(Diff(nil, p), p.isLocal); err != nil {
		return err
	}
	if !maps.Equal(now.elements, whole.elements) {
		return fmt.Errorf("restarted, the table has\n%s\nthe whole program\n%s", now, whole)
	}
	if again := CompileOver(s, whole.elements).From(maps.Clone(whole.elements)); len(again.Steps) > 0 {
		return fmt.Errorf("restarted again, the same state changes %v", again.Steps)
	}
	return nil
}

// sameAs does not compare masquerade, of which some is shared.
func (v Verdict) sameAs(o Verdict) bool {
	return v.Action == o.Action && slices.EqualFunc(answer(v).To, answer(o).To, func(a, b servicetest.To) bool { return a.Endpoint == b.Endpoint })
}

// check compares the table with one loaded from nothing, and the program with a new one.
func (e *engine) check(s *State) error {
	whole := newTable()
	if err := whole.apply(Diff(nil, e.program), e.program.isLocal); err != nil {
		return fmt.Errorf("load the whole program: %w", err)
	}
	if !maps.Equal(whole.elements, e.table.elements) {
		return fmt.Errorf("the table made by changes has\n%s\nthe whole program\n%s", e.table, whole)
	}
	for _, fault := range whole.elements.Faults() {
		if fault.Kind < ClosedToAll {
			return fmt.Errorf("a table that we made has the fault %v", fault)
		}
	}
	fresh := Compile(s, nil)
	for f := range allFrontends(fresh, e.program) {
		if got, want := e.program.winner(f).text(), fresh.winner(f).text(); got != want {
			return fmt.Errorf("%s is %s; compiled anew, it is %s", f, got, want)
		}
	}
	if again := Diff(e.program, Compile(s, e.program)); len(again.Steps)+len(again.Forget)+len(again.Moved)+len(again.Flows) > 0 {
		return fmt.Errorf("compiled again, the same state changes %v", again)
	}
	return nil
}

func allFrontends(programs ...*Program) map[Frontend]bool {
	all := make(map[Frontend]bool)
	for _, p := range programs {
		for f := range p.wanted {
			all[f] = true
		}
	}
	return all
}

// text prints an entry whatever slots its endpoints have.
func (e entry) text() string {
	if e.port == nil {
		return "none"
	}
	p := *e.port
	cluster, local := slices.SortedFunc(slices.Values(p.cluster.list()), netip.AddrPort.Compare), slices.SortedFunc(slices.Values(p.local.list()), netip.AddrPort.Compare)
	rest := *p.special
	p.cluster, rest.local, p.special = "", "", nil
	return fmt.Sprintf("%d %+v %+v %v %v", e.kind, p, rest, cluster, local)
}

func (t *table) String() (text string) {
	var lines []string
	for e, to := range t.elements {
		e.Endpoint = to
		lines = append(lines, e.String())
	}
	slices.Sort(lines)
	for _, l := range lines {
		text += l + "\n"
	}
	return text
}

// Decide asks the program and the table, which must agree.
func (e *engine) Decide(p servicetest.Packet) (servicetest.Answer, error) {
	proto, err := l4.Parse(p.Protocol)
	if err != nil {
		return servicetest.Answer{}, err
	}
	k := Packet{From: p.From, To: p.To, Protocol: proto, Remembered: e.table.affinity[client{p.From, p.To, proto}]}
	byProgram, byTable := answer(e.program.Verdict(k)), answer(e.table.walk(k))
	if !reflect.DeepEqual(byProgram, byTable) {
		return byTable, fmt.Errorf("the program says %s, the table %s", byProgram, byTable)
	}
	return byProgram, nil
}

func answer(v Verdict) servicetest.Answer {
	a := servicetest.Answer{What: [...]string{"pass", "endpoints", "reject", "drop"}[v.Action], Seconds: int(v.Affinity)}
	for _, to := range v.To {
		a.To = append(a.To, servicetest.To(to))
	}
	slices.SortFunc(a.To, func(x, y servicetest.To) int { return x.Endpoint.Compare(y.Endpoint) })
	return a
}

// Remember is what the kernel writes when it translates.
func (e *engine) Remember(p servicetest.Packet, to netip.AddrPort) {
	if proto, err := l4.Parse(p.Protocol); err == nil {
		e.table.affinity[client{p.From, p.To, proto}] = to
	}
}

// Checks returns what is open for health checks.
func (e *engine) Checks() (list []servicetest.Check) {
	for _, h := range e.program.Health() {
		list = append(list, servicetest.Check{Service: h.Service.String(), Port: int(h.Port), V6: h.IPv6, Local: h.Local})
	}
	return list
}

// stateOf reads a cluster as the API serves it.
func stateOf(c servicetest.Cluster) (*State, error) {
	s := &State{
		Addresses: parseAddrs(c.Links), CIDRs: parsePrefixes(c.ServiceCIDRs), Services: make(map[Name]*Service), Slices: make(map[Name][]*Slice),
		Options: Options{c.Flags.ProxyName, parsePrefixes(c.Flags.NodePortAddresses), c.Flags.IgnoreExternalIPs, c.Flags.MasqueradeAll},
	}
	var err error
	if s.Node, err = parsed(c.Node, ParseNode); err != nil {
		return nil, err
	}
	for _, o := range c.Services {
		svc, err := parsed(o, ParseService)
		if err != nil {
			return nil, err
		}
		s.Services[svc.Name] = &svc
	}
	for _, o := range c.Slices {
		slice, err := parsed(o, ParseSlice)
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
