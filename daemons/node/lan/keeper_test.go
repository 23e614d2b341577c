// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package lan

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	served "github.com/patchbay-net/patchbay/daemons/node/services"
)

// owners returns which nodes answer for an address at this moment.
func owners(nodes []*fakeNode, a netip.Addr) (list []string) {
	for _, n := range nodes {
		if n.answers(a) {
			list = append(list, n.name)
		}
	}
	return list
}

// cluster is a server with three nodes, and pools of both families.
func cluster(t *testing.T, seed uint64, lag time.Duration, services int) (*fakeServer, []*fakeNode) {
	s := newServer(t, seed, lag)
	s.pools("192.0.2.10-192.0.2.30\n2001:db8::10-2001:db8::30")
	for i := range services {
		s.service(fmt.Sprint("web", i), "", "")
	}
	var nodes []*fakeNode
	for _, name := range []string{"a", "b", "c"} {
		s.node(name, "")
		nodes = append(nodes, s.start(name))
	}
	return s, nodes
}

func end(nodes []*fakeNode) {
	for _, n := range nodes {
		n.kill()
	}
}

// until waits until something is so, and fails after a time.
func until(t *testing.T, limit time.Duration, what string, so func() bool) time.Duration {
	t.Helper()
	began := time.Now()
	for !so() {
		if time.Since(began) > limit {
			t.Fatalf("after %v: not %s", limit, what)
		}
		time.Sleep(5 * time.Millisecond)
	}
	return time.Since(began)
}

// TestFailover: when a node dies, another one answers for its addresses within 3 s, and for none meanwhile two.
func TestFailover(t *testing.T) {
	longest := time.Duration(0)
	for seed := range uint64(50) {
		synctest.Test(t, func(t *testing.T) {
			s, nodes := cluster(t, seed, 150*time.Millisecond, 3)
			defer func() { end(nodes) }()
			until(t, 5*time.Second, "all Services have two addresses", func() bool {
				return !slices.ContainsFunc(values(s.statuses()), func(l []netip.Addr) bool { return len(l) != 2 })
			})
			a := s.statuses()["shop/web0"][0]
			until(t, 5*time.Second, "an owner", func() bool { return len(owners(nodes, a)) == 1 })
			time.Sleep(time.Duration(seed) * 20 * time.Millisecond)
			i := slices.IndexFunc(nodes, func(n *fakeNode) bool { return n.answers(a) })
			began := time.Now()
			go nodes[i].kill()
			synctest.Wait()
			until(t, 3*time.Second, "another owner", func() bool { return len(owners(nodes, a)) == 1 })
			longest = max(longest, time.Since(began))
			before := s.statuses()
			time.Sleep(time.Second)
			if now := s.statuses(); fmt.Sprint(before) != fmt.Sprint(now) {
				t.Errorf("addresses changed from %v to %v", before, now)
			}
		})
	}
	t.Logf("the longest failover took %v", longest)
}

func values[K comparable, V any](m map[K]V) (list []V) {
	for _, v := range m {
		list = append(list, v)
	}
	return list
}

// TestStop: a node that is stopped hands its addresses over at once.
func TestStop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, nodes := cluster(t, 1, 20*time.Millisecond, 1)
		defer func() { end(nodes) }()
		var a netip.Addr
		until(t, 5*time.Second, "an owner", func() bool {
			if l := s.statuses()["shop/web0"]; len(l) == 2 {
				a = l[0]
			}
			return len(owners(nodes, a)) == 1
		})
		i := slices.IndexFunc(nodes, func(n *fakeNode) bool { return n.answers(a) })
		nodes[i].stop()
		until(t, 600*time.Millisecond, "another owner", func() bool { return len(owners(nodes, a)) == 1 })
	})
}

// TestSilence: a node that no longer reaches the API server answers for nothing when its Lease has ended, and again when it has come back.
func TestSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, nodes := cluster(t, 2, 20*time.Millisecond, 1)
		defer func() { end(nodes) }()
		until(t, 5*time.Second, "a status", func() bool { return len(s.statuses()["shop/web0"]) == 2 })
		a := s.statuses()["shop/web0"][0]
		setCut := func(cut bool) {
			s.mu.Lock()
			defer s.mu.Unlock()
			for _, n := range nodes {
				n.cut = cut
			}
		}
		setCut(true)
		until(t, Lasts, "silent", func() bool { return len(owners(nodes, a)) == 0 })
		until(t, 2*time.Second, "planned so", func() bool { // else the address would not be announced again
			return !slices.ContainsFunc(nodes, func(n *fakeNode) bool { p, _ := n.Status(); return len(p.Announce) > 0 })
		})
		time.Sleep(time.Minute)
		if list := owners(nodes, a); len(list) > 0 {
			t.Errorf("without the API server, %v answer", list)
		}
		setCut(false)
		until(t, 3*time.Second, "an owner", func() bool { return len(owners(nodes, a)) == 1 })
	})
}

// TestQuiet: nodes without addresses write nothing, and the owners one renewal each half second.
func TestQuiet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, nodes := cluster(t, 3, 20*time.Millisecond, 0)
		defer func() { end(nodes) }()
		time.Sleep(time.Minute)
		if s.requests() != 0 {
			t.Errorf("%d requests without a Service", s.requests())
		}
		s.service("web", "", "")
		time.Sleep(10 * time.Second)
		before := s.requests()
		time.Sleep(time.Minute)
		if n := s.requests() - before; n > 2*130 {
			t.Errorf("%d requests in a minute, with at most two owners", n)
		}
		s.remove(served.Services, "shop/web")
		time.Sleep(10 * time.Second)
		before = s.requests()
		time.Sleep(time.Minute)
		if left := s.objectsOf(Leases); s.requests() != before || len(left) > 0 {
			t.Errorf("after the last Service, %d requests, and the Leases %v are left", s.requests()-before, left)
		}
	})
}

// requests returns the number of requests that change something.
func (s *fakeServer) requests() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.writes
}

func (s *fakeServer) objectsOf(k Kind) (names []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.objects {
		if o.kind == k {
			names = append(names, o.name)
		}
	}
	return names
}

// TestLocal: with externalTrafficPolicy Local only a node with a ready endpoint answers. Where there is none, none does, and the address stays.
func TestLocal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, nodes := cluster(t, 4, 20*time.Millisecond, 0)
		defer func() { end(nodes) }()
		s.slice("web")
		s.service("web", `,"externalTrafficPolicy":"Local"`, "")
		until(t, 5*time.Second, "a status", func() bool { return len(s.statuses()["shop/web"]) == 2 })
		addrs := s.statuses()["shop/web"]
		time.Sleep(time.Second)
		for _, at := range [][]string{{}, {"a"}, {"b"}, {"c"}, {"b"}, {}} {
			s.slice("web", at...)
			until(t, 2*time.Second, fmt.Sprint("answered by ", at), func() bool {
				return slices.Equal(owners(nodes, addrs[0]), at) && slices.Equal(owners(nodes, addrs[1]), at)
			})
		}
		if now := s.statuses()["shop/web"]; !slices.Equal(now, addrs) {
			t.Errorf("the addresses changed from %v to %v", addrs, now)
		}
	})
}

// TestExcluded: a Node with the label answers for nothing.
func TestExcluded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, nodes := cluster(t, 5, 20*time.Millisecond, 6)
		defer func() { end(nodes) }()
		time.Sleep(5 * time.Second)
		for _, n := range []string{"a", "b"} {
			s.node(n, `,"labels":{"node.kubernetes.io/exclude-from-external-load-balancers":""}`)
		}
		time.Sleep(5 * time.Second)
		for name, list := range s.statuses() {
			for _, a := range list {
				if got := owners(nodes, a); !slices.Equal(got, []string{"c"}) {
					t.Errorf("%s of %s is answered by %v", a, name, got)
				}
			}
		}
	})
}

// TestChaos: whatever is lost or late, at most one node answers for an address, and no address is two Services'. When all is well again,
// each Service has its addresses, and they are answered for.
func TestChaos(t *testing.T) {
	for seed := range uint64(chaosRuns) {
		synctest.Test(t, func(t *testing.T) { chaos(t, seed) })
	}
}

const chaosRuns = 20

func chaos(t *testing.T, seed uint64) {
	s, nodes := cluster(t, seed, 3*time.Second, 4)
	defer func() { end(nodes) }()
	stop := make(chan struct{})
	checked := make(chan struct{})
	go func() { // every few milliseconds
		defer close(checked)
		for {
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Millisecond):
			}
			s.check(seed)
		}
	}()
	r := s.rand
	draw := func(n int) int { s.mu.Lock(); defer s.mu.Unlock(); return r.IntN(n) }
	for range 60 {
		time.Sleep(time.Duration(draw(1500)) * time.Millisecond)
		i := draw(len(nodes))
		switch draw(8) {
		case 0:
			name := nodes[i].name
			nodes[i].kill()
			nodes[i] = s.start(name)
		case 1:
			name := nodes[i].name
			nodes[i].stop()
			nodes[i] = s.start(name)
		case 2, 3:
			s.mu.Lock()
			nodes[i].cut = !nodes[i].cut
			s.mu.Unlock()
		case 4:
			s.remove(served.Services, fmt.Sprint("shop/web", draw(4)))
		case 5:
			s.service(fmt.Sprint("web", draw(4)), "", "")
		case 6:
			s.service(fmt.Sprint("web", draw(4)), "", fmt.Sprintf(`"patchbay.net/load-balancer-ips":"192.0.2.%d"`, 10+draw(5)))
		case 7:
			name := fmt.Sprint("web", draw(4))
			s.service(name, `,"externalTrafficPolicy":"Local"`, "")
			s.slice(name, nodes[i].name)
		}
	}
	s.mu.Lock()
	s.lag = 50 * time.Millisecond
	for _, n := range nodes {
		n.cut = false
	}
	s.mu.Unlock()
	for i := range 4 {
		s.service(fmt.Sprint("web", i), "", "")
	}
	time.Sleep(15 * time.Second)
	s.checkStatus(seed)
	for name, list := range s.statuses() {
		if len(list) != 2 {
			t.Errorf("seed %d: %s has %v", seed, name, list)
		}
		for _, a := range list {
			if got := owners(nodes, a); len(got) != 1 {
				t.Errorf("seed %d: %s of %s is answered by %v", seed, a, name, got)
			}
		}
	}
	close(stop)
	<-checked
}

// check fails if two nodes answer for an address, or two Services have one by status and Lease.
func (s *fakeServer) check(seed uint64) {
	s.mu.Lock()
	nodes := slices.Clone(s.nodes)
	s.mu.Unlock()
	by := map[netip.Addr]string{}
	for _, n := range nodes {
		g := n.grant.Load()
		if g == nil {
			continue
		}
		for a := range g.addrs {
			if !n.answers(a) {
				continue
			}
			if by[a] != "" {
				s.t.Errorf("seed %d: %s and %s answer for %s", seed, by[a], n.name, a)
			}
			by[a] = n.name
		}
	}
}

// checkStatus fails if two Services have one address.
func (s *fakeServer) checkStatus(seed uint64) {
	seen := map[netip.Addr]string{}
	for name, list := range s.statuses() {
		for _, a := range list {
			if seen[a] != "" {
				s.t.Errorf("seed %d: %s is of %s and %s", seed, a, name, seen[a])
			}
			seen[a] = name
		}
	}
}
