// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/resident"
)

// connect makes an entry of connection tracking, as of a UDP connection that was allowed.
func connect(t *testing.T, from, to string) {
	t.Helper()
	flow := &netlink.ConntrackFlow{FamilyType: unix.AF_INET, TimeOut: 600}
	flow.Forward = netlink.IPTuple{Protocol: unix.IPPROTO_UDP, SrcIP: net.ParseIP(from).To4(), SrcPort: 1024, DstIP: net.ParseIP(to).To4(), DstPort: 53}
	flow.Reverse = netlink.IPTuple{Protocol: unix.IPPROTO_UDP, SrcIP: flow.Forward.DstIP, SrcPort: 53, DstIP: flow.Forward.SrcIP, DstPort: 1024}
	must(t, netlink.ConntrackCreate(netlink.ConntrackTable, unix.AF_INET, flow))
}

func connected(t *testing.T, from string) bool {
	t.Helper()
	flows, err := nl.Retry(func() ([]*netlink.ConntrackFlow, error) {
		return netlink.ConntrackTableList(netlink.ConntrackTable, unix.AF_INET)
	})
	must(t, err)
	for _, f := range flows {
		if f.Forward.SrcIP.String() == from {
			return true
		}
	}
	return false
}

// The agent ends connections that a policy denies, a moment after the policy is in force. Others stay, also when pods
// of other nodes start.
func TestAgentEndsConnections(t *testing.T) {
	l := newPolicyLab(t)
	l.pod("n1", "web", "app=web", webAddr)
	l.pod("n2", "friend", "app=friend", "10.244.2.5")
	l.pod("n2", "other", "app=other", "10.244.2.6")
	l.start()
	l.await("a program", func() bool { return l.programs() > 0 })
	connect(t, "10.244.2.5", webAddr)
	connect(t, "10.244.2.6", webAddr)
	t.Cleanup(func() { must(t, netlink.ConntrackTableFlush(netlink.ConntrackTable)) })
	l.policy("web", `{"podSelector":{"matchLabels":{"app":"web"}},"ingress":[{"from":[{"podSelector":{"matchLabels":{"app":"friend"}}}]}]}`)
	l.await("the end of the connection", func() bool { return !connected(t, "10.244.2.6") })
	l.pod("n2", "new", "app=friend", "10.244.2.7")
	l.await("a cut, if there is one", func() bool { return len(l.Agent.policy.uncut) == 0 })
	if !connected(t, "10.244.2.5") {
		t.Error("a connection that the policy allows ended")
	}
}

// A cut that works ends the problem of one that failed.
func TestCutEndsItsProblem(t *testing.T) {
	l := newPolicyLab(t)
	l.start()
	l.await("a program", func() bool { return l.programs() > 0 })
	l.trouble.set(connectionsUncut, errors.New("no memory"))
	if l.trouble.mine()[connectionsUncut] == "" {
		t.Error("no problem")
	}
	l.pod("n1", "web", "app=web", webAddr)
	l.policy("web", forWeb)
	l.await("the end of the problem", func() bool { return l.trouble.mine()[connectionsUncut] == "" })
}

// An agent that ends has ended the connections that its last program denies: the next agent may come minutes later.
func TestAgentCutsAtItsEnd(t *testing.T) {
	l := newPolicyLab(t)
	l.pod("n1", "web", "app=web", webAddr)
	l.start()
	l.await("a program", func() bool { return l.programs() > 0 })
	connect(t, "10.244.2.6", webAddr)
	t.Cleanup(func() { must(t, netlink.ConntrackTableFlush(netlink.ConntrackTable)) })
	l.policy("other", `{"podSelector":{"matchLabels":{"app":"other"}}}`)
	l.await("a cut, after which the next one waits", func() bool { return l.programs() > 1 && len(l.Agent.policy.uncut) == 0 })
	before := l.programs()
	l.policy("web", forWeb)
	l.await("the policy", func() bool { return l.programs() > before })
	l.stop()
	if connected(t, "10.244.2.6") {
		t.Error("a connection that the policy denies lives")
	}
}

// However fast policies change, the connections are read at most once a second, whether that works or fails, and
// however long it takes. The first comes at once, and the last change is not forgotten.
func TestOneLookASecond(t *testing.T) {
	for name, c := range map[string]struct {
		takes time.Duration
		err   error
	}{"quick": {0, nil}, "slow": {1200 * time.Millisecond, nil}, "failing": {10 * time.Millisecond, errors.New("no memory")}} {
		t.Run(name, func(t *testing.T) { synctest.Test(t, func(t *testing.T) { lookAndCount(t, c.takes, c.err) }) })
	}
}

func lookAndCount(t *testing.T, takes time.Duration, fails error) {
	began, changes := time.Now(), make(chan struct{}, 1)
	var looks []time.Duration // when they began, and when they ended
	look := func() error {
		now := time.Since(began)
		if n := len(looks); n > 0 && now-looks[n-1] < time.Second {
			t.Errorf("a look came %v after the one before", now-looks[n-1])
		}
		time.Sleep(takes)
		looks = append(looks, now, time.Since(began))
		return fails
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		eachOnce(ctx, changes, cutEvery, look)
	}()
	var last time.Duration // a change
	for last < 10*time.Second {
		last = time.Since(began)
		resident.Signal(changes)
		time.Sleep(3 * time.Millisecond)
	}
	time.Sleep(2*cutEvery + 2*takes)
	passed := time.Since(began)
	cancel()
	<-ended
	if n, most := len(looks)/2, int(passed/(cutEvery+takes))+1; n > most || n < most-2 {
		t.Errorf("%d looks in %v, want %d", n, passed, most)
	}
	if looks[0] != 0 {
		t.Errorf("the first look came after %v", looks[0])
	}
	if begin := looks[len(looks)-2]; begin < last {
		t.Errorf("the last look came at %v, the last change at %v", begin, last)
	}
}

// An agent reads all connections only in order to end some of them: during a stream of changes that each deny
// something, it reads them at the beginning, and then once a second.
func TestAgentLooksOnceASecond(t *testing.T) {
	l := newPolicyLab(t)
	l.looks = new(atomic.Int32)
	l.pod("n1", "web", "app=web", webAddr)
	l.start()
	l.await("a program", func() bool { return l.programs() > 0 })
	began := time.Now()
	for i := range 10 {
		before := l.programs()
		l.policy("web", fmt.Sprintf(`{"podSelector":{"matchLabels":{"app":"web"}},"ingress":[{"from":[{"ipBlock":{"cidr":"192.0.2.%d/32"}}]}]}`, i))
		l.await("the change", func() bool { return l.programs() > before })
	}
	l.await("a look", func() bool { return l.looks.Load() > 0 })
	if n, most := l.looks.Load(), int32(time.Since(began)/cutEvery)+2; n > most { // one read was for the program before
		t.Errorf("%d looks in %v, want %d at most", n, time.Since(began), most)
	}
}
