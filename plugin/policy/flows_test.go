// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/policy/enforce"
	"github.com/patchbay-net/patchbay/internal/policy/mirror"
	"github.com/patchbay-net/patchbay/internal/test/nettest/node"
	"github.com/patchbay-net/patchbay/spec"
)

// serving makes a pod that answers datagrams at 10.90.0.5.
func serving(t *testing.T, n *node.Node, args string) *attachment {
	a, c := routed(t, n, "c1", args, "10.90.0.5/30")
	n.Host.Address("vc1", "10.90.0.6/30")
	c.Address("eth0", "10.90.0.5/30")
	c.Default("eth0", "10.90.0.6")
	c.Serve("udp", "10.90.0.5:53")
	return a
}

// answers reports whether a connected socket gets an answer.
func answers(t *testing.T, conn net.Conn) bool {
	b := make([]byte, 64)
	for range 4 {
		_, _ = conn.Write([]byte("who?")) // an error of the datagram before
		must(t, conn.SetReadDeadline(time.Now().Add(200*time.Millisecond)))
		if _, err := conn.Read(b); err == nil {
			return true
		}
	}
	return false
}

// A client that had a connection to a former pod does not reach a closed one with the same address,
// whether an agent runs or not.
func TestFormerConnection(t *testing.T) {
	n := fresh(t)
	fw := nft.Open(t.TempDir()) // any closed pod makes the base chains, which track connections
	enforce.Close(fw, enforce.Closure{Addrs: []netip.Addr{netip.MustParseAddr("10.90.0.9")}, Close: [2]bool{true, true}}, false)
	must(t, fw.Commit(t.Context()))
	must(t, fw.Close())
	for _, runs := range []bool{true, false} {
		writeMirror(t)
		former := serving(t, n, podBank)
		former.must(t, spec.Add)
		var conn net.Conn
		must(t, n.Client.Do(func() (err error) { conn, err = net.Dial("udp", "10.90.0.5:53"); return err }))
		if !answers(t, conn) {
			t.Fatal("the former pod does not answer")
		}
		former.del(t)
		n.Host.Delete("vc1")

		writeMirror(t, ingress)
		unlock := func() {}
		if runs {
			var err error
			unlock, err = durable.Lock(t.Context(), mirror.InForce(paths.Default()))
			must(t, err)
		}
		next := serving(t, n, podWeb)
		next.must(t, spec.Add)
		closedAt(t, "10.90.0.5", true, runs)
		if answers(t, conn) {
			t.Errorf("an agent runs: %v, and the closed pod answers", runs)
		}
		unlock()
		must(t, conn.Close())
		next.del(t)
		n.Host.Delete("vc1")
	}
}

// An agent that started after a pod ended knows nothing of the pod's connections: the agent before it may have been
// killed before it ended them. So the ADD of the next pod with the address ends them.
func TestFormerConnectionBeforeTheAgent(t *testing.T) {
	n := fresh(t)
	fw := nft.Open(t.TempDir()) // any closed pod makes the base chains, which track connections
	enforce.Close(fw, enforce.Closure{Addrs: []netip.Addr{netip.MustParseAddr("10.90.0.9")}, Close: [2]bool{true, true}}, false)
	must(t, fw.Commit(t.Context()))
	must(t, fw.Close())
	writeMirror(t)
	former := serving(t, n, podBank)
	former.must(t, spec.Add)
	var conn net.Conn
	must(t, n.Client.Do(func() (err error) { conn, err = net.Dial("udp", "10.90.0.5:53"); return err }))
	defer conn.Close() //nolint:errcheck // a test
	if !answers(t, conn) {
		t.Fatal("the former pod does not answer")
	}
	former.del(t)
	n.Host.Delete("vc1")
	hourAgo := stampOf(max(0, sinceBoot()-time.Hour))
	must(t, mark(paths.Default(), os.O_CREATE, []netip.Addr{netip.MustParseAddr("10.90.0.5")}, hourAgo))
	writeMirror(t, ingress)
	release, err := mirror.Hold(t.Context(), paths.Default())
	must(t, err)
	defer release()
	defer forgetFormers(t)
	next := serving(t, n, podWeb)
	next.must(t, spec.Add)
	defer next.del(t)
	closedAt(t, "10.90.0.5", true, false)
	if answers(t, conn) {
		t.Error("the closed pod answers on a connection of a pod that went before the agent started")
	}
}

// If a pod ends while the agent runs, the agent ends its connections.
func TestFormerBeforeTheAgent(t *testing.T) {
	fresh(t)
	p, a := paths.Default(), []netip.Addr{netip.MustParseAddr("10.90.0.5")}
	defer forgetFormers(t)
	must(t, mark(p, os.O_CREATE, a, stampOf(sinceBoot()-time.Minute)))
	release, err := mirror.Hold(t.Context(), p)
	must(t, err)
	defer release()
	for runs, want := range map[time.Duration]bool{0: true, 30 * time.Second: true, 2 * time.Minute: false} {
		since := time.Now().Add(-runs)
		must(t, os.Chtimes(mirror.InForce(p), since, since))
		if got := hadFormerBefore(p, a); got != want {
			t.Errorf("the pod went a minute ago and the agent has run for %v: %v", runs, got)
		}
	}
}
