// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package servicetest

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/patchbay-net/patchbay/internal/test/draw"
)

// Engine is what Compare tests. Compare loads one state of a cluster after the other into the same engine, and asks after each.
type Engine interface {
	// Load makes this the state, and returns the UDP frontends whose flows are now to be compared.
	Load(Cluster) ([]Flow, error)
	// Decide answers for a packet.
	Decide(Packet) (Answer, error)
	// Remember makes the client of a packet one who was sent to an endpoint, because its answer has affinity.
	Remember(Packet, netip.AddrPort)
	// Checks returns the health checks, sorted as those of a Cluster.
	Checks() []Check
}

// Plan says what Compare does.
type Plan struct {
	Seed    uint64 // determines all clusters and packets; 0 stands for that of internal/test/draw
	Tables  int    // how many states of clusters
	States  int    // of one cluster, between which it changes; 0 stands for 6
	Packets int    // for each state; 0 stands for 150
}

// Compare fails the test if the engine and the oracle differ. PATCHBAY_SEED, with the seed that it prints, repeats it.
func Compare(t testing.TB, newEngine func() Engine, plan Plan) {
	t.Helper()
	if plan.Seed == 0 {
		plan.Seed, _ = draw.Seed(t)
	}
	wrong, tables := Find(newEngine, plan)
	if wrong != "" {
		t.Fatalf("table %d differs: %s", tables, wrong)
	}
	t.Logf("seed %d: %d tables without a difference", plan.Seed, tables)
}

// Find returns the first difference, or "", and the number of tables up to it.
func Find(newEngine func() Engine, plan Plan) (wrong string, tables int) {
	if plan.States == 0 {
		plan.States = 6
	}
	if plan.Packets == 0 {
		plan.Packets = 150
	}
	for seed := plan.Seed; tables < plan.Tables; seed++ {
		h := &history{engine: newEngine(), g: newGenerator(seed), memories: make(map[memory]side)}
		for range min(plan.States, plan.Tables-tables) {
			tables++
			if wrong := h.next(plan.Packets); wrong != "" {
				state, err := json.MarshalIndent(h.g.Cluster, "", "  ")
				return fmt.Sprintf("%s=%d finds first: %s\nin the state (%v)\n%s", draw.SeedEnv, seed, wrong, err, state), tables
			}
		}
	}
	return "", tables
}

// history is a cluster that changes, and what the oracle remembers of it.
type history struct {
	engine   Engine
	g        *generator
	flows    []Flow
	loaded   bool
	memories map[memory]side
}

// memory says that a client was sent to an endpoint.
type memory struct {
	packet   Packet
	endpoint netip.AddrPort
}

// side is what the client was to this node when it was sent.
type side struct{ pod, node bool }

// next changes the cluster, and returns what is wrong then.
func (h *history) next(packets int) string {
	if h.loaded {
		h.g.change()
	}
	h.loaded = true
	c := h.g.clone()
	flows, err := h.engine.Load(h.g.clone())
	if err != nil {
		return "Load: " + err.Error()
	}
	if want := h.changedFlows(c); !slices.EqualFunc(flows, want, Flow.equal) {
		return fmt.Sprintf("flows to compare: got %v, want %v", flows, want)
	}
	if got, want := h.engine.Checks(), c.Checks(); !slices.Equal(got, want) {
		return fmt.Sprintf("health checks: got %v, want %v", got, want)
	}
	h.forget(c)
	for range packets {
		if wrong := h.ask(c, h.g.packet()); wrong != "" {
			return wrong
		}
	}
	return ""
}

// ask compares the answers about a packet, and lets its client remember one of its endpoints.
func (h *history) ask(c Cluster, p Packet) string {
	want := c.Decide(p, h.remembers(p))
	got, err := h.engine.Decide(p)
	if err != nil {
		return fmt.Sprintf("%s: %v", p, err)
	}
	if !got.equal(want) {
		return fmt.Sprintf("%s: got %s, want %s", p, got, want)
	}
	if want.Seconds > 0 && len(want.To) > 0 {
		to := pick(h.g, want.To...).Endpoint
		if !h.remembers(p)(to) {
			h.memories[memory{p, to}] = c.sideOf(p.From)
			h.engine.Remember(p, to)
		}
	}
	return ""
}

func (h *history) remembers(p Packet) func(netip.AddrPort) bool {
	return func(e netip.AddrPort) bool { _, ok := h.memories[memory{p, e}]; return ok }
}

// forget lets clients forget endpoints to which they would not be sent now, and everything where there is no affinity. A client
// that becomes or stops being a pod of this node, or an address of it, forgets all. A node port is remembered even while its address has none.
func (h *history) forget(c Cluster) {
	for m, was := range h.memories {
		if was != c.sideOf(m.packet.From) || !c.stillUsed(m) {
			delete(h.memories, m)
		}
	}
}

func (c *Cluster) stillUsed(m memory) bool {
	met := c.meets(m.packet)
	if met == nil {
		everywhere := m.packet
		everywhere.To = netip.AddrPortFrom(unspecified(m.packet.To.Addr().Is6()), m.packet.To.Port())
		met = c.meetsAny(everywhere)
	}
	if met == nil || met.service.Spec.SessionAffinity != "ClientIP" {
		return false
	}
	met.in = c
	return slices.Contains(met.usable(m.packet.From), m.endpoint)
}

func (c *Cluster) sideOf(a netip.Addr) side { return side{c.isPod(a), c.isNode(a)} }

// changedFlows returns the UDP frontends that are new or have other serving endpoints than before.
func (h *history) changedFlows(c Cluster) (changed []Flow) {
	flows := c.Flows()
	for _, f := range flows {
		if !slices.ContainsFunc(h.flows, f.equal) {
			changed = append(changed, f)
		}
	}
	h.flows = flows
	return changed
}

func (f Flow) equal(other Flow) bool {
	return f.To == other.To && slices.Equal(f.Serving, other.Serving)
}

func pick[T any](g *generator, list ...T) T { return list[g.IntN(len(list))] }

func newGenerator(seed uint64) *generator {
	g := &generator{Rand: rand.New(rand.NewPCG(seed, 1))}
	g.fill()
	return g
}
