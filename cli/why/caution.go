// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package why

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/internal/conntrack"
	"github.com/patchbay-net/patchbay/internal/l4"
	"github.com/patchbay-net/patchbay/internal/policy"
	"github.com/patchbay-net/patchbay/internal/policy/mirror"
)

func (q *question) caution(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !slices.Contains(q.cautions, text) {
		q.cautions = append(q.cautions, text)
	}
}

// elsewhere says which half of the decision another node makes.
func (q *question) elsewhere() {
	if q.from.Kind == Address && q.to.Kind != Node {
		q.caution("egress of %s is not judged here: if it is a pod, ask on its node", q.from.Word)
	}
	if q.to.Kind == Address {
		q.caution("ingress of %s is not judged here: if it is a pod, ask on its node", q.to.Word)
	}
}

// compare compares what the kernel has for the pods of the question with the mirror.
func (q *question) compare() error {
	for d, end := range [2]End{policy.Ingress: q.to, policy.Egress: q.from} {
		if end.Kind != Pod {
			continue
		}
		for _, i := range end.Interfaces {
			if err := q.compareInterface(policy.Direction(d), end.Word, i); err != nil {
				return err
			}
		}
	}
	return nil
}

// compareInterface compares one direction of an interface.
func (q *question) compareInterface(d policy.Direction, word string, i Interface) error {
	if i.Pod.Namespace == "" {
		return nil // the pod's record does not say whose policies apply
	}
	decision, err := mirror.Read(q.Paths, i.Pod)
	if err != nil {
		q.caution("an ADD would not know which policies apply: %v", err)
		return nil
	}
	q.view.Call(d, decision.Sides[d].Chains...)
	for _, a := range i.Addrs {
		list, err := q.view.Differences(a, &decision)
		if err != nil {
			return err
		}
		for _, diff := range list {
			if diff.Direction == d {
				q.caution("kernel and mirror disagree about %s of %s: %s; see that patchbayd node runs, which loads what the mirror has", d, word, diff.Text)
			}
		}
	}
	return nil
}

// established counts the connections that pass because they exist.
func (q *question) established(a *Answer) error {
	if a.Verdict == Allowed || a.Verdict == "" {
		return nil
	}
	from := make(map[netip.Addr]bool)
	for _, i := range q.from.Interfaces {
		for _, addr := range i.Addrs {
			from[addr] = true
		}
	}
	flows, err := conntrack.Among(from, q.asksFor)
	if err != nil {
		return fmt.Errorf("look for established connections: %w", err)
	}
	if n := len(flows); n > 0 {
		q.caution("%d connections like this one exist, and their packets pass: the rules judge only new ones", n)
	}
	return nil
}

// asksFor reports whether the question is about packets like those of a connection.
func (q *question) asksFor(f conntrack.Flow) bool {
	to := f.Reply.Src // after destination NAT
	proto, port := q.target.of(to.Addr().Is6())
	if proto != 0 && proto != l4.Protocol(f.Orig.Protocol) {
		return false
	}
	if q.target.Port != 0 && port != to.Port() {
		return false
	}
	return q.from.has(f.Orig.Src.Addr()) && q.to.has(to.Addr())
}

// has reports whether an end surely has an address.
func (e End) has(a netip.Addr) bool {
	return slices.ContainsFunc(e.Interfaces, func(i Interface) bool { return slices.Contains(i.Addrs, a) })
}

// Text returns the answer as a person reads it.
func (a *Answer) Text() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: %s -> %s, %s\n", a.Verdict, a.From, a.To, a.Port)
	for _, t := range a.Services {
		if t.From != "" && len(a.Services) > 1 {
			fmt.Fprintf(&b, "%s: %s\n", t.verdict, t.From)
		}
		b.WriteString(t.text())
	}
	for i, p := range a.Packets {
		if i > 0 && same(a.Packets) {
			break
		}
		if !same(a.Packets) {
			fmt.Fprintf(&b, "%s: %s -> %s\n", p.Verdict, either(p.From, a.From), either(p.To, a.To))
		}
		for _, s := range p.Steps {
			b.WriteString(s.text())
		}
	}
	for _, c := range a.Cautions {
		fmt.Fprintf(&b, "note: %s\n", c)
	}
	return b.String()
}

func either(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// same reports whether all packets have the same fate for the same reasons.
func same(list []Packet) bool {
	for _, p := range list {
		if !slices.EqualFunc(p.Steps, list[0].Steps, func(a, b Step) bool { return a.text() == b.text() }) {
			return false
		}
	}
	return true
}

func (s Step) text() string {
	head := fmt.Sprintf("  %s of %s: %s", s.Direction, s.Of, s.Verdict)
	if s.Verdict != Unknown && len(s.Because) > 0 {
		return head + ", " + s.Because[0].Text + "\n" + s.askedText()
	}
	for _, r := range s.Because {
		head += fmt.Sprintf("\n    perhaps %s: %s", r.Verdict, r.Text)
	}
	return head + "\n" + s.askedText()
}

// askedText lists the policies that the packet meets, if the reasons do not name them all.
func (s Step) askedText() string {
	for _, r := range s.Because {
		if len(r.Policies) == len(s.Asked) {
			return ""
		}
	}
	if len(s.Asked) == 0 {
		return ""
	}
	return "    asked: " + strings.Join(s.Asked, ", ") + "\n"
}
