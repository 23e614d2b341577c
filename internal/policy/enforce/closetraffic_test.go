// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/policy"
)

// While an ADD closes a pod and the agent opens it, no packet arrives that the pod's policy denies. A
// connection of another pod that is allowed goes on.
func TestCloseThenOpen(t *testing.T) {
	p := newPair(t, Options{})
	p.serve(":80")
	p.serve(":81")
	listen(t, p.client, ":80")
	none, web := policy.Compile(shop(t)), policy.Compile(shop(t, onB+fromA80+"]}"))
	server, key := closureOf("c2", addrs("10.1.1.2", "fd01::1:2")...)
	known := map[netip.Addr]owner.Key{server.Addrs[0]: key, server.Addrs[1]: key}
	load := func(program *policy.Program) {
		must(t, p.node.Do(func() error { return p.enforcer.Load(t.Context(), program, known) }))
	}
	load(none)
	conn := p.dial("10.1.1.2:80")
	defer conn.Close() //nolint:errcheck // a test
	for range 10 {
		must(t, p.node.Do(func() error {
			Close(p.enforcer.fw, server, false)
			return p.enforcer.fw.Commit(t.Context())
		}))
		for _, port := range []string{":80", ":81"} {
			if p.answersWithin(p.client, "10.1.1.2"+port, 5*time.Millisecond) || p.answersWithin(p.client, "[fd01::1:2]"+port, 5*time.Millisecond) {
				t.Fatalf("the pod is closed and answers at %s", port)
			}
		}
		if p.answersWithin(p.server, "10.1.1.1:80", 5*time.Millisecond) {
			t.Fatal("the pod is closed and reaches another")
		}
		probed := make(chan bool)
		go func() {
			leaked := false
			for range 20 {
				leaked = leaked || p.answersWithin(p.client, "10.1.1.2:81", 5*time.Millisecond)
			}
			probed <- leaked
		}()
		load(web)
		if !conn.asks(5 * time.Second) {
			t.Fatal("a connection that is allowed was cut")
		}
		if <-probed {
			t.Fatal("a connection that is denied passed")
		}
		if !p.answers(p.client, "10.1.1.2:80", true) {
			t.Fatal("the pod is not open for what its policy allows")
		}
		load(none)
		if !p.answers(p.server, "10.1.1.1:80", true) {
			t.Fatal("the pod is open and does not reach another")
		}
	}
}

// A closed pod answers its node, and finds its neighbours.
func TestClosedButItsNode(t *testing.T) {
	w := newTown(t)
	p := w.pair(Options{}, w.resolving)
	p.serve(":80")
	listen(t, p.node, ":80")
	a, _ := closureOf("c2", addrs("10.1.1.2", "fd01::1:2")...)
	must(t, p.node.Do(func() error {
		Close(p.enforcer.fw, a, false)
		return p.enforcer.fw.Commit(t.Context())
	}))
	nodeHas(t, p, "10.9.0.1", "fd09::1")
	if p.answersWithin(p.server, "10.9.0.1:80", 5*time.Millisecond) {
		t.Error("the pod reaches its node")
	}
	for _, addr := range []string{"10.1.1.2:80", "[fd01::1:2]:80"} {
		conn := p.dialFrom(p.node, addr)
		if !conn.asks(5 * time.Second) {
			t.Errorf("the node does not reach %s", addr)
		}
		must(t, conn.Close())
	}
	must(t, p.node.Do(func() error {
		Reopen(p.enforcer.fw, a)
		return p.enforcer.fw.Commit(t.Context())
	}))
	if !p.answersWithin(p.server, "10.9.0.1:80", 5*time.Second) {
		t.Error("the pod is open and does not reach its node")
	}
}

// listen accepts connections.
func listen(t *testing.T, h *house, addr string) {
	t.Helper()
	var l net.Listener
	must(t, h.Do(func() (err error) { l, err = net.Listen("tcp", addr); return err }))
	t.Cleanup(func() { l.Close() }) //nolint:errcheck // a test
}
