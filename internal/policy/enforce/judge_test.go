// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/l4"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/nft/eval"
	"github.com/patchbay-net/patchbay/internal/policy"
	"github.com/patchbay-net/patchbay/internal/test/policytest"
)

// TestJudge compares what Judge says of the rules in the kernel with Program.Allows, and with the oracle
// of internal/test/policytest: the verdict, the policy and the rule, for random clusters.
func TestJudge(t *testing.T) {
	_, fw := open(t)
	policytest.Compare(t, func() policytest.Engine { return &reader{t: t, fw: fw} }, policytest.Plan{Tables: policytest.Tables(t, 12, 60), Probes: 400})
}

// reader loads the programs of two nodes one after the other, and judges by what the kernel then has.
type reader struct {
	t        *testing.T
	fw       *nft.Conn
	programs [2]*policy.Program
	views    [2]*View
	outside  []netip.Addr // of no pod and no node
}

func (r *reader) Load(c policytest.Cluster) error {
	s, err := stateOfCluster(c)
	if err != nil {
		return err
	}
	logs := [2]*Log{{Group: 1, PerSecond: 1}, nil}
	for i := range r.programs {
		r.programs[i] = compileFor(&s, i)
		if err := New(r.fw, Options{KeepConnections: true, Log: logs[i]}).Load(r.t.Context(), r.programs[i], nil); err != nil {
			return err
		}
		if r.views[i], err = lookAt(r.fw, r.programs[i]); err != nil {
			return err
		}
		if err := r.asDecided(&s, i); err != nil {
			return err
		}
	}
	r.outside = c.Addresses()
	r.outside = slices.DeleteFunc(r.outside, func(a netip.Addr) bool {
		return slices.ContainsFunc(s.Pods, func(p policy.Pod) bool { return slices.Contains(p.Addresses, a) }) ||
			slices.ContainsFunc(s.Nodes, func(n policy.Node) bool { return slices.Contains(n.Addresses, a) })
	})
	return nil
}

// asDecided compares what the kernel has for each pod with the decision that the mirror would have.
func (r *reader) asDecided(s *policy.State, i int) error {
	d := policy.NewDecider(s)
	for _, local := range r.programs[i].Pods {
		at := slices.IndexFunc(s.Pods, func(p policy.Pod) bool {
			return p.Namespace+"/"+p.Name == local.Name && len(local.Addresses) > 0 && slices.Contains(p.Addresses, local.Addresses[0])
		})
		if at < 0 {
			continue
		}
		decision := d.Decide(&s.Pods[at])
		for _, a := range local.Addresses {
			if diff, err := r.views[i].Differences(a, &decision); err != nil || len(diff) > 0 {
				return fmt.Errorf("%s, %s: %+v, %w", local.Name, a, diff, err)
			}
		}
	}
	return nil
}

// lookAt reads all sets that a program has, because the next program replaces them.
func lookAt(fw *nft.Conn, p *policy.Program) (view *View, err error) {
	return view, WithView(fw, func(v *View) error {
		view = v
		for name := range stateOf(p, false).sets {
			if _, err := v.table.Members(name); err != nil {
				return err
			}
		}
		return nil
	})
}

func (r *reader) Close() error {
	return New(r.fw, Options{KeepConnections: true}).Load(r.t.Context(), &policy.Program{}, nil)
}

func (r *reader) Allows(p policytest.Probe) (allowed bool, by string, err error) {
	for i := range r.views {
		at := packetFor(r.programs[i], p)
		list, err := r.views[i].Judge(at)
		if err == nil {
			err = errors.Join(r.asProgram(i, at, list), r.asLess(i, at, list))
		}
		if err != nil {
			return false, "", err
		}
		if FateOf(list) != eval.Accepted {
			return false, "", nil
		}
	}
	return true, "", nil
}

func packetFor(program *policy.Program, p policytest.Probe) Packet {
	out := Packet{From: p.From, To: p.To}
	out.Protocol, out.Port = packetOf(p)
	switch out.Protocol {
	case l4.ICMP:
		out.Port = echo4
	case l4.ICMPv6:
		out.Port = echo6
	}
	switch {
	case slices.Contains(program.Node, p.From):
		out.Route = FromNode
	case slices.Contains(program.Node, p.To):
		out.Route = ToNode
	}
	return out
}

// asProgram compares the verdict, and the policy and rule that it names, with Program.Allows.
func (r *reader) asProgram(i int, p Packet, list []Judgement) error {
	verdict, reason := r.programs[i].Allows(p.From, p.To, p.Protocol, p.Port)
	want := map[policy.Verdict]eval.Fate{policy.Accept: eval.Accepted, policy.Deny: eval.Dropped}[verdict]
	if got := FateOf(list); got != want {
		return fmt.Errorf("Judge says %d, the program %s: %s", got, verdict, reason)
	}
	for _, step := range reason {
		at := slices.IndexFunc(list, func(j Judgement) bool { return j.Direction == step.Direction })
		if step.Policy == "" || at < 0 {
			continue
		}
		if len(list[at].Reasons) != 1 {
			return fmt.Errorf("Judge has %d reasons: %+v", len(list[at].Reasons), list[at])
		}
		got := list[at].Reasons[0]
		if got.Foreign || strings.Join(got.Policies, ", ") != step.Policy || got.Rule != step.Rule {
			return fmt.Errorf("Judge says %+v, the program %q", got, step)
		}
		for _, name := range got.Policies {
			if !slices.Contains(list[at].Asked, name) {
				return fmt.Errorf("Judge asked %q, and %s decided", list[at].Asked, name)
			}
		}
	}
	return nil
}

// asLess judges packets of which less is known. If the verdict about such a packet is certain, this
// packet must get the same verdict.
func (r *reader) asLess(i int, p Packet, list []Judgement) error {
	less := []Packet{p, p}
	less[0].Port, less[1].Port, less[1].Protocol = 0, 0, 0
	if slices.Contains(r.outside, p.From) {
		less = append(less, Packet{p.Route, netip.Addr{}, p.To, p.Protocol, p.Port})
	}
	if slices.Contains(r.outside, p.To) {
		less = append(less, Packet{p.Route, p.From, netip.Addr{}, p.Protocol, p.Port})
	}
	for _, q := range less {
		got, err := r.views[i].Judge(q)
		if fate := FateOf(got); err != nil || fate&FateOf(list) == 0 {
			return fmt.Errorf("Judge says %d of %+v and %d of %+v, %w", FateOf(list), p, fate, q, err)
		}
	}
	return nil
}
