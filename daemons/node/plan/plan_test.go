// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/mesh"
	"github.com/patchbay-net/patchbay/internal/podnet"
)

func settings() Settings {
	return Settings{Node: "n1", Transport: mesh.Auto, Cluster: []netip.Prefix{
		netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:244::/56"),
	}}
}

// node returns a dual-stack Node.
func node(i int) Node {
	return Node{
		Name: fmt.Sprint("n", i), Created: int64(i), Addrs: []string{fmt.Sprintf("192.0.2.%d", i), fmt.Sprintf("2001:db8::%d", i)},
		Pods: []string{fmt.Sprintf("10.244.%d.0/24", i), fmt.Sprintf("fd00:244:0:%d::/64", i)},
	}
}

func with(n Node, change func(*Node)) Node {
	change(&n)
	return n
}

// render returns a plan as text.
func render(p *Plan) string {
	var b strings.Builder
	fmt.Fprintf(&b, "ready %v self %v %v\n", p.Ready, p.Self.Underlay, p.Self.Blocks)
	for _, peer := range p.Peers {
		fmt.Fprintf(&b, "%s %v %v\n", peer.ID, peer.Underlay, peer.Blocks)
	}
	for _, x := range p.Problems {
		fmt.Fprintf(&b, "%s %v\n", x.Reason, x.Nodes)
	}
	return b.String()
}

const alone = "ready true self [192.0.2.1 2001:db8::1] [10.244.1.0/24 fd00:244:0:1::/64]\n"

func TestMake(t *testing.T) {
	pods := func(list ...string) func(*Node) { return func(n *Node) { n.Pods = list } }
	addrs := func(list ...string) func(*Node) { return func(n *Node) { n.Addrs = list } }
	rename := func(name string) func(*Node) { return func(n *Node) { n.Name = name } }
	for name, v := range map[string]struct {
		nodes []Node
		want  string
	}{
		"nothing": {nil, "ready false self [] []\nNodeNotFound [n1]\n"},
		"dual":    {[]Node{node(1), node(2)}, alone + "n2 [192.0.2.2 2001:db8::2] [10.244.2.0/24 fd00:244:0:2::/64]\n"},
		"only IPv6": {
			[]Node{with(node(1), func(n *Node) { n.Pods, n.Addrs = n.Pods[1:], n.Addrs[1:] }), with(node(2), addrs("2001:db8::2"))},
			"ready true self [2001:db8::1] [fd00:244:0:1::/64]\nn2 [2001:db8::2] [10.244.2.0/24 fd00:244:0:2::/64]\n",
		},
		"many podCIDRs": {
			[]Node{node(1), with(node(2), pods("10.244.2.0/24", "10.244.7.0/24", "10.244.128.0/17"))},
			alone + "n2 [192.0.2.2 2001:db8::2] [10.244.2.0/24 10.244.7.0/24 10.244.128.0/17]\n",
		},
		"many addresses": {
			[]Node{node(1), with(node(2), addrs("fe80::1", "192.0.2.9", "nonsense", "192.0.2.2", "2001:db8::9", "2001:db8::2"))},
			alone + "n2 [192.0.2.9 2001:db8::9] [10.244.2.0/24 fd00:244:0:2::/64]\n",
		},
		"own without podCIDRs":  {[]Node{with(node(1), pods()), node(2)}, "ready false self [] []\nn2 [192.0.2.2 2001:db8::2] [10.244.2.0/24 fd00:244:0:2::/64]\nNoPodCIDR [n1]\n"},
		"peer without podCIDRs": {[]Node{node(1), with(node(2), pods())}, alone + "NoPodCIDR [n2]\n"},
		"peer without address":  {[]Node{node(1), with(node(2), addrs())}, alone + "NoInternalIP [n2]\n"},
		"malformed": {
			[]Node{node(1), with(node(2), pods("10.244.2.0/33", "10.244.2.1/24", "0.0.0.0/0", "10.244.2.0/24"))},
			alone + "n2 [192.0.2.2 2001:db8::2] [10.244.2.0/24]\nInvalidPodCIDR [n2]\nInvalidPodCIDR [n2]\nInvalidPodCIDR [n2]\n",
		},
		"outside":       {[]Node{node(1), with(node(2), pods("10.9.2.0/24", "10.0.0.0/8"))}, alone + "PodCIDROutsideCluster [n2]\nPodCIDROutsideCluster [n2]\n"},
		"overlaps mine": {[]Node{node(1), with(node(0), pods("10.244.0.0/16"))}, alone + "PodCIDROverlaps [n0 n1]\n"},
		"the older one keeps": {
			[]Node{node(1), with(node(3), pods("10.244.2.128/25")), node(2)},
			alone + "n2 [192.0.2.2 2001:db8::2] [10.244.2.0/24 fd00:244:0:2::/64]\nPodCIDROverlaps [n3 n2]\n",
		},
		"the missing one gives way": {
			[]Node{node(1), with(node(2), func(n *Node) { n.Missing = true }), with(node(3), pods("10.244.2.0/24"))},
			alone + "n3 [192.0.2.3 2001:db8::3] [10.244.2.0/24]\nn2 [192.0.2.2 2001:db8::2] [fd00:244:0:2::/64]\n",
		},
		"the leaving one gives way": {
			[]Node{node(1), with(node(2), func(n *Node) { n.Leaving = true }), with(node(3), pods("10.244.2.0/24"))},
			alone + "n3 [192.0.2.3 2001:db8::3] [10.244.2.0/24]\nn2 [192.0.2.2 2001:db8::2] [fd00:244:0:2::/64]\nPodCIDROverlaps [n2 n3]\n",
		},
		"registered again": {
			[]Node{with(node(7), rename("n1")).Recalling(node(1)), with(node(8), rename("n2")).Recalling(node(2))},
			"ready true self [192.0.2.7 2001:db8::7] [10.244.7.0/24 fd00:244:0:7::/64 10.244.1.0/24 fd00:244:0:1::/64]\n" +
				"n2 [192.0.2.8 2001:db8::8] [10.244.8.0/24 fd00:244:0:8::/64 10.244.2.0/24 fd00:244:0:2::/64]\n",
		},
		"former podCIDRs of another one": {
			[]Node{with(node(7), rename("n1")).Recalling(node(2)), with(node(8), rename("n2")).Recalling(node(1)), node(3).Recalling(node(8)), with(node(9), pods("10.244.1.0/25"))},
			"ready true self [192.0.2.7 2001:db8::7] [10.244.7.0/24 fd00:244:0:7::/64 10.244.2.0/24 fd00:244:0:2::/64]\n" +
				"n3 [192.0.2.3 2001:db8::3] [10.244.3.0/24 fd00:244:0:3::/64]\n" +
				"n2 [192.0.2.8 2001:db8::8] [10.244.8.0/24 fd00:244:0:8::/64 fd00:244:0:1::/64]\nn9 [192.0.2.9 2001:db8::9] [10.244.1.0/25]\n",
		},
		"registered again with another one's": {
			[]Node{with(node(3), func(n *Node) { n.Name, n.Pods = "n1", node(2).Pods }).Recalling(node(1)), node(2)},
			"ready false self [] []\nn2 [192.0.2.2 2001:db8::2] [10.244.2.0/24 fd00:244:0:2::/64]\nPodCIDROverlaps [n1 n2]\nPodCIDROverlaps [n1 n2]\n",
		},
		"bare, with former ones": {[]Node{node(1), with(node(2), pods()).Recalling(node(2))}, alone + "NoPodCIDR [n2]\n"},
		"withheld":               {[]Node{with(node(1), pods()).After(node(1))}, alone + "NodeLacksFields [n1]\n"},
	} {
		t.Run(name, func(t *testing.T) {
			p := Make(settings(), v.nodes)
			if got := render(p); got != v.want {
				t.Errorf("\n%swant\n%s", got, v.want)
			}
			slices.Reverse(v.nodes)
			if again := Make(settings(), v.nodes); !reflect.DeepEqual(p, again) {
				t.Errorf("in another order:\n%s", render(again))
			}
			for _, x := range p.Problems {
				if strings.Contains(x.Text, "%!") || !x.Concerns(x.Nodes[0]) {
					t.Error(x.Text)
				}
			}
		})
	}
}

// A Node recalls the podCIDRs of those before it, the latest first, and no longer once it has them
// again.
func TestRecalling(t *testing.T) {
	n := node(0)
	for i := range 10 {
		n = node(i).Recalling(n)
	}
	if want := append(slices.Clone(node(8).Pods), node(7).Pods...); len(n.Former) != mostFormer || !slices.Equal(n.Former[:4], want) {
		t.Errorf("%q", n.Former)
	}
	for _, back := range []Node{node(8).Recalling(n), with(node(9), func(n *Node) { n.Pods = node(8).Pods }).Recalling(n)} {
		if slices.Contains(back.Former, node(8).Pods[0]) || !slices.Contains(back.Former, node(9).Pods[0]) {
			t.Errorf("%q", back.Former)
		}
	}
	if got := node(1).Recalling(node(1)); got.Former != nil {
		t.Errorf("%q", got.Former)
	}
	if got := node(1).Recalling(Node{Former: []string{"nonsense", "10.244.1.1/24"}}); got.Former != nil {
		t.Errorf("%q", got.Former)
	}
}

// The mesh accepts what Make plans.
func TestMeshTakesThePlan(t *testing.T) {
	p := Make(settings(), []Node{node(1).Recalling(node(7)), node(2).Recalling(node(8)), node(3)})
	reach := map[netip.Addr]mesh.Reach{netip.MustParseAddr("192.0.2.2"): {Link: "eth0", OnLink: true}}
	s, err := mesh.Compile(p.Self, p.Peers, mesh.Observed{Reach: reach, MTU: 1500})
	if err != nil || len(s.Routes) != len(p.Peers[0].Blocks)+len(p.Peers[1].Blocks) || s.Protocol != Protocol || s.Name != podnet.Name || s.Devices[0].Name != Device {
		t.Errorf("%v\n%s", err, s)
	}
}

// A version that lacks fields keeps those of the earlier version. No other field changes.
func TestAfter(t *testing.T) {
	bare := Node{Name: "n2", Pods: []string{"nonsense"}}
	got := bare.After(node(2))
	if !slices.Equal(got.Pods, node(2).Pods) || !slices.Equal(got.Addrs, node(2).Addrs) || len(got.Withheld) != 2 {
		t.Errorf("%+v", got)
	}
	moved := node(3)
	moved.Name = "n2"
	if got := moved.After(node(2)); !reflect.DeepEqual(got, moved) {
		t.Errorf("%+v", got)
	}
	if got := bare.After(bare); len(got.Withheld) != 0 {
		t.Errorf("%+v", got)
	}
}

// Pods keep their address towards the cluster's prefixes and the operator's. No prefix lies inside
// another one, because the kernel would refuse that.
func TestExempt(t *testing.T) {
	s := settings()
	for _, p := range []string{"10.0.0.0/8", "10.0.0.0/8", "192.168.0.0/16", "192.168.3.0/24", "fd00::/8"} {
		s.Exempt = append(s.Exempt, netip.MustParsePrefix(p))
	}
	if got := fmt.Sprint(Make(s, []Node{node(1)}).Self.Exempt); got != "[10.0.0.0/8 192.168.0.0/16 fd00::/8]" {
		t.Error(got)
	}
	if got := fmt.Sprint(Make(settings(), []Node{node(1)}).Self.Exempt); got != "[10.244.0.0/16 fd00:244::/56]" {
		t.Error(got)
	}
}

// If two Nodes have the same key, the older Node keeps it. A node without peers sends nothing to
// the cluster's addresses unencrypted.
func TestMakeEncrypted(t *testing.T) {
	s := settings()
	s.Transport, s.Key = mesh.WireGuard, mesh.Key{1}
	keyed := func(i int, k mesh.Key) Node {
		return with(node(i), func(n *Node) { n.Annotations = map[string]string{KeyAnnotation: k.String()} })
	}
	p := Make(s, []Node{keyed(4, mesh.Key{2}), node(1), keyed(3, mesh.Key{2}), keyed(2, mesh.Key{1}), keyed(5, mesh.Key{5})})
	var peers []string
	for _, x := range p.Peers {
		peers = append(peers, fmt.Sprint(x.ID, x.Key[0]))
	}
	if got := strings.Join(peers, " "); got != "n32 n55" || !p.Network.Encrypted {
		t.Error(got)
	}
	var wrong []string
	for _, x := range p.Problems {
		wrong = append(wrong, fmt.Sprint(x.Reason, x.Nodes))
	}
	if got := strings.Join(wrong, " "); got != "WireGuardKeyOfAnotherNode[n2 n1] WireGuardKeyOfAnotherNode[n4 n3]" {
		t.Error(got)
	}
	if p := Make(s, []Node{node(1)}); !p.Ready || !p.Self.Subnets[0].Encrypted {
		t.Error(render(p))
	}
}

// Pods are masqueraded from random ports, unless an operator wants them kept.
func TestKeepPorts(t *testing.T) {
	for _, keep := range []bool{false, true} {
		s := settings()
		s.KeepPorts = keep
		if p := Make(s, []Node{node(1)}); p.Self.AnyPort == keep {
			t.Errorf("keep: %v: AnyPort is %v", keep, p.Self.AnyPort)
		}
	}
}
