// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package why

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/policy/enforce"
	"github.com/patchbay-net/patchbay/internal/services"
	svc "github.com/patchbay-net/patchbay/internal/services/enforce"
)

// Rejected is the verdict about a packet that is answered with an error. Only Services do that.
const Rejected Verdict = "rejected"

// Translation is what the Services of this node do with a packet, before policies judge it.
type Translation struct {
	From     string        `json:"from,omitempty"`     // the sender's address, if it is one
	Frontend string        `json:"frontend,omitempty"` // "10.96.0.1:80/tcp", or "node port 30080/tcp"
	Service  string        `json:"service,omitempty"`  // "shop/web http, cluster IP", if the agent knows it
	Action   string        `json:"action"`             // "translated", "rejected", "dropped" or "unknown"
	Text     string        `json:"text"`
	Affinity uint32        `json:"affinitySeconds,omitempty"`
	To       []Destination `json:"endpoints,omitempty"` // each is equally likely

	verdict Verdict
}

// Destination is where a packet may go.
type Destination struct {
	Endpoint    string   `json:"endpoint"`
	Masquerades string   `json:"masqueraded,omitempty"` // why it gets a source address of the node
	Verdict     Verdict  `json:"verdict"`               // of the policies
	Packets     []Packet `json:"packets"`
}

// Ends finds out whose an address is.
type Ends func(netip.Addr) (End, error)

// AskService answers what happens to a packet from one end to a port of addresses that may be a Service's. It returns nil if no
// Service has any of them. whose finds the ends of the endpoints.
func (h Host) AskService(from End, target Target, to []netip.Addr, whose Ends) (a *Answer, err error) {
	err = svc.WithView(h.FW, func(v *svc.View) error {
		if a = nil; !v.Exists() {
			return nil
		}
		return enforce.WithView(h.FW, func(policies *enforce.View) error {
			q := &serviceQuestion{question: question{Host: h, view: policies, from: from, target: target}, services: v, whose: whose}
			a, err = q.answer(to)
			return err
		})
	})
	return a, err
}

// serviceQuestion is a question about a frontend to one state of the kernel.
type serviceQuestion struct {
	question
	services *svc.View
	whose    Ends
	known    *services.Program // nil: the names of Services are not known
}

func (q *serviceQuestion) answer(to []netip.Addr) (*Answer, error) {
	a := &Answer{From: q.from.Word, To: q.target.Word, Port: q.target.String(), Packets: []Packet{}}
	var err error
	if q.known, err = q.names(); err != nil {
		return nil, err
	}
	var verdicts []Packet
	for _, pair := range Pairs(q.from, End{Interfaces: []Interface{{Addrs: to}}}) {
		t, err := q.translate(pair[0], pair[1])
		if err != nil {
			return nil, err
		}
		if t == nil {
			continue
		}
		a.Services = append(a.Services, *t)
		verdicts = append(verdicts, Packet{Verdict: t.verdict})
	}
	if len(a.Services) == 0 {
		return nil, nil
	}
	a.Verdict = together(verdicts)
	a.Services, a.Cautions = merged(a.Services), q.cautions
	return a, nil
}

// translate decides about a packet between two addresses. It returns nil if no Service does anything with it.
func (q *serviceQuestion) translate(from, to netip.Addr) (*Translation, error) {
	k := services.Packet{From: from, To: netip.AddrPortFrom(to, q.target.Port), Protocol: q.target.Protocol}
	table, err := q.services.Around(at(k), nodePort(k))
	if err != nil {
		return nil, err
	}
	if k.Remembered, err = q.services.Remembered(k); err != nil {
		return nil, err
	}
	r := table.Judge(k, q.isOwn)
	t := &Translation{From: text(from), Frontend: q.frontend(k, r), Service: q.owner(r.Frontend), Action: r.Action.String(), Affinity: r.Affinity}
	switch fault := q.services.Fault(); {
	case fault != "":
		t.Action, t.verdict, t.Text = "unknown", Unknown, "what the table inet "+nft.ServicesTable+" does is not known, because "+fault+": patchbay doctor"
		return t, nil
	case r.Cause == services.NoService:
		return nil, nil
	case r.Cause == services.Torn || r.Cause == services.SourceDecide:
		t.Action = "unknown"
	}
	shown, _ := table.Show(r.Frontend)
	t.Text, t.verdict = because(r, k, shown), map[string]Verdict{"rejected": Rejected, "dropped": Dropped, "unknown": Unknown}[t.Action]
	if r.Action != services.Translated {
		return t, nil
	}
	return t, q.endpoints(t, table, k, r)
}

// at returns the frontend that a packet asks for.
func at(k services.Packet) services.Frontend {
	return services.Frontend{Addr: k.To.Addr(), Protocol: k.Protocol, Port: k.To.Port()}
}

// nodePort returns the node port that a packet may meet.
func nodePort(k services.Packet) services.Frontend {
	f := at(k)
	if f.Addr = netip.IPv4Unspecified(); k.To.Addr().Is6() {
		f.Addr = netip.IPv6Unspecified()
	}
	return f
}

// isOwn reports whether an address is one of this node.
func (q *serviceQuestion) isOwn(a netip.Addr) bool {
	return a.IsLoopback() || slices.Contains(q.Own, a)
}

// endpoints judges the packet with the address of each endpoint, as policies do.
func (q *serviceQuestion) endpoints(t *Translation, table services.Table, k services.Packet, r services.Ruling) error {
	var verdicts []Packet
	for _, d := range r.To {
		e := Destination{Endpoint: d.Endpoint.String(), Masquerades: table.Hides(r.Frontend, k, d.Endpoint.Addr(), q.isOwn), Packets: []Packet{}}
		end, err := q.whose(d.Endpoint.Addr())
		if err != nil {
			return fmt.Errorf("endpoint %s: %w", d.Endpoint, err)
		}
		if err := q.policed(&e, k.From, d.Endpoint, end); err != nil {
			return err
		}
		t.To, verdicts = append(t.To, e), append(verdicts, Packet{Verdict: e.Verdict})
	}
	t.verdict = together(verdicts)
	return nil
}

// policed asks the policies about a packet to an endpoint. Without a pod of this node, none judges it here.
func (q *serviceQuestion) policed(e *Destination, from netip.Addr, to netip.AddrPort, end End) error {
	p := &question{Host: q.Host, view: q.view, from: q.from.only(from), to: end, target: Target{Word: end.Word, Protocol: q.target.Protocol, Port: to.Port()}}
	if q.from.Kind != Pod && end.Kind != Pod {
		if e.Verdict = Allowed; end.Kind == Address {
			p.caution("ingress of %s is not judged here: if it is a pod, ask on its node", end.Word)
		}
	} else {
		a, err := p.answer()
		if err != nil {
			return err
		}
		e.Verdict, e.Packets = a.Verdict, a.Packets
	}
	for _, c := range p.cautions {
		q.caution("%s", c)
	}
	return nil
}

// only returns the end with one of its addresses.
func (e End) only(a netip.Addr) End {
	e.Interfaces = slices.Clone(e.Interfaces)
	for i := range e.Interfaces {
		if slices.Contains(e.Interfaces[i].Addrs, a) {
			e.Interfaces[i].Addrs = []netip.Addr{a}
			e.Interfaces = e.Interfaces[i : i+1]
			break
		}
	}
	return e
}

// because says in a user's words what decides.
func because(r services.Ruling, k services.Packet, s services.Shown) string {
	switch r.Cause {
	case services.ByEndpoints:
		if len(r.To) == 1 {
			return "to its only endpoint"
		}
		return fmt.Sprintf("to one of %d endpoints", len(r.To))
	case services.ByMemory:
		return "to the endpoint that it had before (affinity)"
	case services.SourceRanges:
		return fmt.Sprintf("loadBalancerSourceRanges do not have %s, only %s", k.From, ranges(s.Sources))
	case services.SourceDecide:
		return "only loadBalancerSourceRanges may come in: " + ranges(s.Sources)
	}
	return answerText(r.Cause, r.Outside)
}

func ranges(list []netip.Prefix) string {
	if len(list) == 0 {
		return "none that can be read"
	}
	return strings.Trim(fmt.Sprint(list), "[]")
}

// answerText says why a frontend has no endpoint.
func answerText(c services.Cause, outside bool) string {
	switch {
	case c == services.NoEndpoints:
		return "no endpoint on any node is ready"
	case c == services.NoneHere && outside:
		return "externalTrafficPolicy is Local and no endpoint is on this node"
	case c == services.NoneHere:
		return "internalTrafficPolicy is Local and no endpoint is on this node"
	case c == services.OtherPort:
		return "the address is a cluster IP, and no Service has this port of it"
	case c == services.Unassigned:
		return "the address is in a ServiceCIDR, and no Service has it"
	}
	return "slots of its endpoints are missing, so it may find one or not: patchbay doctor"
}

// frontend returns the frontend that a packet meets, or where it goes if it meets none.
func (q *question) frontend(k services.Packet, r services.Ruling) string {
	if r.Frontend.Port == 0 {
		return FrontendText(at(k))
	}
	return FrontendText(r.Frontend)
}

// AtNodePort reports whether the packet meets a node port.
func (t *Translation) AtNodePort() bool { return strings.HasPrefix(t.Frontend, nodePortPrefix) }

const nodePortPrefix = "node port "

// FrontendText returns a frontend as users know it: "10.96.0.1:80/tcp", or "node port 30080/tcp".
func FrontendText(f services.Frontend) string {
	if f.Addr.IsUnspecified() {
		return fmt.Sprintf(nodePortPrefix+"%d/%s", f.Port, f.Protocol)
	}
	if f.Port == 0 {
		return f.Addr.String() + " " + f.Protocol.String()
	}
	return fmt.Sprintf("%s/%s", netip.AddrPortFrom(f.Addr, f.Port), f.Protocol)
}

// merged leaves of translations that differ only in the sender's address the first, without the address.
func merged(list []Translation) (out []Translation) {
	for _, t := range list {
		i := slices.IndexFunc(out, func(o Translation) bool { return o.text() == t.text() })
		if i < 0 {
			out = append(out, t)
		} else {
			out[i].From = ""
		}
	}
	return out
}

func (t *Translation) text() string {
	var b strings.Builder
	name := ""
	if t.Service != "" {
		name = " of " + t.Service
	}
	fmt.Fprintf(&b, "  %s%s: %s, %s\n", t.Frontend, name, t.Action, t.Text)
	if t.Affinity > 0 {
		fmt.Fprintf(&b, "  affinity: the client stays with its endpoint until it has begun no connection for %v\n", time.Duration(t.Affinity)*time.Second)
	}
	for _, e := range t.To {
		masq := ""
		if e.Masquerades != "" {
			masq = ", with the address of this node, because " + e.Masquerades
		}
		fmt.Fprintf(&b, "  %s: %s%s\n", e.Endpoint, e.Verdict, masq)
		for _, p := range e.Packets {
			for _, s := range p.Steps {
				b.WriteString("  " + strings.ReplaceAll(strings.TrimSuffix(s.text(), "\n"), "\n", "\n  ") + "\n")
			}
		}
	}
	return b.String()
}
