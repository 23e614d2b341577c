// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/policy"
	"github.com/patchbay-net/patchbay/internal/test/draw"
	"github.com/patchbay-net/patchbay/internal/test/policytest"
	"github.com/patchbay-net/patchbay/internal/test/policytest/api"
)

// While the kernel changes between two random states of a cluster, a stream of first packets runs.
// What both states allow always arrives, and what both deny on the same side never does.
// PATCHBAY_POLICY_TABLES is the number of pairs of states.
func TestSwitch(t *testing.T) {
	w := newTown(t)
	var fws [2]*nft.Conn
	for i := range fws {
		fws[i] = nft.Open(t.TempDir())
	}
	seed, _ := draw.Seed(t)
	pairs := policytest.Tables(t, 2, 6)
	sent, switches := 0, 0
	for n := range pairs {
		e := &engine{town: w, enforcers: [2]*Enforcer{New(fws[0], Options{}), New(fws[1], Options{})}}
		s := newStream(e, seed+uint64(n))
		must(t, s.run(12))
		sent, switches = sent+s.sent, switches+s.switches
		if len(s.wrong) > 0 {
			t.Fatalf("%s=%d: %s", draw.SeedEnv, seed+uint64(n), s.wrong[0])
		}
		must(t, e.Close())
	}
	t.Logf("seed %d: %d probes during %d changes of programs", seed, sent, switches)
}

// stream is the probes that run while a program changes.
type stream struct {
	*engine
	programs       [2][2]*policy.Program // by state, by node
	allowed, never []policytest.Probe
	ends           []policytest.Probe // of UDP, which the first state allows and the second denies
	sent, switches int
	denied         map[uint32]policytest.Probe // all that were sent and should not arrive
	wrong          []string
}

func newStream(e *engine, seed uint64) *stream {
	forgetArrivals()
	s := &stream{engine: e, denied: make(map[uint32]policytest.Probe)}
	g := policytest.NewGenerator(seed, policytest.Small)
	a := g.Clone()
	for range 3 {
		g.Change()
	}
	b := g.Clone()
	s.cluster, s.left = b, a.Addresses()
	stateA, stateB := s.compile(0, a), s.compile(1, b)
	nodesA, homesA := (&engine{cluster: a}).homes(&stateA)
	nodesB, homesB := s.homes(&stateB)
	e.town.place(nodesB, homesB)
	stays := func(x netip.Addr) bool {
		at, home := homesA[x]
		to, still := homesB[x]
		return home && still && at == to || !home && !still && nodeOf(nodesA, x) == nodeOf(nodesB, x) && nodeOf(nodesB, x) >= 0
	}
	for _, p := range a.Probes() {
		if p.From != p.To && stays(p.From) && stays(p.To) { // a pod's packets to itself meet no rule
			s.sort(p, a.Decide(p), b.Decide(p))
		}
	}
	return s
}

// compile makes the programs of both nodes for one state.
func (s *stream) compile(n int, c policytest.Cluster) policy.State {
	state, err := stateOfCluster(c)
	must(s.town.t, err)
	for i := range s.town.nodes {
		s.programs[n][i] = compileFor(&state, i)
	}
	return state
}

func nodeOf(nodes [2][]netip.Addr, a netip.Addr) int {
	for i, list := range nodes {
		for _, b := range list {
			if a == b {
				return i
			}
		}
	}
	return -1
}

// sort takes a probe if both states agree about it. A side that denies in both states also denies
// during the change. If the sides differ, the nodes may change at different times.
func (s *stream) sort(p policytest.Probe, a, b policytest.Verdict) {
	const most = 40
	if a.Allowed && !b.Allowed && p.Protocol == api.ProtocolUDP {
		s.ends = append(s.ends, p)
	}
	switch {
	case a.Allowed && b.Allowed && len(s.allowed) < most:
		s.allowed = append(s.allowed, p)
	case (!a.Egress.Allowed && !b.Egress.Allowed || !a.Ingress.Allowed && !b.Ingress.Allowed) && len(s.never) < most:
		s.never = append(s.never, p)
	}
}

// run changes between both states, so many times, while the probes run.
func (s *stream) run(times int) error {
	if err := s.load(0); err != nil {
		return err
	}
	stop, done := make(chan struct{}), make(chan error, 1)
	go func() {
		for {
			select {
			case <-stop:
				done <- nil
				return
			default:
			}
			if err := s.round(); err != nil || len(s.wrong) > 0 {
				done <- err
				return
			}
		}
	}()
	var err error
	for n := range times {
		if err = s.load(1 - n%2); err != nil {
			break
		}
		s.switches++
	}
	close(stop)
	defer s.late()
	if failed := <-done; failed != nil {
		return failed
	}
	return err
}

func (s *stream) load(state int) error {
	for i, h := range s.town.nodes {
		err := h.Do(func() error {
			err := netlink.ConntrackTableFlush(netlink.ConntrackTable) // Load looks at all entries, and each probe made one
			return errors.Join(err, s.enforcers[i].Load(s.town.t.Context(), s.programs[state][i], nil))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// late looks for probes that were denied and arrived, at any time.
func (s *stream) late() {
	time.Sleep(5 * time.Millisecond)
	for n, p := range s.denied {
		if hasArrived(n, p.To) {
			s.wrong = append(s.wrong, fmt.Sprintf("%s is denied and arrived", p))
		}
	}
}

// round sends each probe once.
func (s *stream) round() error {
	sent, denied := make(map[uint32]policytest.Probe), s.denied
	for _, list := range []struct {
		probes []policytest.Probe
		sent   map[uint32]policytest.Probe
	}{{s.never, denied}, {s.allowed, sent}} {
		for _, p := range list.probes {
			number++
			list.sent[number] = p
			if err := s.send(p, number); err != nil {
				return err
			}
		}
	}
	s.sent += len(s.allowed) + len(s.never)
	until(func() bool {
		maps.DeleteFunc(sent, func(n uint32, p policytest.Probe) bool { return hasArrived(n, p.To) })
		return len(sent) == 0
	})
	for _, p := range sent {
		s.wrong = append(s.wrong, fmt.Sprintf("%s is allowed and did not arrive", p))
	}
	return nil
}

// The labels of 20 namespaces with 2,000 pods change while connections begin. They are neither lost
// nor let through.
func TestSwitchLarge(t *testing.T) {
	p := newPair(t, Options{})
	p.serve(":80")
	p.serve(":81")
	var programs [2]*policy.Program
	for i, team := range []string{"a", "b"} {
		s := shop(t, onB+fromA80+`,{"from":[{"namespaceSelector":{"matchLabels":{"team":"a"}}}]}]}`)
		for n := range 20 {
			ns := fmt.Sprint("ns", n)
			s.Namespaces = append(s.Namespaces, policy.Namespace{Name: ns, Labels: labels("team", team)})
			for pod := range 100 {
				s.Pods = append(s.Pods, policy.Pod{Namespace: ns, Name: fmt.Sprint("p", pod), Node: "n2", Phase: "Running",
					Addresses: addrs(fmt.Sprintf("10.2.%d.%d", n, pod), fmt.Sprintf("fd02::%d:%d", n, pod))})
			}
		}
		programs[i] = policy.Compile(s)
	}
	must(t, p.node.Do(func() error { return p.enforcer.Load(t.Context(), programs[1], nil) }))
	done := make(chan error, 1)
	go func() {
		var err error
		for n := 0; n < 12 && err == nil; n++ {
			err = p.node.Do(func() error { return p.enforcer.Load(t.Context(), programs[n%2], nil) })
		}
		done <- err
	}()
	for n := 0; ; n++ {
		select {
		case err := <-done:
			must(t, err)
			t.Logf("%d connections during 12 changes", n)
			return
		default:
		}
		start := time.Now()
		if !p.answers(p.client, "10.1.1.2:80", true) || time.Since(start) > 900*time.Millisecond { // a lost SYN is repeated after a second
			t.Fatal("a connection that is allowed was dropped")
		}
		if p.answersWithin(p.client, "10.1.1.2:81", 5*time.Millisecond) {
			t.Fatal("a connection that is denied passed")
		}
	}
}
