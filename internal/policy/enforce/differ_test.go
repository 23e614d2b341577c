// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/l4"
	"github.com/patchbay-net/patchbay/internal/nft/eval"
	"github.com/patchbay-net/patchbay/internal/policy"
)

// TestMirrorDiffers compares what the kernel has for shop/a with decisions of newer and older policies.
// TestJudge compares it with the decisions of the same policies.
func TestMirrorDiffers(t *testing.T) {
	e, fw := open(t)
	const (
		web  = `shop/web {"podSelector":{"matchLabels":{"pod":"a"}}}`
		more = `shop/more {"podSelector":{}}`
		pass = `pass {"tier":"Admin","priority":1,"subject":{"namespaces":{}},"ingress":[{"action":"Pass","from":[{"namespaces":{}}]}]}`
		deny = `deny {"tier":"Admin","priority":2,"subject":{"namespaces":{}},"ingress":[{"action":"Deny","from":[{"namespaces":{}}]}]}`
		base = `own {"tier":"Baseline","priority":1,"subject":{"namespaces":{}},"ingress":[{"action":"Deny","from":[{"namespaces":{}}]}]}`
	)
	for _, c := range []struct {
		kernel, mirror []string
		want           []string // with ! if the kernel allows more
	}{
		{[]string{web}, nil, []string{"the kernel has networkpolicy shop/web, that it is isolated, the mirror does not"}},
		{nil, []string{web}, []string{"!the mirror has networkpolicy shop/web and isolates it, the kernel does not"}},
		{[]string{web}, []string{web, more}, []string{"!the mirror has networkpolicy shop/more, the kernel does not"}},
		{[]string{web, more}, []string{web}, []string{"the kernel has networkpolicy shop/more, the mirror does not"}},
		{[]string{pass}, []string{deny, pass}, []string{"!the mirror has clusternetworkpolicy deny, the kernel does not"}},
		{[]string{deny, pass}, []string{deny}, []string{"the kernel has clusternetworkpolicy pass, the mirror does not"}},
		{[]string{deny, pass}, []string{deny, pass}, nil},
		{[]string{base, web}, []string{web}, nil},
		{[]string{web}, []string{web, base}, nil},
		{[]string{base}, []string{web, base}, []string{"!the mirror has networkpolicy shop/web and isolates it, the kernel does not", "the kernel has clusternetworkpolicy own, the mirror does not"}},
	} {
		load(t, e, policy.Compile(shop(t, c.kernel...)))
		s := shop(t, c.mirror...)
		decision := policy.NewDecider(s).Decide(&s.Pods[0])
		var got []string
		must(t, WithView(fw, func(v *View) error {
			list, err := v.Differences(netip.MustParseAddr("10.1.1.1"), &decision)
			for _, d := range list {
				text := d.Text
				if d.Opens {
					text = "!" + text
				}
				got = append(got, text)
			}
			return err
		}))
		if !slices.Equal(got, c.want) {
			t.Errorf("kernel %q, mirror %q: got %q, want %q", c.kernel, c.mirror, got, c.want)
		}
	}
}

// Packets of a pod that its ADD closed are dropped, with the reason. The pod does not differ from a mirror that
// closes it.
func TestJudgeOfAClosedPod(t *testing.T) {
	_, fw := open(t)
	web := netip.MustParseAddr("10.1.1.1")
	c, _ := closureOf("web", web)
	c.Close = [2]bool{policy.Ingress: true}
	closeAll(t, fw, c, false)
	s := shop(t, `shop/web {"podSelector":{}}`)
	closing := policy.NewDecider(s).Decide(&s.Pods[0])
	must(t, WithView(fw, func(v *View) error {
		list, err := v.Judge(Packet{From: netip.MustParseAddr("10.1.1.2"), To: web, Protocol: l4.TCP, Port: 80})
		if r := list[len(list)-1].Reasons[0]; FateOf(list) != eval.Dropped || r.Foreign || !strings.HasPrefix(r.Text, "its ADD closed it") {
			t.Errorf("got %+v", list)
		}
		out, oerr := v.Judge(Packet{From: web, To: netip.MustParseAddr("10.1.1.2"), Protocol: l4.TCP, Port: 80})
		if FateOf(out) != eval.Accepted {
			t.Errorf("the direction that is not closed: got %+v", out)
		}
		same, serr := v.Differences(web, &closing)
		if len(same) > 0 {
			t.Errorf("got differences %+v", same)
		}
		more, merr := v.Differences(web, &policy.Decision{})
		if len(more) != 1 || more[0].Opens || more[0].Text != "the kernel has that its ADD closed it, the mirror does not" {
			t.Errorf("got differences %+v", more)
		}
		return errors.Join(err, oerr, serr, merr)
	}))
}

// A policy that cannot be understood denies by a rule of its own.
func TestJudgeOfABrokenPolicy(t *testing.T) {
	e, fw := open(t)
	load(t, e, policy.Compile(shop(t, `later {"tier":"Later","priority":1,"subject":{"namespaces":{}}}`)))
	must(t, WithView(fw, func(v *View) error {
		list, err := v.Judge(Packet{From: netip.MustParseAddr("10.1.1.1"), To: netip.MustParseAddr("10.9.9.9"), Protocol: l4.TCP, Port: 80})
		want := Reason{eval.Dropped, []string{"later"}, policy.BrokenRule, "clusternetworkpolicy later denies everything, because it cannot be understood or needs too much", false}
		if FateOf(list) != eval.Dropped || !reflect.DeepEqual(list[0].Reasons, []Reason{want}) {
			t.Errorf("got %+v", list)
		}
		return err
	}))
}

// Names that are longer than a comment of nft are read from a decision.
func TestLongNames(t *testing.T) {
	e, fw := open(t)
	name := fmt.Sprintf("shop/%0253d", 1)
	s := shop(t, name+` {"podSelector":{},"ingress":[{"from":[{"podSelector":{"matchLabels":{"pod":"b"}}}]}]}`)
	load(t, e, policy.Compile(s))
	decision := policy.NewDecider(s).Decide(&s.Pods[0])
	must(t, WithView(fw, func(v *View) error {
		v.Call(policy.Ingress, decision.Sides[policy.Ingress].Chains...)
		for from, rule := range map[string]string{"10.1.1.2": "a rule of networkpolicy " + name + " allows it", "10.1.1.3": "no rule allows it, and it is isolated by networkpolicy " + name} {
			list, err := v.Judge(Packet{From: netip.MustParseAddr(from), To: netip.MustParseAddr("10.1.1.1"), Protocol: l4.TCP, Port: 80})
			if err != nil {
				return err
			}
			if r := list[len(list)-1].Reasons[0]; !slices.Equal(r.Policies, []string{name}) || r.Text != rule || r.Foreign {
				t.Errorf("%s: got %+v", from, r)
			}
		}
		diff, err := v.Differences(netip.MustParseAddr("10.1.1.1"), &decision)
		if len(diff) > 0 {
			t.Errorf("got differences %+v", diff)
		}
		return err
	}))
}

func TestKind(t *testing.T) {
	for name, want := range map[string]string{
		"shop/web": "networkpolicy shop/web", "guard": "clusternetworkpolicy guard", "own-namespace:shop": "the agent's default own-namespace:shop",
	} {
		if got := Kind(name); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}

// A question about any protocol leaves out neighbour discovery, which always passes.
func TestJudgeOfDiscovery(t *testing.T) {
	e, fw := open(t)
	load(t, e, policy.Compile(shop(t, `shop/none {"podSelector":{}}`)))
	any6 := Packet{From: netip.MustParseAddr("fd01::1:2"), To: netip.MustParseAddr("fd01::1:1")}
	neighbour := any6
	neighbour.Protocol, neighbour.Port = l4.ICMPv6, 135
	must(t, WithView(fw, func(v *View) error {
		list, err := v.Judge(any6)
		if FateOf(list) != eval.Dropped {
			t.Errorf("any protocol: got %+v", list)
		}
		passes, perr := v.Judge(neighbour)
		if r := passes[0].Reasons[0]; FateOf(passes) != eval.Accepted || r.Foreign || r.Text != "neighbour discovery always passes" {
			t.Errorf("discovery: got %+v", passes)
		}
		return errors.Join(err, perr)
	}))
}

// If the question leaves the port open, the answer has the ports of each rule that may decide.
func TestJudgeNamesPorts(t *testing.T) {
	e, fw := open(t)
	load(t, e, policy.Compile(everyForm(t)))
	var got []string
	must(t, WithView(fw, func(v *View) error {
		list, err := v.Judge(Packet{From: netip.MustParseAddr("10.1.1.2"), To: netip.MustParseAddr("10.1.1.1")})
		for _, r := range list[len(list)-1].Reasons {
			got = append(got, r.Text)
		}
		return err
	}))
	for _, ports := range []string{"tcp 8080", "udp 9000-9009", "sctp"} {
		if want := "rule ingress[0] of networkpolicy shop/web allows it, for " + ports; !slices.Contains(got, want) {
			t.Errorf("got %q, want %q", got, want)
		}
	}
}

// Comments are cut at 128 bytes, and a cut comment proves nothing. So a pod and policies with long names do not
// differ from the mirror, and have the same reasons as others.
func TestLongNamesOfAPod(t *testing.T) {
	e, fw := open(t)
	long := strings.Repeat("n", 63)
	pod, cnp := strings.Repeat("p", 200), strings.Repeat("c", 200)
	s := &policy.State{Node: "n1", Namespaces: []policy.Namespace{{Name: long}}, Pods: []policy.Pod{{
		Namespace: long, Name: pod, Node: "n1", Phase: "Running", Addresses: addrs("10.1.1.1", "fd01::1:1"),
	}}}
	add(t, s, long+"/"+pod+` {"podSelector":{},"policyTypes":["Ingress","Egress"]}`)
	for i, name := range []string{cnp + "1", cnp + "2"} { // Pass of the first copies its rules into the tier's chain
		add(t, s, fmt.Sprintf(`%s {"tier":"Admin","priority":%d,"subject":{"namespaces":{}},"ingress":[{"action":"Pass","from":[{"pods":{"namespaceSelector":{},"podSelector":{"matchLabels":{"a":"b"}}}}]}]}`, name, i))
	}
	load(t, e, policy.Compile(s))
	decision := policy.NewDecider(s).Decide(&s.Pods[0])
	must(t, WithView(fw, func(v *View) error {
		for d, side := range decision.Sides {
			v.Call(policy.Direction(d), side.Chains...)
		}
		list, err := v.Differences(s.Pods[0].Addresses[0], &decision)
		if len(list) > 0 {
			t.Errorf("got %+v", list)
		}
		for from, want := range map[string]string{"10.9.9.9": "no rule allows it, and it is isolated by networkpolicy " + long + "/" + pod, "10.1.1.1": "no NetworkPolicy keeps a pod from itself"} {
			got, jerr := v.Judge(Packet{From: netip.MustParseAddr(from), To: s.Pods[0].Addresses[0], Protocol: l4.TCP, Port: 80})
			if r := got[len(got)-1].Reasons[0]; r.Text != want || r.Foreign {
				t.Errorf("%s: got %+v, want %q", from, r, want)
			}
			err = errors.Join(err, jerr)
		}
		return err
	}))
}
