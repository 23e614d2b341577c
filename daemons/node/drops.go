// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	served "github.com/patchbay-net/patchbay/daemons/internal/drops"
	"github.com/patchbay-net/patchbay/daemons/internal/nflog"
	"github.com/patchbay-net/patchbay/internal/drops"
	"github.com/patchbay-net/patchbay/internal/l4"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/policy"
	"github.com/patchbay-net/patchbay/internal/policy/enforce"
	"github.com/patchbay-net/patchbay/internal/sight"
)

const (
	// lingers is how long a message about a packet may be on its way, after the program that dropped it has gone.
	lingers = 2 * time.Second

	// mostFormer limits the memory for programs that have just gone. Constant change makes some in a second.
	mostFormer = 3

	// namesKept is how long the name of a pod that has gone is known.
	namesKept = time.Minute
)

// witness explains dropped packets by the programs that may have dropped them. It is safe for concurrent use.
type witness struct {
	mu     sync.Mutex
	state  *policy.State // of the newest program, for names
	next   *policy.Program
	now    *policy.Program   // in force
	former []replaced        // the last one first
	links  map[string]string // pods by their links
	names  names             // nil: to be made
	named  time.Time         // when they were made
	gone   map[netip.Addr]departed

	linkName func(index int) string
}

// replaced is a program that was in force.
type replaced struct {
	program *policy.Program
	at      time.Time
}

// departed is a pod that a program does not have any more.
type departed struct {
	pod string
	at  time.Time
}

func newWitness() *witness {
	return &witness{gone: map[netip.Addr]departed{}, linkName: func(index int) string {
		i, err := net.InterfaceByIndex(index)
		if err != nil {
			return "" // it has gone
		}
		return i.Name
	}}
}

// attach notes which pods have links of their own.
func (w *witness) attach(links map[string]string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.links = links
}

// expect notes the program that is put in force next.
func (w *witness) expect(s *policy.State, p *policy.Program) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.state, w.next = s, p
	w.names = nil
}

// replace notes that a program is in force.
func (w *witness) replace(p *policy.Program) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.now != nil && w.now != p {
		w.depart(w.now, p)
		w.former = slices.Insert(w.former, 0, replaced{w.now, time.Now()})
		w.former = w.former[:min(len(w.former), mostFormer)]
		time.AfterFunc(lingers, w.forget)
	}
	w.now = p
}

// forget gives up programs that have gone.
func (w *witness) forget() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.former = slices.DeleteFunc(w.former, func(r replaced) bool { return time.Since(r.at) >= lingers })
}

// depart keeps the names of pods that the next program lacks for a while.
func (w *witness) depart(was, next *policy.Program) {
	w.names = nil
	now := time.Now()
	for i := range was.Pods {
		for _, a := range was.Pods[i].Addresses {
			w.gone[a] = departed{was.Pods[i].Name, now}
		}
	}
	for i := range next.Pods {
		for _, a := range next.Pods[i].Addresses {
			delete(w.gone, a)
		}
	}
	for a, d := range w.gone {
		if now.Sub(d.at) > namesKept {
			delete(w.gone, a)
		}
	}
}

// explain implements drops.Options.Explain.
func (w *witness) explain(p nflog.Packet) drops.Drop {
	w.mu.Lock()
	defer w.mu.Unlock()
	way, cause, _ := enforce.ParsePrefix(p.Prefix)
	d := drops.Drop{
		Time: p.Time, Direction: way.String(), Cause: string(cause), From: w.end(p.From), To: w.end(p.To),
		Protocol: l4.Protocol(p.Protocol).String(), Port: p.Port,
	}
	switch cause {
	case enforce.CauseClosed:
		d.Reason = enforce.ClosedByAdd
	case enforce.CauseMidstream:
		d.Reason = midstream(l4.Protocol(p.Protocol))
	case enforce.CauseForged:
		d.From.Pod = w.links[w.linkName(p.Link)]
		d.Reason = "the pod may not send it: its source is not an address of the pod, or it is an ICMP error about a packet to somebody else"
	default:
		w.judge(&d, p, way, cause)
	}
	return d
}

// midstream says why a packet within a connection was dropped.
func midstream(proto l4.Protocol) string {
	if proto == l4.TCP {
		return "it is not the first packet of a TCP connection, and the kernel knows no connection of which it is a part"
	}
	return "it is an answer in a flow that a policy has ended"
}

// judge names the policies that denied a packet. The kernel's message comes after the packet, so a program that has just
// gone may have denied it, and the next one may be in force already.
func (w *witness) judge(d *drops.Drop, p nflog.Packet, way policy.Direction, cause enforce.Cause) {
	asked := []*policy.Program{w.now, w.next}
	for _, r := range w.former {
		asked = append(asked, r.program)
	}
	for _, program := range asked {
		if program == nil {
			continue
		}
		if cause == enforce.CauseIsolated && isolated(d, program, p, way) || cause == enforce.CauseDenied && denied(d, program, p, way) {
			return
		}
	}
	d.Unexplained, d.Reason = true, "not explained: no policy that the agent knows denies it, because the policies have just changed"
}

// isolated explains a packet that no rule of the policies allowed that isolate a pod.
func isolated(d *drops.Drop, program *policy.Program, p nflog.Packet, way policy.Direction) bool {
	a := [2]netip.Addr{p.To, p.From}[way]
	i := slices.IndexFunc(program.Pods, func(pod policy.LocalPod) bool { return slices.Contains(pod.Addresses, a) })
	if i < 0 || !program.Pods[i].Sides[way].Isolated {
		return false
	}
	if side := program.Pods[i].Sides[way]; !side.Unknown {
		d.Policies = isolators(program, side.Chains)
	}
	d.Reason = enforce.IsolatedBy(d.Policies)
	return true
}

// isolators returns the NetworkPolicies among chains, each once.
func isolators(program *policy.Program, chains []string) (list []string) {
	for i := range program.Chains {
		c := &program.Chains[i]
		if c.Tier == policy.Namespaced && slices.Contains(chains, c.Name) && !slices.Contains(list, c.Policy) {
			list = append(list, c.Policy)
		}
	}
	return list
}

// denied explains a packet that a rule denies.
func denied(d *drops.Drop, program *policy.Program, p nflog.Packet, way policy.Direction) bool {
	verdict, why := program.Allows(p.From, p.To, l4.Protocol(p.Protocol), p.Port)
	if verdict != policy.Deny {
		return false
	}
	last := why[len(why)-1]
	if last.Policy == "" || last.Direction != way {
		return false
	}
	d.Policies, d.Rule = []string{last.Policy}, last.Rule
	d.Reason = fmt.Sprintf("rule %s of %s denies it", last.Rule, enforce.Kind(last.Policy))
	return true
}

// end names what has an address. The caller holds the lock.
func (w *witness) end(a netip.Addr) sight.End {
	if w.names == nil || time.Since(w.named) >= namesKept {
		w.names, w.named = names{}, time.Now()
		w.each(func(of netip.Addr, is name) { w.names[of] = is })
	}
	return w.names.end(a)
}

// names says what each address is. A map that others may have is not changed.
type names map[netip.Addr]name

type name struct {
	text string
	node bool // not a pod
}

func (n names) end(a netip.Addr) sight.End {
	if is := n[a]; is.node {
		return sight.End{Address: a, Node: is.text}
	}
	return sight.End{Address: a, Pod: n[a].text}
}

// directory returns what each address is.
func (w *witness) directory() names {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.end(netip.Addr{})
	return w.names
}

// each calls do with each known address and what has it. Of several with one address, the last one counts.
func (w *witness) each(do func(netip.Addr, name)) {
	for a, d := range w.gone {
		if time.Since(d.at) < namesKept {
			do(a, name{text: d.pod})
		}
	}
	if w.state == nil {
		return
	}
	for i := range w.state.Nodes {
		n := &w.state.Nodes[i]
		for _, a := range slices.Concat(n.Addresses, n.Gateways()) {
			do(a, name{n.Name, true})
		}
	}
	for _, a := range w.state.Local {
		do(a, name{w.state.Node, true})
	}
	for i := range w.state.Pods {
		p := &w.state.Pods[i]
		if p.Enforced() { // else it has the addresses of its node, or none any more
			for _, a := range p.Addresses {
				do(a, name{text: p.Namespace + "/" + p.Name})
			}
		}
	}
}

// service returns what tells dropped packets, or nil if they are not told.
func (n *networkPolicy) service() *served.Service {
	if n.choices.DropsGroup == 0 || n.choices.Off {
		return nil
	}
	return served.New(served.Options{
		Group: n.choices.DropsGroup, Listener: n.choices.DropsListener, Explain: n.witness.explain, Counters: func() (map[served.Kind]uint64, error) { return counts(n.paths) },
		Failed: func(err error) { n.status.trouble.set(dropsUntold, err) },
	})
}

// counts reads the kernel's counters of dropped packets, with a connection of its own, because the agent's may wait for a
// lock.
func counts(p paths.Paths) (map[served.Kind]uint64, error) {
	fw := nft.Open(p.Run)
	defer fw.Close() //nolint:errcheck // nothing was written
	list, err := enforce.Counts(fw)
	out := make(map[served.Kind]uint64, len(list))
	for _, c := range list {
		out[served.Kind{Direction: c.Direction.String(), Cause: string(c.Cause)}] = c.Packets
	}
	return out, err
}

// untold says what it means that the kernel refused the rules that tell dropped packets.
func untold(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("dropped packets are counted and not told, because the kernel refuses rules that log to NFLOG: load the module nfnetlink_log: %w", err)
}
