// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"cmp"
	"encoding/binary"
	"slices"
	"strconv"
	"strings"

	"github.com/patchbay-net/patchbay/internal/policy"
)

// few is the largest number of port ranges of one protocol for which the kernel gets one rule per range. More ranges
// are looked up in a set, whose name is a hash of them: so rules with the same ports share it, and its elements never
// change. For few ranges, a set would be no faster than the rules that it replaces, and need more memory (ADR 84).
const few = 16

// portsOf are the ports that a line matches.
type portsOf struct {
	policy.Ports                // compared; if there is a set, only the protocol
	inSet        []policy.Ports // the ranges of the set, sorted, if there is one
}

// portsOfLines returns the ports of the lines for a rule with these ports. No ports are all traffic.
func portsOfLines(list []policy.Ports) (out []portsOf) {
	switch {
	case len(list) == 0:
		return []portsOf{{}}
	case len(list) > few:
		list = merged(list)
	}
	for len(list) > 0 {
		n := slices.IndexFunc(list, func(p policy.Ports) bool { return p.Protocol != list[0].Protocol })
		if n < 0 {
			n = len(list)
		}
		if n > few {
			out = append(out, portsOf{policy.Ports{Protocol: list[0].Protocol}, list[:n]})
		} else {
			for _, p := range list[:n] {
				out = append(out, portsOf{Ports: p})
			}
		}
		list = list[n:]
	}
	return out
}

// merged returns the same ports, sorted, as ranges that do not touch each other.
func merged(list []policy.Ports) (out []policy.Ports) {
	for _, p := range slices.SortedFunc(slices.Values(list), comparePorts) {
		last := len(out) - 1
		switch {
		case last < 0 || out[last].Protocol != p.Protocol:
			out = append(out, p)
		case out[last].First == 0: // all ports
		case int(p.First) > int(out[last].Last)+1:
			out = append(out, p)
		default:
			out[last].Last = max(out[last].Last, p.Last)
		}
	}
	return out
}

func comparePorts(a, b policy.Ports) int {
	return cmp.Or(cmp.Compare(a.Protocol, b.Protocol), cmp.Compare(a.First, b.First), cmp.Compare(a.Last, b.Last))
}

// set returns the name of the set in which a line looks the port up, or "" if it does not.
func (p portsOf) set() string {
	if p.inSet == nil {
		return ""
	}
	return kindPorts + hash(p.title())
}

// title returns what is in the set: "80, 443, 8000-8080". The text leaves out the protocol.
func (p portsOf) title() string {
	words := make([]string, len(p.inSet))
	for i, r := range p.inSet {
		words[i] = numbers(r.First, r.Last)
	}
	return strings.Join(words, ", ")
}

func numbers(first, last uint16) string {
	if first == last {
		return strconv.Itoa(int(first))
	}
	return strconv.Itoa(int(first)) + "-" + strconv.Itoa(int(last))
}

// addPorts adds the sets of ports that the rules of a program look into.
func (w *wanted) addPorts(p *policy.Program, fill map[string]func() []element) {
	for i := range p.Chains {
		for _, r := range p.Chains[i].Rules {
			if len(r.Ports) <= few {
				continue
			}
			for _, ports := range portsOfLines(r.Ports) {
				if name := ports.set(); name != "" {
					w.sets[name], w.titles[name] = true, ports.title()
					fill[name] = ports.elements
				}
			}
		}
	}
}

func (p portsOf) elements() (out []element) {
	for _, r := range p.inSet {
		out = append(out, element{ports: [2]uint16{r.First, r.Last}})
	}
	return out
}

// span returns the key of an element, and the first key after it, or nil after the highest one.
func (e element) span() (key, next []byte) {
	if e.first.IsValid() {
		return e.first.AsSlice(), e.last.Next().AsSlice()
	}
	if e.ports[1] < 65535 {
		next = binary.BigEndian.AppendUint16(nil, e.ports[1]+1)
	}
	return binary.BigEndian.AppendUint16(nil, e.ports[0]), next
}
