// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/policy"
)

// sources returns the elements by which an attachment sends only from its own addresses, and those of its
// port.
func (a *Closure) sources() []nft.Element {
	return append(nft.Sources(a.Link, a.Port, a.Addrs, a.Comment), a.ports()...)
}

// ports returns the elements for the port of a pod that is not open. With them it receives and sends only packets
// that the table inet judges.
func (a *Closure) ports() (list []nft.Element) {
	for side, closed := range a.Close {
		if closed && a.Port != "" {
			list = append(list, nft.PortClosed(side, a.Port, a.Comment))
		}
	}
	return list
}

// checkSources queues the objects for the elements of links and of ports of bridges. The base chains need
// the former, too.
func checkSources(fw *nft.Conn, links, ports bool) { mendSources(fw, links, ports, false) }

// mendSources works like checkSources. If rules is set, it also restores the rules.
func mendSources(fw *nft.Conn, links, ports, rules bool) {
	if links {
		fw.Queue(nft.CheckSources(nftables.TableFamilyINet, rules))
	}
	if ports {
		fw.Queue(nft.CheckSources(nftables.TableFamilyBridge, rules))
	}
}

// Attach sets the list of this node's attachments to which policies apply. Each Load makes the kernel check that
// their packets come from addresses of their own. The ADD may have been of an earlier release, which did not do
// so, or another program may have deleted the elements.
func (e *Enforcer) Attach(list []Closure) { e.attached = slices.Clone(list) }

// attend adds missing parts of the check of sources, and the ports of pods that a program isolates. base says
// that there will be base chains.
func (e *Enforcer) attend(ctx context.Context, p *policy.Program, base bool) error {
	e.isolate(p)
	links, ports := base, false
	for i := range e.attached {
		a := &e.attached[i]
		links, ports = links || a.Link != "", ports || a.Port != ""
		e.fw.Add(a.sources()...)
	}
	mendSources(e.fw, links, ports, e.loaded == nil)
	if links && (e.loaded == nil || !e.forged) { // else an ADD may have made the chain since
		e.fw.Queue(nft.TellForged(e.group()))
	}
	if err := e.fw.Commit(ctx); err != nil {
		return fmt.Errorf("check the sources of pods: %w", err)
	}
	e.forged = links
	return nil
}

// isolate notes for which sides of the ports of bridges a program has policies.
func (e *Enforcer) isolate(p *policy.Program) {
	of := make(map[netip.Addr]*policy.LocalPod)
	for i := range p.Pods {
		for _, a := range p.Pods[i].Addresses {
			of[a] = &p.Pods[i]
		}
	}
	for i := range e.attached {
		a := &e.attached[i]
		a.Close = [2]bool{}
		for _, addr := range a.Addrs {
			for side := range a.Close {
				a.Close[side] = a.Close[side] || a.Port != "" && of[addr] != nil && selects(of[addr].Sides[side])
			}
		}
	}
}

// openPorts removes the ports that a program does not isolate, if it has their pods. What an ADD closed for a pod
// that the program does not have stays closed.
func (e *Enforcer) openPorts(ctx context.Context, owners map[netip.Addr]owner.Key) error {
	for i := range e.attached {
		a := e.attached[i]
		if a.Port == "" || !knows(owners, &a) {
			continue
		}
		a.Close[0], a.Close[1] = !a.Close[0], !a.Close[1]
		e.fw.Remove(a.ports()...)
	}
	return e.fw.Commit(ctx)
}

// knows reports whether a program has the pod of an attachment.
func knows(owners map[netip.Addr]owner.Key, a *Closure) bool {
	key, _ := nft.OwnerOf(a.Comment)
	return slices.ContainsFunc(a.Addrs, func(addr netip.Addr) bool { return owners[addr] == owner.Key(key) })
}

// unattended says what attend would do.
func (e *Enforcer) unattended(p *policy.Program) (lines []string, err error) {
	e.isolate(p)
	for i := range e.attached {
		text, err := Unchecked(e.fw, e.attached[i])
		if err != nil {
			return nil, err
		}
		if text != "" {
			lines = append(lines, text)
		}
	}
	return lines, nil
}

// Unchecked says that the kernel does not check the sources of an attachment's packets, or that it drops
// what the attachment sends from one of its addresses. It returns "" if everything is right.
func Unchecked(fw *nft.Conn, a Closure) (text string, err error) {
	want := a.sources()
	have, err := fw.Find(want...)
	for _, e := range want {
		if err == nil && !slices.ContainsFunc(have, e.SameKey) {
			return "the check of the sources of its packets lacks " + e.KeyText(), nil
		}
	}
	return "", err
}

// Attended adds missing parts of the check of an attachment's sources, and returns them.
func Attended(ctx context.Context, fw *nft.Conn, a Closure) (text string, err error) {
	if text, err = Unchecked(fw, a); text == "" || err != nil {
		return "", err
	}
	fw.Add(a.sources()...)
	mendSources(fw, a.Link != "", a.Port != "", true)
	return text, fw.Commit(ctx)
}

// Leave queues the removal of addresses from which an attachment does not send any more.
func Leave(fw *nft.Conn, a Closure, former []netip.Addr) {
	for _, e := range nft.Sources(a.Link, a.Port, former, a.Comment) {
		if e.Set != nft.SetOwnSource && e.Set != nft.SetPort {
			fw.Remove(e)
		}
	}
}
