// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"syscall"

	"github.com/patchbay-net/patchbay/cli/gc"
	"github.com/patchbay-net/patchbay/cli/why"
	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/l4"
	"github.com/patchbay-net/patchbay/internal/trace"
)

const traceLong = `Send one packet, and print where it ends, why, and what mends it. First patchbay
asks the kernel's routes and the network policies, without a packet. Then it
sends a SYN, a UDP datagram or an echo request from the container, and follows
it and its answer through the container, the host and the target: each rule of
nftables that they meet, in the tables of every program. If the two disagree,
it says so.

FROM is a pod of this node (NAMESPACE/POD), a container as in inspect, the
address of one, or "host". TO may also be any other address, a Service as in
why, or "world", for a packet that leaves the node. Without a port it is icmp,
without a protocol tcp.

No program sees the packet as a connection. While trace runs, at most some
seconds, the kernel has two tables that end with it, also if it is killed. The
exit status is 0 if the packet arrives, or leaves the node; 1 if it ends
somewhere, or is refused; and 2 if the question is wrong.

  patchbay trace shop/web shop/db:5432
  patchbay trace web 10.88.0.3
  patchbay trace web world:443
  patchbay trace host shop/db:53/udp`

type traceCommand struct {
	app  *app
	JSON bool `long:"json" description:"print a JSON object"`
	Args struct {
		From string `positional-arg-name:"FROM" required:"1"`
		To   string `positional-arg-name:"TO[:PORT[/PROTO]]" required:"1"`
	} `positional-args:"yes"`
}

// testNet is an address that nobody has (TEST-NET-1, RFC 5737): a packet to it takes the way to the world.
const testNet = "192.0.2.1"

// Execute traces a packet.
func (c *traceCommand) Execute([]string) error {
	if err := needRoot("trace"); err != nil {
		return undecided(err)
	}
	target, err := traceTarget(c.Args.To)
	if err != nil {
		return undecided(hinted(err, "patchbay trace shop/web shop/db:5432/tcp"))
	}
	s := c.app.session()
	defer s.Close()
	f, err := c.app.finder(kernel.OfSession(s))
	if err != nil {
		return undecided(err)
	}
	q, err := f.traced(c.Args.From, target)
	if err != nil {
		return undecided(err)
	}
	return c.send(q)
}

// send has patchbayd send the packet and print the report: this program has no room for it.
func (c *traceCommand) send(q *trace.Question) error {
	program, err := gc.DriverProgram()
	if err != nil {
		return undecided(fmt.Errorf("send a packet: %w", err))
	}
	question, err := json.Marshal(q)
	if err != nil {
		return undecided(err)
	}
	cmd := exec.Command(program, "trace")
	if c.JSON {
		cmd.Args = append(cmd.Args, "--json")
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = bytes.NewReader(question), c.app.stdout, c.app.stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // the kernel then removes what it has made
	if err := cmd.Start(); err != nil {
		return undecided(fmt.Errorf("run %s: %w", program, err))
	}
	return status(cmd.Wait())
}

// traceTarget reads TO. What is sent has a protocol and, unless it is an echo request, a port.
func traceTarget(text string) (t why.Target, err error) {
	if t, err = why.ParseTarget(text); err != nil {
		return t, err
	}
	switch {
	case t.Protocol == 0:
		t.Protocol = l4.ICMP
	case t.Protocol != l4.ICMP && t.Protocol != l4.TCP && t.Protocol != l4.UDP:
		return t, fmt.Errorf("%q: trace sends tcp, udp and icmp", text)
	case t.Protocol != l4.ICMP && t.Port == 0:
		return t, fmt.Errorf("%q: a packet of %s has a port", text, t.Protocol)
	}
	return t, nil
}

// traced makes the question.
func (f *finder) traced(word string, target why.Target) (*trace.Question, error) {
	from, err := f.end(asNode(word))
	switch {
	case err != nil:
		return nil, err
	case from.Kind != why.Pod && from.Kind != why.Node:
		return nil, hinted(fmt.Errorf("%s is not on this node: trace sends from containers of this node, and from the host", word), "patchbay ps lists them")
	}
	target.Word = asNode(target.Word)
	services, target, err := f.serviceAddresses(target)
	if err != nil {
		return nil, err
	}
	q := &trace.Question{Protocol: target.Protocol, Port: target.Port, Mute: target.Word == "world", Containers: f.containers()}
	to, err := f.tracedTo(q, target, services)
	if err != nil {
		return nil, err
	}
	return q, f.choose(q, from, to, target)
}

// asNode returns the word that why has for the host.
func asNode(word string) string {
	if word == "host" {
		return "node"
	}
	return word
}

// tracedTo returns the target. services are the addresses that may be a Service's.
func (f *finder) tracedTo(q *trace.Question, target why.Target, services []netip.Addr) (why.End, error) {
	if q.Mute {
		return single(target.Word, why.World, netip.MustParseAddr(testNet)), nil
	}
	to, err := f.end(target.Word)
	if err != nil && len(services) > 0 { // the name of a Service, or the address of one of kube-proxy's
		q.Translated = true
		end := single(target.Word, why.Address, services[0])
		end.Interfaces[0].Addrs = services
		return end, nil
	}
	return to, err
}

// choose chooses the addresses between which the packet goes.
func (f *finder) choose(q *trace.Question, from, to why.End, target why.Target) error {
	list := why.Pairs(from, to)
	if len(list) == 0 {
		return fmt.Errorf("%s and %s have no addresses of one family", from.Word, to.Word)
	}
	near := slices.IndexFunc(list, func(p [2]netip.Addr) bool { return to.Kind == why.Node && f.near(p[0], p[1]) })
	pair := list[max(near, 0)]
	var ferr, terr error
	q.From, ferr = f.traceEnd(from, pair[0])
	q.To, terr = f.traceEnd(to, pair[1])
	if from.Kind == why.Node {
		q.From.Addr = netip.Addr{} // the kernel chooses
	}
	if err := errors.Join(ferr, terr); err != nil {
		return err
	}
	return f.judged(q, from, to, pair, target)
}

// near reports whether an address is in the subnet of a container's address.
func (f *finder) near(container, a netip.Addr) bool {
	return slices.ContainsFunc(f.alive, func(s *localAttachment) bool {
		return slices.ContainsFunc(s.Addresses, func(text string) bool {
			p, err := netip.ParsePrefix(text)
			return err == nil && p.Addr() == container && p.Contains(a)
		})
	})
}

// traceEnd returns an end with the namespace in which it is.
func (f *finder) traceEnd(e why.End, a netip.Addr) (trace.End, error) {
	end := trace.End{Word: e.Word, Addr: a, Local: e.Kind == why.Node}
	if end.Local {
		end.Word = "host"
	}
	if e.Kind != why.Pod {
		return end, nil
	}
	list := f.alive
	if f.alives(e.Word) {
		list = slices.DeleteFunc(slices.Clone(list), func(s *localAttachment) bool { return !s.called(e.Word, f.host.Paths.NetNS) })
	}
	i := slices.IndexFunc(list, func(s *localAttachment) bool { return slices.Contains(s.asEnd().Addrs, a) })
	if i < 0 || list[i].NetNS == "" {
		return end, fmt.Errorf("the namespace of %s is not known", e.Word)
	}
	end.Local, end.NS = true, list[i].NetNS
	return end, nil
}

// containers returns the containers of this node, each once for each of its addresses.
func (f *finder) containers() (list []trace.End) {
	for _, s := range f.alive {
		for _, a := range s.asEnd().Addrs {
			if s.NetNS != "" {
				list = append(list, trace.End{Word: cmp.Or(s.Pod, s.Name, s.ContainerID), Addr: a, Local: true, NS: s.NetNS})
			}
		}
	}
	return list
}

// judged says what the Services and the network policies of the node do with the packet. Only what policies surely drop is not allowed.
func (f *finder) judged(q *trace.Question, from, to why.End, pair [2]netip.Addr, target why.Target) error {
	if to.Kind == why.Address && target.Port != 0 {
		sender := only(from, pair[0])
		if from.Kind == why.Node {
			sender = f.sending(from, pair[1:])
		}
		a, err := f.host.AskService(sender, target, pair[1:], f.address)
		if a != nil || err != nil {
			q.Translated, q.Policies = true, judgementOf(a)
			return err
		}
	}
	if q.Translated || to.Kind == why.World || answerable(from, to) != nil {
		return nil
	}
	a, err := f.host.Ask(only(from, pair[0]), only(to, pair[1]), target)
	q.Policies = judgementOf(a)
	return err
}

// judgementOf returns an answer of why in one line.
func judgementOf(a *why.Answer) *trace.Judgement {
	if a == nil {
		return nil
	}
	text := strings.ReplaceAll(strings.TrimSpace(a.Text()), "\n", "; ")
	_, reasons, _ := strings.Cut(text, "; ")
	return &trace.Judgement{
		Text:    strings.Join(strings.Fields(string(a.Verdict)+": "+reasons), " "),
		Allowed: a.Verdict != why.Dropped && a.Verdict != why.Rejected,
	}
}

// only returns an end with one of its addresses.
func only(e why.End, a netip.Addr) why.End {
	var list []why.Interface
	for _, i := range e.Interfaces {
		if slices.Contains(i.Addrs, a) {
			i.Addrs = []netip.Addr{a}
			list = append(list, i)
		}
	}
	e.Interfaces = list
	return e
}
