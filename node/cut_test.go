// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"errors"
	"net"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
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
	flows, err := netlink.ConntrackTableList(netlink.ConntrackTable, unix.AF_INET)
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
