// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/cli/why"
	"github.com/patchbay-net/patchbay/internal/l4"
	"github.com/patchbay-net/patchbay/internal/services"
	svc "github.com/patchbay-net/patchbay/internal/services/enforce"
)

// service answers a question about the address or the name of a Service. It returns nil if the target is none. unknown
// says why the sender is not known.
func (f *finder) service(from why.End, unknown error, target why.Target) (*why.Answer, error) {
	to, target, err := f.serviceAddresses(target)
	switch {
	case err != nil || len(to) == 0:
		return nil, err
	case unknown != nil:
		return nil, unknown
	}
	if from.Kind == why.Node {
		from = f.sending(from, to)
	}
	a, err := f.host.AskService(from, target, to, f.address)
	if a == nil || err != nil {
		return nil, err
	}
	for _, addr := range to {
		if other, err := why.IsService(f.host.FW, addr); err == nil && (other || slices.Contains(f.ipvs, addr)) {
			a.Cautions = append(a.Cautions, fmt.Sprintf("kube-proxy translates packets to %s, too, and whichever is first in the kernel decides: patchbay doctor", addr))
		}
		if slices.Contains(f.host.Own, addr) && !a.Services[0].AtNodePort() {
			a.Cautions = append(a.Cautions, fmt.Sprintf("%s is an address of this node: packets that are not tracked (NodeLocal DNSCache) meet no Service", addr))
		}
	}
	return a, nil
}

// serviceAddresses returns the addresses that a Service may have, and the target with the Service's port if it has only one.
func (f *finder) serviceAddresses(target why.Target) ([]netip.Addr, why.Target, error) {
	if a, err := netip.ParseAddr(target.Word); err == nil {
		a = a.Unmap()
		if f.ofPod(a) || target.Port == 0 && target.Protocol != l4.ICMP {
			return nil, target, f.needsPort(a)
		}
		return []netip.Addr{a}, target, nil
	}
	list, err := f.named(target.Word, f.host.ClusterIPs)
	if err != nil || list == nil {
		return nil, target, err
	}
	list = matching(list, target)
	var addrs []netip.Addr
	for _, fr := range list {
		if f := list[0]; fr.Port != f.Port || fr.Protocol != f.Protocol {
			return nil, target, hinted(fmt.Errorf("%s has several ports", target.Word), "name one of them: %s", ports(list))
		}
		addrs = append(addrs, fr.Addr)
	}
	if len(list) == 0 {
		return nil, target, hinted(fmt.Errorf("Service %s has no cluster IP with %s", target.Word, target), "patchbay why %s", target.Word)
	}
	target.Port, target.Protocol = list[0].Port, list[0].Protocol
	return addrs, target, nil
}

func (f *finder) ofPod(a netip.Addr) bool {
	return slices.ContainsFunc(f.alive, func(s *localAttachment) bool { return slices.Contains(s.asEnd().Addrs, a) })
}

// needsPort returns an error if an address is a Service's, because a Service translates only single ports.
func (f *finder) needsPort(a netip.Addr) error {
	if f.ofPod(a) {
		return nil
	}
	var list []services.Frontend
	err := svc.WithView(f.host.FW, func(v *svc.View) (err error) { list, err = v.Frontends(a); return err })
	if err != nil || len(list) == 0 {
		return err
	}
	return hinted(fmt.Errorf("%s is the address of a Service, which translates single ports", a), "name one of them: %s", ports(list))
}

// named returns the frontends of a Service, or nil if the word names none. A pod of this node comes first.
func (f *finder) named(word string, find func(services.Name) ([]services.Frontend, error)) ([]services.Frontend, error) {
	name, sure, ok := why.ServiceNamed(word)
	if !ok || !sure && f.alives(word) {
		return nil, nil
	}
	list, err := find(name)
	switch {
	case errors.Is(err, why.ErrNoNames) && !sure:
		return nil, nil
	case errors.Is(err, why.ErrNoNames):
		return nil, hinted(err, "ask with its address: kubectl get service --namespace %s %s", name.Namespace, name.Name)
	case err == nil && len(list) == 0 && sure:
		return nil, fmt.Errorf("Service %s has no address that this node knows: it does not exist, is headless, or another service proxy has it", name)
	}
	return list, err
}

// matching returns the frontends that have the port and the protocol of a target, if it has some.
func matching(list []services.Frontend, target why.Target) []services.Frontend {
	return slices.DeleteFunc(slices.Clone(list), func(f services.Frontend) bool {
		return target.Port != 0 && f.Port != target.Port || target.Protocol != 0 && f.Protocol != target.Protocol
	})
}

func ports(list []services.Frontend) string {
	var texts []string
	for _, f := range list {
		if text := fmt.Sprintf("%d/%s", f.Port, f.Protocol); !slices.Contains(texts, text) {
			texts = append(texts, text)
		}
	}
	return strings.Join(texts, ", ")
}

// sending returns the node with the addresses from which it sends to a Service: the kernel chooses them by the route to the address, before
// Services translate it. Without a route it is any of its addresses.
func (f *finder) sending(node why.End, to []netip.Addr) why.End {
	host, err := f.kernel.Host()
	if err != nil {
		return node
	}
	var own []netip.Addr
	for _, a := range to {
		routes, err := host.RouteGet(a.AsSlice())
		if err != nil || len(routes) == 0 {
			return node
		}
		if src, ok := netip.AddrFromSlice(routes[0].Src); ok {
			own = append(own, src.Unmap())
		}
	}
	node.Interfaces = []why.Interface{{Addrs: own}}
	return node
}

// front prints what a Service shows to its clients.
func (c *whyCommand) front(f *finder, target why.Target) error {
	list, err := f.named(target.Word, f.host.Frontends)
	if err != nil {
		return undecided(err)
	}
	a, aerr := netip.ParseAddr(target.Word)
	if list == nil && target.Word != "node" && aerr != nil {
		return undecided(hinted(fmt.Errorf("%s is no Service that this node knows", target.Word), "patchbay why FROM TO[:PORT[/PROTO]], or the address of a Service alone"))
	}
	s, err := f.host.Show(c.Args.From, func(v *svc.View) (all []services.Frontend, err error) {
		if all = list; list == nil {
			all, err = frontendsAt(v, a.Unmap())
		}
		return matching(all, target), err
	})
	if err != nil {
		return undecided(err)
	}
	if len(s.Frontends) == 0 {
		return undecided(fmt.Errorf("no Service has a frontend %s here", c.Args.From))
	}
	return c.print(s, s.Text(), s.Status())
}

// frontendsAt returns the frontends at an address. All node ports are at "node", which has none.
func frontendsAt(v *svc.View, a netip.Addr) (all []services.Frontend, err error) {
	at := []netip.Addr{a}
	if !a.IsValid() {
		at = []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()}
	}
	for _, addr := range at {
		list, err := v.Frontends(addr)
		if err != nil {
			return nil, err
		}
		all = append(all, list...)
	}
	return all, nil
}
