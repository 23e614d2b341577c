// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"net"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/daemons/internal/nflog"
	"github.com/patchbay-net/patchbay/internal/drops"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/policy"
	"github.com/patchbay-net/patchbay/internal/policy/enforce"
	"github.com/patchbay-net/patchbay/internal/sight"
)

const dropsGroup = 9472

// dropsLab is a node whose agent tells dropped packets, with real pods.
type dropsLab struct {
	*churn
	socket string
}

func newDropsLab(t *testing.T) *dropsLab {
	socket := filepath.Join(t.TempDir(), "drops.sock")
	return &dropsLab{socket: socket, churn: newChurn(t, func(o *Options) {
		l, err := net.Listen("unix", socket)
		must(t, err)
		o.NetworkPolicy.DropsGroup, o.NetworkPolicy.DropsListener = dropsGroup, l
	})}
}

// send sends datagrams from a pod, each to the next port.
func (c *dropsLab) send(from *churnPod, source, to netip.Addr, first, n int) {
	c.Helper()
	must(c.T, from.ns.Do(func() error {
		l, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(source, 0)))
		if err != nil {
			return err
		}
		defer l.Close() //nolint:errcheck // a test
		for port := range n {
			if _, err := l.WriteToUDPAddrPort([]byte("x"), netip.AddrPortFrom(to, uint16(first+port))); err != nil {
				return err
			}
		}
		return nil
	}))
}

// ask returns what the agent tells, and its totals.
func (c *dropsLab) ask() (list []drops.Drop, totals drops.Totals) {
	c.Helper()
	must(c.T, sight.Ask(c.Context(), c.socket, drops.Request{}, func(l drops.Line) error {
		switch {
		case l.Error != "":
			c.Error(l.Error)
		case l.Drop != nil:
			list = append(list, *l.Drop)
		case l.Totals != nil:
			totals = *l.Totals
		}
		return nil
	}))
	return list, totals
}

// A packet that a policy drops is shown within a second, with its pods and its policy, while another pod is flooded. So is a
// packet from an address that is not the pod's. What was shown, lost and not shown is exactly what was sent.
func TestDropsOfANode(t *testing.T) {
	c := newDropsLab(t)
	prisoner := c.longLived("walled", "prisoner", "")
	c.await("the prisoner's policy", func() bool { return strings.Contains(c.table(), "walled/prisoner is isolated") })
	_, before := c.ask()
	const flood, single = 2000, 7
	c.send(c.stranger, c.stranger.addr, c.server.addr, 1000, flood)
	c.send(prisoner, prisoner.addr, c.server.addr, single, 1)
	c.address(c.friend, c.stranger.addr)
	c.send(c.friend, c.stranger.addr, c.server.addr, single, 1)
	began := time.Now()
	var one, forged, flooded []drops.Drop
	var now drops.Totals
	c.await("both single packets", func() bool {
		var list []drops.Drop
		list, now = c.ask()
		of := func(d, cause string) []drops.Drop {
			return slices.DeleteFunc(slices.Clone(list), func(l drops.Drop) bool { return l.Direction != d || l.Cause != cause })
		}
		one, forged, flooded = of("egress", "isolated"), of("egress", "forged"), of("ingress", "isolated")
		flooded = slices.DeleteFunc(flooded, func(l drops.Drop) bool { return l.Protocol != "udp" }) // the friend may have been early
		return len(one) > 0 && len(forged) > 0
	})
	t.Logf("the packets were shown after %v, of which the totals take %v", time.Since(began), 300*time.Millisecond)
	server := sight.End{Address: c.server.addr, Pod: "shop/server"}
	for _, w := range []struct {
		got  drops.Drop
		want drops.Drop
	}{
		{one[0], drops.Drop{
			Direction: "egress", Cause: "isolated", From: sight.End{Address: prisoner.addr, Pod: "walled/prisoner"}, To: server, Protocol: "udp", Port: single,
			Policies: []string{"walled/nothing"}, Reason: enforce.IsolatedBy([]string{"walled/nothing"}),
		}},
		{forged[0], drops.Drop{
			Direction: "egress", Cause: "forged", From: sight.End{Address: c.stranger.addr, Pod: "visitors/friend"}, To: server, Protocol: "udp", Port: single, Reason: forged[0].Reason,
		}},
		{flooded[0], drops.Drop{
			Direction: "ingress", Cause: "isolated", From: sight.End{Address: c.stranger.addr, Pod: "visitors/stranger"}, To: server, Protocol: "udp", Port: flooded[0].Port,
			Policies: []string{"shop/guard"}, Reason: enforce.IsolatedBy([]string{"shop/guard"}),
		}},
	} {
		w.got.Time = time.Time{}
		if fmt.Sprint(w.got) != fmt.Sprint(w.want) {
			t.Errorf("got %+v, want %+v", w.got, w.want)
		}
	}
	if len(one) != 1 || len(forged) != 1 || len(flooded) > flood/10 {
		t.Errorf("told %d, %d and %d packets", len(one), len(forged), len(flooded))
	}
	if counted := now.Counted - before.Counted; counted != flood+2 || now.Counted != now.Shown+now.Lost+now.NotShown || now.NotShown == 0 {
		t.Errorf("%d packets were sent, and the totals are %+v, before %+v", flood+2, now, before)
	}
	if now.Unexplained > 0 {
		t.Errorf("%d packets are not explained", now.Unexplained)
	}
	metrics := httpRecorder(c.Handler(), "/metrics")
	for _, want := range []string{
		`patchbay_node_drop_events_total{cause="forged",direction="egress"} 1`, `patchbay_node_drop_events_lost_total{where="kernel"} 0`,
		`patchbay_node_drop_packets_total{cause="isolated",direction="egress"} 1`, "patchbay_node_drop_events_unexplained_total 0",
	} {
		if !strings.Contains(metrics, want+"\n") {
			t.Errorf("the metrics lack %s", want)
		}
	}
}

// address gives a pod an address that is not its own.
func (c *dropsLab) address(p *churnPod, a netip.Addr) {
	must(c.T, p.ns.Do(func() error {
		l, err := netlink.LinkByName("eth0")
		if err != nil {
			return err
		}
		return netlink.AddrAdd(l, &netlink.Addr{IPNet: &net.IPNet{IP: a.AsSlice(), Mask: net.CIDRMask(a.BitLen(), a.BitLen())}})
	}))
}

// A second reader of the group is a problem that names it. Policies are in force anyway.
func TestDropsWithoutTheGroup(t *testing.T) {
	other, err := nflog.Listen(dropsGroup)
	must(t, err)
	l := newPolicyLab(t)
	l.pod("n1", "web-0", "app=web", webAddr)
	l.policy("closed", forWeb)
	l.start(func(o *Options) { o.NetworkPolicy.DropsGroup = dropsGroup })
	l.awaitJudged(webAddr, true)
	l.awaitProblem(dropsUntold)
	if text := l.trouble.mine()[dropsUntold]; !strings.Contains(text, "group 9472 of NFLOG has another reader") {
		t.Errorf("the problem says %q", text)
	}
	must(t, other.Close())
	l.await("the group", func() bool { return l.trouble.mine()[dropsUntold] == "" })
}

func program(t *testing.T, s *policy.State) *policy.Program {
	t.Helper()
	return policy.Compile(s)
}

// stateWith returns a cluster with pods web and db of this node, and a policy that isolates web.
func stateWith(policies ...policy.NetworkPolicy) *policy.State {
	return &policy.State{
		Node: "n1", Nodes: []policy.Node{{Name: "n1"}}, Namespaces: []policy.Namespace{{Name: "shop"}}, Policies: policies,
		Pods: []policy.Pod{
			{Namespace: "shop", Name: "web", Node: "n1", Phase: "Running", Addresses: []netip.Addr{netip.MustParseAddr(webAddr)}},
			{Namespace: "shop", Name: "db", Node: "n2", Phase: "Running", Addresses: []netip.Addr{netip.MustParseAddr("10.244.2.5")}},
		},
	}
}

// A message that comes after a change is explained by the program that dropped the packet, for two seconds. Names of
// pods that have gone are known for a minute.
func TestWitness(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWitness()
		p := nflog.Packet{
			Prefix: enforce.Prefix(policy.Ingress, enforce.CauseIsolated), From: netip.MustParseAddr("10.244.2.5"), To: netip.MustParseAddr(webAddr),
			Protocol: unix.IPPROTO_TCP, Port: 80,
		}
		closed := stateWith(policy.NetworkPolicy{Namespace: "shop", Name: "closed"})
		first := program(t, closed)
		if d := w.explain(p); !d.Unexplained {
			t.Errorf("without a program: %+v", d)
		}
		w.expect(closed, first)
		if d := w.explain(p); d.Unexplained || !slices.Equal(d.Policies, []string{"shop/closed"}) || d.From.Pod != "shop/db" || d.To.Pod != "shop/web" {
			t.Errorf("while the program is put in force: %+v", d)
		}
		w.replace(first)
		open := stateWith()
		open.Pods = open.Pods[1:]
		second := program(t, open)
		w.expect(open, second)
		w.replace(second)
		time.Sleep(lingers - time.Millisecond)
		if d := w.explain(p); d.Unexplained || d.To.Pod != "shop/web" {
			t.Errorf("just after a change: %+v", d)
		}
		time.Sleep(time.Millisecond)
		synctest.Wait()
		if d := w.explain(p); !d.Unexplained || d.To.Pod != "shop/web" {
			t.Errorf("long after a change: %+v", d)
		}
		w.expect(open, second)
		time.Sleep(namesKept)
		if d := w.explain(p); d.To.Pod != "" {
			t.Errorf("a minute after the pod has gone: %+v", d)
		}
	})
}

// Each cause has a reason, and a rule that denies is named.
func TestWitnessNamesTheRule(t *testing.T) {
	w := newWitness()
	s := stateWith()
	s.ClusterPolicies = []policy.ClusterNetworkPolicy{{
		Name: "guard", Spec: policy.ClusterNetworkPolicySpec{
			Tier: "Admin", Priority: 1, Subject: policy.PodPeer{Namespaces: &policy.Selector{}},
			Ingress: []policy.ClusterIngressRule{{Action: "Deny", From: []policy.PodPeer{{Namespaces: &policy.Selector{}}}}},
		},
	}}
	w.expect(s, program(t, s))
	w.attach(map[string]string{"veth1": "shop/web"})
	w.linkName = func(int) string { return "veth1" }
	for prefix, want := range map[string]string{
		enforce.Prefix(policy.Ingress, enforce.CauseDenied):   "rule ingress[0] of clusternetworkpolicy guard denies it",
		enforce.Prefix(policy.Ingress, enforce.CauseClosed):   enforce.ClosedByAdd,
		enforce.Prefix(policy.Egress, enforce.CauseMidstream): "it is not the first packet",
		nft.PrefixForged: "the pod may not send it",
		enforce.Prefix(policy.Ingress, enforce.CauseIsolated):   "not explained",
		enforce.Prefix(policy.Egress, enforce.CauseDenied):      "not explained",
		"patchbay ingress something that a newer release tells": "not explained",
	} {
		d := w.explain(nflog.Packet{Prefix: prefix, From: netip.MustParseAddr("10.244.2.5"), To: netip.MustParseAddr(webAddr), Protocol: unix.IPPROTO_TCP, Port: 80})
		if !strings.HasPrefix(d.Reason, want) || d.Unexplained != (want == "not explained") {
			t.Errorf("%s: %+v, want %q", prefix, d, want)
		}
		if prefix == nft.PrefixForged && d.From.Pod != "shop/web" {
			t.Errorf("forged by %q", d.From.Pod)
		}
	}
}
