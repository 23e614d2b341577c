// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/policy"
	"github.com/patchbay-net/patchbay/internal/test/draw"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
)

// large returns a cluster of 100 namespaces with 200 pods each. 110 pods are on this node. Each
// namespace has the same number of policies. Half of the namespaces have the label team=a.
func large(b *testing.B, policies int) *policy.State {
	s := &policy.State{Node: "n0", Nodes: []policy.Node{{Name: "n0", Addresses: addrs("192.0.2.1")}}}
	for i := range 100 {
		ns := fmt.Sprint("ns", i)
		s.Namespaces = append(s.Namespaces, policy.Namespace{Name: ns, Labels: labels("team", [2]string{"a", "b"}[i%2])})
		for j := range 200 {
			n := i*200 + j
			s.Pods = append(s.Pods, policy.Pod{
				Namespace: ns, Name: fmt.Sprint("pod", j), Node: fmt.Sprint("n", n/110), Phase: "Running", Labels: labels("app", fmt.Sprint("app", j%10)),
				Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 1, byte(n >> 8), byte(n)}), netip.AddrFrom16([16]byte{0: 0xfd, 14: byte(n >> 8), 15: byte(n)})},
			})
		}
	}
	// The pods of this node are spread over the namespaces.
	for i := range s.Pods {
		s.Pods[i].Node = "n1"
	}
	for i := range 110 {
		s.Pods[i*181].Node = "n0"
	}
	for i := range policies {
		add(b, s, fmt.Sprintf(`ns%d/p%d {"podSelector":{"matchLabels":{"app":"app%d"}},"policyTypes":["Ingress"],"ingress":[
			{"from":[{"podSelector":{"matchLabels":{"app":"app%d"}}}],"ports":[{"port":80},{"port":443}]},
			{"from":[{"namespaceSelector":{"matchLabels":{"team":"a"}},"podSelector":{"matchLabels":{"app":"app%d"}}}],"ports":[{"port":80}]}]}`,
			i%100, i, i/100%10, (i+1)%10, (i+2)%10))
	}
	return s
}

// BenchmarkLoad measures one change of the kernel, without the compilation, in a cluster of 20,000
// pods: everything, one policy, and the label of 50 namespaces with 10,000 pods.
func BenchmarkLoad(b *testing.B) {
	for _, policies := range []int{1000, 5000} {
		s := large(b, policies)
		full := policy.Compile(s)
		s.Policies[0].Spec.Ingress = s.Policies[0].Spec.Ingress[:1]
		edited := policy.Compile(s)
		for i := range s.Namespaces {
			s.Namespaces[i].Labels = labels("team", "a")
		}
		relabelled := policy.Compile(s)
		s.Pods[1].Labels = labels("app", "app7")
		moved := policy.Compile(s)
		for _, c := range []struct {
			name string
			from *policy.Program
			to   *policy.Program
		}{{"all", &policy.Program{}, full}, {"policy", full, edited}, {"namespaces", edited, relabelled}, {"pod", relabelled, moved}, {"none", moved, moved}, {"remove", moved, &policy.Program{}}} {
			b.Run(fmt.Sprintf("policies=%d/%s", policies, c.name), func(b *testing.B) { change(b, c.from, c.to) })
		}
	}
}

// BenchmarkRestart measures the first Load of an Enforcer if the kernel has the program already.
func BenchmarkRestart(b *testing.B) {
	for _, policies := range []int{1000, 5000} {
		p := policy.Compile(large(b, policies))
		b.Run(fmt.Sprint("policies=", policies), func(b *testing.B) {
			e, fw := open(b)
			load(b, e, p)
			elements := 0
			w := stateOf(p, false)
			for set := range w.sets {
				list, _ := w.elements(set)
				elements += len(list)
			}
			for b.Loop() {
				load(b, New(fw, Options{}), p)
			}
			b.ReportMetric(float64(elements), "elements")
		})
	}
}

// BenchmarkChurn measures a change beside connections: a pod of another node starts, and one ends, with the cut that
// the agent makes at most once a second. PATCHBAY_FLOWS is the number of connections.
func BenchmarkChurn(b *testing.B) {
	n := nettest.Flows(b, draw.Number(b, "PATCHBAY_FLOWS", 10_000, 500_000))
	with := large(b, 1000)
	without := *with
	without.Pods = slices.Delete(slices.Clone(with.Pods), 1, 2)
	programs := []*policy.Program{policy.Compile(&without), policy.Compile(with)}
	for _, c := range []struct {
		name string
		opts Options
	}{
		{"keep", Options{KeepConnections: true}},
		{"later", Options{CutLater: true}},
		{"now", Options{}},
	} {
		b.Run(fmt.Sprint("flows=", n, "/", c.name), func(b *testing.B) {
			e, fw := open(b)
			load(b, e, programs[0])
			connections(b, n)
			e = New(fw, c.opts)
			load(b, e, programs[0])
			for i := 1; b.Loop(); i++ {
				load(b, e, programs[i%2])
			}
		})
	}
}

// connections makes entries of conntrack between pods of the cluster and of this node.
func connections(b *testing.B, n int) {
	b.Helper()
	must(b, netlink.ConntrackTableFlush(netlink.ConntrackTable))
	for i := range n {
		flow := &netlink.ConntrackFlow{FamilyType: unix.AF_INET, TimeOut: 600}
		flow.Forward = netlink.IPTuple{Protocol: unix.IPPROTO_UDP, SrcIP: net.IPv4(10, 1, byte(i>>8), byte(i)), SrcPort: uint16(1024 + i>>16), DstIP: net.IPv4(10, 1, 0, 0), DstPort: 53}
		flow.Reverse = netlink.IPTuple{Protocol: unix.IPPROTO_UDP, SrcIP: net.IPv4(10, 1, 0, 0), SrcPort: 53, DstIP: flow.Forward.SrcIP, DstPort: flow.Forward.SrcPort}
		must(b, netlink.ConntrackCreate(netlink.ConntrackTable, unix.AF_INET, flow))
	}
}

// change measures how long it takes to load a program after another.
func change(b *testing.B, from, to *policy.Program) {
	e, _ := open(b)
	for b.Loop() {
		b.StopTimer()
		load(b, e, from)
		b.StartTimer()
		load(b, e, to)
	}
}

// BenchmarkADD measures the transaction of an ADD with the elements of one attachment. In its cases there are no
// network policies, no policy selects the pod, one does, or the address was a former pod's and no agent runs.
func BenchmarkADD(b *testing.B) {
	for _, policies := range []int{0, 1000, 5000} {
		p := policy.Compile(large(b, policies))
		for _, kind := range []string{"plain", "open", "closed", "stale"} {
			if kind == "stale" && policies == 0 {
				continue
			}
			b.Run(fmt.Sprint("policies=", policies, "/", kind), func(b *testing.B) { benchADD(b, p, kind) })
		}
	}
}

func benchADD(b *testing.B, p *policy.Program, kind string) {
	e, fw := open(b)
	load(b, e, p)
	a, _ := closureOf("c", netip.Addr{})
	a.Close = [2]bool{kind == "closed"}
	for n := 0; b.Loop(); n++ {
		a.Addrs[0] = netip.AddrFrom4([4]byte{10, 200, byte(n >> 8), byte(n)})
		if kind == "stale" {
			b.StopTimer()
			must(b, e.Load(b.Context(), p, nil))
			a.Addrs[0] = p.Pods[n%len(p.Pods)].Addresses[0]
			b.StartTimer()
		}
		fw.Add(nft.Masqueraded(netip.PrefixFrom(a.Addrs[0], 24), a.Comment)...)
		if kind != "plain" {
			Close(fw, a, true)
		}
		must(b, fw.Commit(b.Context()))
	}
}

// BenchmarkConnect measures a TCP connection with a question and an answer between two pods of a
// node: without policies, with a policy for both pods, with 1,000 policies, one of which is for both pods, and with
// 100 policies for the server, the last of which allows it.
func BenchmarkConnect(b *testing.B) {
	both := []string{onB + fromA80 + "]}", onA + toPort80s + "]}"}
	for _, c := range []struct {
		name      string
		policies  []string
		more      int
		selecting string
	}{
		{"none", nil, 0, ""}, {"two", both, 0, ""}, {"1000 others", both, 1000, "c"}, {"100 for the server", both, 100, "b"},
	} {
		b.Run(c.name, func(b *testing.B) {
			p := newPair(b, Options{})
			p.serve(":80")
			for n := range c.more {
				c.policies = append(c.policies, fmt.Sprintf(`shop/a%d {"podSelector":{"matchLabels":{"pod":%q}},"ingress":[{"from":[{"podSelector":{"matchLabels":{"pod":"c"}}}],"ports":[{"port":%d}]}]}`, n, c.selecting, 1000+n))
			}
			p.load(c.policies...)
			for b.Loop() {
				conn := p.dial("10.1.1.2:80")
				if !conn.asks(time.Second) {
					b.Fatal("no answer")
				}
				must(b, conn.Close())
			}
		})
	}
}
