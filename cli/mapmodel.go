// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/cli/doctor"
	"github.com/patchbay-net/patchbay/cli/netfile"
	"github.com/patchbay-net/patchbay/cli/netmap"
	"github.com/patchbay-net/patchbay/internal/life"
)

// model joins what the commands say. It reads nothing.
func (r *mapped) model() *netmap.Map {
	m := &netmap.Map{Findings: append([]doctor.Finding{}, r.node...), Networks: []netmap.Network{}, Hosts: r.hosts}
	for _, n := range r.networks {
		if networkAt(m, n.Name) == nil { // of two files with one name, the first is used
			m.Networks = append(m.Networks, networkOf(n.List, r.of[n.Name]))
		}
	}
	for _, s := range r.attached {
		n := networkAt(m, s.Network)
		if n == nil {
			m.Networks = append(m.Networks, r.unfiled(s))
			n = &m.Networks[len(m.Networks)-1]
		}
		n.Attachments = append(n.Attachments, r.attachment(s))
	}
	return m
}

func networkAt(m *netmap.Map, name string) *netmap.Network {
	i := slices.IndexFunc(m.Networks, func(n netmap.Network) bool { return n.Name == name })
	if i < 0 {
		return nil
	}
	return &m.Networks[i]
}

func networkOf(l *chain.List, findings []doctor.Finding) netmap.Network {
	about := netfile.Describe(l)
	n := netmap.Network{
		Name: l.Name, Driver: about.Driver, Link: about.Interface, Plugins: about.Plugins, File: l.File, Findings: findings, Attachments: []netmap.Attached{},
	}
	for _, s := range about.Subnets {
		n.Subnets = append(n.Subnets, s.Prefix.String())
	}
	return n
}

// unfiled describes the network of an attachment that has no file in the directory of networks, such as one of Docker. The
// configuration of the ADD may be known.
func (r *mapped) unfiled(s *localAttachment) netmap.Network {
	l, err := chain.ParseCached(s.config)
	if err != nil {
		return netmap.Network{Name: s.Network, Driver: s.Driver}
	}
	n := networkOf(l, nil)
	n.Name, n.File = s.Network, ""
	return n
}

func (r *mapped) attachment(s *localAttachment) netmap.Attached {
	out := netmap.Attached{
		ContainerID: s.ContainerID, IfName: s.IfName, Name: s.Name, Pod: s.Pod, NetNS: s.NetNS, Addresses: s.Addresses, MAC: s.MAC,
		Ports: portRanges(s.Ports), HostLinks: s.HostLinks, Policies: r.policies[s], Findings: r.wrong(s),
	}
	if s.PID != 0 {
		out.Process = fmt.Sprintf("%d %s", s.PID, s.Process)
	}
	return out
}

// wrong returns what ps and check say about an attachment.
func (r *mapped) wrong(s *localAttachment) []doctor.Finding {
	i := slices.IndexFunc(r.checked, func(f *finding) bool {
		return f.Network == s.Network && f.ContainerID == s.ContainerID && f.IfName == s.IfName
	})
	switch {
	case !s.Alive:
		return []doctor.Finding{{Check: "ps", Level: doctor.Problem, What: "its namespace is gone", Fix: "patchbay gc --apply"}}
	case i >= 0 && !r.checked[i].OK:
		return []doctor.Finding{differs(r.checked[i])}
	case s.state == life.Unsure:
		return []doctor.Finding{{Check: "ps", Level: doctor.Warning, What: "whether its namespace exists is not certain", Fix: "patchbay gc prints the reason"}}
	}
	return nil
}

// differs says what check found, and what to do about it.
func differs(f *finding) doctor.Finding {
	what, fix := slices.Clone(f.Differences), cmp.Or(hintFor(f.cause), f.hint())
	if len(f.found.Lost) > 0 {
		what = append([]string{f.found.Sentence() + " missing from the firewall"}, what...)
		fix = cmp.Or(fix, "patchbay repair")
		if f.found.Unrecorded {
			fix = "patchbay del and add: patchbay repair has no record of it"
		}
	}
	return doctor.Finding{Check: "check", Level: doctor.Problem, What: strings.Join(what, "; "), Fix: fix}
}
