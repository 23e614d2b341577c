// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/daemons/internal/fabric/health"
	"github.com/patchbay-net/patchbay/daemons/node/policies"
	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/policy/enforce"
	"github.com/patchbay-net/patchbay/internal/resident"
)

// A kube-proxy in mode ipvs is a problem of a node with policies, and only of such a node.
func TestBypassed(t *testing.T) {
	l := newPolicyLab(t)
	l.pod("n1", "web", "app=web", webAddr)
	l.start()
	l.await("a program", func() bool { return l.programs() > 0 })
	ipvs := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: enforce.IPVSLink}}
	must(t, netlink.LinkAdd(ipvs))
	t.Cleanup(func() { netlink.LinkDel(ipvs) }) //nolint:errcheck // it may be gone
	says := func() string {
		l.Agent.policy.status.bypassed()
		return l.trouble.mine()[policyBypassed]
	}
	if text := says(); text != "" {
		t.Errorf("without policies: %q", text)
	}
	l.policy("web", forWeb)
	l.awaitJudged(webAddr, true)
	l.await("the problem", func() bool { return strings.HasPrefix(says(), "kube-proxy is in mode ipvs") })
	must(t, netlink.LinkDel(ipvs))
	if text := says(); text != "" {
		t.Errorf("in another mode: %q", text)
	}
}

// The agent counts as hanging if loading a program takes minutes, although its other loops go on. Here another
// process has the firewall's lock.
func TestPoliciesThatHang(t *testing.T) {
	l := newPolicyLab(t)
	l.pod("n1", "web", "app=web", webAddr)
	l.start()
	l.await("a program", func() bool { return l.programs() > 0 && l.Healthy() == nil })
	n := l.Agent.policy
	release, err := durable.Lock(t.Context(), filepath.Join(n.paths.Run, "nft.lock"))
	must(t, err)
	l.policy("web", forWeb)
	l.await("a program that waits", func() bool { return n.busy.since.Load() != 0 && n.busy.running() > 2*time.Second })
	n.busy.since.Add(-int64(2 * health.HungAfter / time.Second))
	if err := l.Healthy(); err == nil || !strings.Contains(err.Error(), "the agent hangs") {
		t.Error(err)
	}
	var took float64
	_, rest, _ := strings.Cut(httpRecorder(l.Handler(), "/metrics"), "\npatchbay_node_policy_program_running_seconds ")
	if _, err := fmt.Sscan(rest, &took); err != nil || took < health.HungAfter.Seconds() || n.busy.running() == 0 {
		t.Errorf("the metric says %v s, %v; the program runs for %v", took, err, n.busy.running())
	}
	release()
	l.awaitJudged(webAddr, true)
	l.await("no program", func() bool { return n.busy.running() == 0 && l.Healthy() == nil })
	n.busy.since.Store(time.Now().Add(-2 * health.HungAfter).Unix())
	resident.Signal(l.said)
	l.reports("AgentHangs")
}

// An address that the node gets later is one of a peer `nodes`, too.
func TestNodeAddressesOfPolicies(t *testing.T) {
	l := newPolicyLab(t)
	l.pod("n1", "web", "app=web", webAddr)
	l.kind(policies.ClusterNetworkPolicies).put(`{"metadata":{"name":"guard"},"spec":{"tier":"Admin","priority":1,"subject":{"namespaces":{}},` +
		`"egress":[{"action":"Deny","to":[{"nodes":{}}],"protocols":[{"tcp":{"destinationPort":{"number":10250}}}]}]}}`)
	l.start()
	l.awaitRange("10.244.2.1") // the other node's gateway
	lo, err := netlink.LinkByName("lo")
	must(t, err)
	virtual := &netlink.Addr{IPNet: &net.IPNet{IP: net.IPv4(198, 51, 100, 7), Mask: net.CIDRMask(32, 32)}}
	must(t, netlink.AddrAdd(lo, virtual))
	t.Cleanup(func() { netlink.AddrDel(lo, virtual) }) //nolint:errcheck // the namespace is the test's
	if moved, err := l.Agent.policy.moved(); err != nil || !moved {
		t.Errorf("moved: %v, %v", moved, err)
	}
	l.Agent.policy.cluster.Wake()
	l.awaitRange("198.51.100.7")
	if moved, err := l.Agent.policy.moved(); err != nil || moved {
		t.Errorf("moved again: %v, %v", moved, err)
	}
}

// awaitRange waits until a range set has an address.
func (l *policyLab) awaitRange(addr string) {
	l.Helper()
	l.await(addr, func() bool { return strings.Contains(l.table(), addr) })
}
