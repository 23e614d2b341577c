// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"strings"
)

// String prints the program, one object a line, with an empty line after each kind.
func (p *Program) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "node%s\n\n", list(p.Node))
	section(&b, p.Identities)
	section(&b, p.Addresses)
	section(&b, p.Sets)
	section(&b, p.RangeSets)
	section(&b, p.Chains)
	section(&b, p.Pods)
	section(&b, p.Problems)
	return strings.TrimSuffix(b.String(), "\n")
}

// section prints the objects of one kind.
func section[T fmt.Stringer](b *strings.Builder, objects []T) {
	for _, o := range objects {
		b.WriteString(o.String() + "\n")
	}
	if len(objects) > 0 {
		b.WriteString("\n")
	}
}

// list prints words with a space before each.
func list[T fmt.Stringer](words []T) string {
	var b strings.Builder
	for _, w := range words {
		b.WriteString(" " + w.String())
	}
	return b.String()
}

// String returns "identity 7c3f21aa shop{app=web} http=8080/tcp".
func (id Identity) String() string { return "identity " + id.Number.String() + " " + id.text() }

// String returns "address 10.1.0.5 7c3f21aa".
func (a Address) String() string { return "address " + a.Addr.String() + " " + a.Identity.String() }

// String returns "set shop{app=web}: 7c3f21aa".
func (s Set) String() string { return "set " + s.Name + ":" + list(s.Members) }

// String returns "ranges 10.0.0.0/8: 10.0.0.0-10.255.255.255".
func (b RangeSet) String() string { return "ranges " + b.Name + ":" + list(b.Ranges) }

// String returns the chain's name, and a line for each rule.
func (c Chain) String() string {
	text := "chain " + c.Name
	switch c.Tier {
	case Admin:
		text += " (Admin)"
	case Baseline:
		text += " (Baseline)"
	}
	for _, r := range c.Rules {
		text += "\n  " + r.String()
	}
	return text
}

// String returns "ingress[0]: accept shop{app=web}, tcp 80 443".
func (r Rule) String() string {
	var words []string
	for _, w := range []string{r.Set, r.RangeSet} {
		if w != "" {
			words = append(words, w)
		}
	}
	other := strings.Join(words, " in ")
	if other == "" {
		other = "everybody"
	}
	var ports []string
	for _, p := range r.Ports {
		ports = append(ports, p.String())
	}
	if len(ports) == 0 {
		ports = []string{Ports{}.String()}
	}
	return fmt.Sprintf("%s: %s %s, %s", r.Source, r.Verdict, other, strings.Join(ports, ", "))
}

// String returns the pod with a line for each direction.
func (l LocalPod) String() string {
	text := "pod " + l.Name + list(l.Addresses)
	for d, s := range l.Sides {
		text += "\n  " + Direction(d).String() + " " + s.String()
	}
	return text
}

// String returns "isolated: ingress shop/web", or "open".
func (s Side) String() string {
	text := "open"
	switch {
	case s.Unknown:
		text = "isolated, labels unknown"
	case s.Isolated:
		text = "isolated"
	}
	if len(s.Chains) == 0 {
		return text
	}
	return text + ": " + strings.Join(s.Chains, "; ")
}
