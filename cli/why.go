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
	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/policy/enforce"
	"github.com/patchbay-net/patchbay/internal/policy/mirror"
)

const whyLong = `Print whether the network policies of this node let a packet pass, and which
policy and rule decides. The rules are those that the kernel has now, also if
somebody changed them. Nothing is changed, and no packet is sent.

FROM and TO are pods of this node (NAMESPACE/POD), containers as in inspect,
addresses, "node" for this node, or "world" for any address outside of the
cluster. Without a protocol it is tcp; without a port the answer is about all.
A node judges only its own pods: ask on both nodes if a packet goes between
two. If patchbay does the Services of this node, TO may be the address of one
or its name (NAMESPACE/SERVICE, or svc/NAMESPACE/SERVICE if a pod has the same
name): why prints to which endpoints the packet may go, and what the policies
do with it there. With only a Service, why prints what it shows to its clients.

The exit status is 0 if the packet may pass, 1 if it is dropped or rejected,
also by some of the addresses or endpoints, and 2 if the answer is not known or
the question is wrong.

  patchbay why shop/web shop/db:5432
  patchbay why 10.1.0.5 node:53/udp
  patchbay why world shop/web:icmp
  patchbay why shop/web 10.96.0.10:53/udp
  patchbay why 10.96.0.10`

type whyCommand struct {
	app  *app
	JSON bool `long:"json" description:"print a JSON object"`
	Args struct {
		From string `positional-arg-name:"FROM|SERVICE" required:"1"`
		To   string `positional-arg-name:"TO[:PORT[/PROTO]]"`
	} `positional-args:"yes"`
}

// These are exit codes of why. As with grep, status 1 is an answer, so each failure has status 2.
const (
	exitDropped   = 1
	exitUndecided = 2
)

// Execute answers the question.
func (c *whyCommand) Execute([]string) error {
	if err := needRoot("why"); err != nil {
		return undecided(err)
	}
	word := c.Args.To
	if word == "" {
		word = c.Args.From
	}
	target, err := why.ParseTarget(word)
	if err != nil {
		return undecided(hinted(err, "patchbay why shop/web shop/db:5432/tcp"))
	}
	s := c.app.session()
	defer s.Close()
	f, err := c.app.finder(kernel.OfSession(s))
	if err != nil {
		return undecided(err)
	}
	if c.Args.To == "" {
		return c.front(f, target)
	}
	a, err := c.ask(f, target)
	if err != nil {
		return undecided(err)
	}
	return c.print(a, a.Text(), a.Verdict)
}

// print prints an answer, and returns its exit status.
func (c *whyCommand) print(a any, text string, v why.Verdict) error {
	if err := c.app.show(a, text); err != nil {
		return undecided(err)
	}
	switch v {
	case why.Allowed:
		return nil
	case why.Dropped, why.Rejected, why.Mixed:
		return exit(exitDropped)
	}
	return exit(exitUndecided)
}

// undecided gives an error the status of an answer that is not known.
func undecided(err error) error {
	return &failure{err: err, hint: hintOf(err), code: exitUndecided}
}

func (c *whyCommand) ask(f *finder, target why.Target) (*why.Answer, error) {
	from, ferr := f.end(c.Args.From)
	if a, err := f.service(from, ferr, target); a != nil || err != nil {
		return a, err
	}
	to, terr := f.end(target.Word)
	if err := errors.Join(ferr, terr, answerable(from, to)); err != nil {
		return nil, err
	}
	return f.host.Ask(from, to, target)
}

// finder returns what finds pods, containers and Services by the words of a question.
func (a *app) finder(k *kernel.Kernel) (*finder, error) {
	f := &finder{host: why.Host{FW: k.NFT, Paths: a.paths}, kernel: k}
	list, err := a.seen("")
	if err != nil {
		return nil, err
	}
	f.alive = slices.DeleteFunc(list, func(s *localAttachment) bool { return !s.Alive })
	f.host.Own, f.ipvs, err = enforce.NodeAddresses()
	return f, err
}

// answerable returns an error if no policy of this node judges the packet.
func answerable(from, to why.End) error {
	switch {
	case from.Kind == "" || to.Kind == "": // another error says why
		return nil
	case from.Kind == why.Node && to.Kind == why.Node:
		return errors.New("policies do not judge packets of the node to itself")
	case from.Kind != why.Pod && to.Kind != why.Pod:
		return hinted(fmt.Errorf("neither %s nor %s is a pod of this node: no policy of this node judges the packet", from.Word, to.Word), "patchbay ps lists the pods of this node")
	}
	return nil
}

// finder resolves the two ends of a question to pods or addresses.
type finder struct {
	host   why.Host
	kernel *kernel.Kernel
	alive  []*localAttachment
	ipvs   []netip.Addr // of Services of kube-proxy in mode ipvs
}

func (f *finder) end(word string) (why.End, error) {
	switch word {
	case "world":
		return single(word, why.World, netip.Addr{}), nil
	case "node":
		return why.End{Word: word, Kind: why.Node, Interfaces: []why.Interface{{Addrs: f.host.Own}}}, nil
	}
	if a, err := netip.ParseAddr(word); err == nil {
		return f.address(a.Unmap())
	}
	if !f.alives(word) {
		return why.End{}, hinted(fmt.Errorf("%s is no pod or container with a network of this node", word),
			"patchbay ps lists them; name a pod of another node, or of the node's network, by its address")
	}
	found, err := find(f.alive, word, f.host.Paths.NetNS)
	if err != nil {
		return why.End{}, err
	}
	end := why.End{Word: word, Kind: why.Pod}
	for _, s := range found {
		end.Interfaces = append(end.Interfaces, s.asEnd())
	}
	if !slices.ContainsFunc(end.Interfaces, func(i why.Interface) bool { return len(i.Addrs) > 0 }) {
		return why.End{}, fmt.Errorf("the addresses of %s are not known: name one of them", word)
	}
	return end, nil
}

// alives reports whether a pod or container of this node has a name.
func (f *finder) alives(word string) bool {
	return slices.ContainsFunc(f.alive, func(s *localAttachment) bool { return s.called(word, f.host.Paths.NetNS) })
}

func single(word string, kind why.Kind, a netip.Addr) why.End {
	return why.End{Word: word, Kind: kind, Interfaces: []why.Interface{{Addrs: []netip.Addr{a}}}}
}

// address finds out whose an address is.
func (f *finder) address(a netip.Addr) (why.End, error) {
	word := a.String()
	local := slices.Contains(f.host.Own, a)
	if !local && (a.IsLoopback() || a.IsLinkLocalUnicast() || a.IsMulticast() || a.IsUnspecified()) {
		return why.End{}, fmt.Errorf("policies do not judge packets of %s, which is not the address of one pod or machine", word)
	}
	for _, s := range f.alive {
		i := s.asEnd()
		if slices.Contains(i.Addrs, a) {
			i.Addrs = []netip.Addr{a}
			return why.End{Word: strings.TrimSpace(word + " " + s.Pod), Kind: why.Pod, Interfaces: []why.Interface{i}}, nil
		}
	}
	if local { // even if it is a Service's: a DNS cache on the node may have the address, and gets the packets before kube-proxy
		return single(word, why.Node, a), nil
	}
	service, err := why.IsService(f.host.FW, a)
	if err != nil {
		return why.End{}, err
	}
	if service || slices.Contains(f.ipvs, a) {
		return why.End{}, hinted(fmt.Errorf("%s is the address of a Service: kube-proxy replaces it by the address of a pod, and the policies judge that address", word),
			"ask with a pod behind the Service, and with the port of this pod: kubectl get endpointslices --all-namespaces")
	}
	return single(word, why.Address, a), nil
}

// asEnd returns what policies know of an attachment. containerd attaches each pod to loopback, too.
func (s *localAttachment) asEnd() why.Interface {
	i := why.Interface{Network: s.Network}
	if p := s.policed; p != nil {
		i.Pod, i.Addrs = mirror.Pod{Namespace: p.Namespace, Name: p.Name, UID: p.UID}, p.Addrs
	}
	for _, text := range s.Addresses {
		if p, err := netip.ParsePrefix(text); err == nil && !p.Addr().IsLoopback() && !slices.Contains(i.Addrs, p.Addr()) {
			i.Addrs = append(i.Addrs, p.Addr())
		}
	}
	return i
}
