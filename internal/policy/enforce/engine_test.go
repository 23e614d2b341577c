// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/l4"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/nft/eval"
	"github.com/patchbay-net/patchbay/internal/policy"
	"github.com/patchbay-net/patchbay/internal/test/policytest"
	"github.com/patchbay-net/patchbay/internal/test/policytest/api"
)

// TestPackets sends real packets between namespaces, and compares what arrives with what the oracle
// of internal/test/policytest and Program.Allows answer. PATCHBAY_POLICY_TABLES is the number of tables.
func TestPackets(t *testing.T) {
	w := newTown(t)
	var fws [2]*nft.Conn
	for i := range fws {
		fws[i] = nft.Open(t.TempDir())
	}
	policytest.Compare(t, func() policytest.Engine {
		return &engine{town: w, enforcers: [2]*Enforcer{New(fws[0], Options{}), New(fws[1], Options{})}}
	}, policytest.Plan{Tables: policytest.Tables(t, 8, 24)})
}

// engine is two nodes of a cluster with real packets.
type engine struct {
	town      *town
	enforcers [2]*Enforcer
	programs  [2]*policy.Program
	views     [2]*View
	cluster   policytest.Cluster
	left      []netip.Addr // addresses of the cluster before
	numbers   map[policytest.Probe]uint32
}

// number is the number of the last probe.
var number uint32

// Load moves the town's addresses to the nodes that have them in the cluster, and loads the programs.
func (e *engine) Load(c policytest.Cluster) (err error) {
	defer func() {
		if err != nil {
			e.town.t.Log(err) // a smaller case may not repeat it
		}
	}()
	e.left = e.cluster.Addresses()
	e.cluster, e.numbers = c, nil
	s, err := stateOfCluster(c)
	if err != nil {
		return err
	}
	e.town.place(e.homes(&s))
	for i, h := range e.town.nodes {
		e.programs[i] = compileFor(&s, i)
		if err := h.Do(func() error { return e.load(i) }); err != nil {
			return fmt.Errorf("%s: %w", s.Node, err)
		}
	}
	return nil
}

// load loads the program of a node, and forgets the connections of earlier probes.
func (e *engine) load(i int) error {
	if err := e.enforcers[i].Load(e.town.t.Context(), e.programs[i], nil); err != nil {
		return err
	}
	var err error
	if e.views[i], err = lookAt(e.enforcers[i].fw, e.programs[i]); err != nil {
		return err
	}
	return netlink.ConntrackTableFlush(netlink.ConntrackTable)
}

// Close removes all policies.
func (e *engine) Close() error {
	return e.Load(policytest.Cluster{})
}

// homes returns the addresses of the nodes, and for each other address the node to which it is
// attached. What is not in the cluster is behind the first node.
func (e *engine) homes(s *policy.State) (nodes [2][]netip.Addr, others map[netip.Addr]int) {
	others = make(map[netip.Addr]int)
	for _, a := range append(e.left, e.cluster.Addresses()...) {
		others[a] = 0
	}
	for _, p := range s.Pods {
		if !p.HostNetwork && p.Phase != "Succeeded" && p.Phase != "Failed" {
			for _, a := range p.Addresses {
				others[a] = slices.IndexFunc(s.Nodes, func(n policy.Node) bool { return n.Name == p.Node })
			}
		}
	}
	for i, n := range s.Nodes {
		nodes[i] = slices.Concat(n.Addresses, n.Gateways())
		for _, a := range nodes[i] {
			delete(others, a)
		}
	}
	return nodes, others
}

// Allows reports whether a probe arrives. The first call after Load sends all probes.
func (e *engine) Allows(p policytest.Probe) (allowed bool, by string, err error) {
	if e.numbers == nil {
		if err := e.sendAll(); err != nil {
			return false, "", err
		}
	}
	n, ok := e.numbers[p]
	if !ok {
		return false, "", fmt.Errorf("no probe %s", p)
	}
	judged, judgeErr := e.judge(p)
	allowed = hasArrived(n, p.To)
	if p.From == p.To {
		allowed = judged // the packet never leaves the pod; one through a Service would
	}
	if oracle := e.cluster.Decide(p); oracle.Allowed != allowed {
		e.town.t.Logf("probe %d, %s: the kernel allows: %v, the oracle: %v", n, p, allowed, oracle.Allowed)
	}
	if program := e.decide(p); program != allowed {
		return allowed, "", fmt.Errorf("the kernel allows: %v, the program allows: %v", allowed, program)
	}
	if judgeErr != nil || judged != allowed {
		return allowed, "", fmt.Errorf("the kernel allows: %v, Judge: %v, %w", allowed, judged, judgeErr)
	}
	return allowed, "", nil
}

// decide asks the programs of both nodes.
func (e *engine) decide(p policytest.Probe) bool {
	for _, program := range e.programs {
		proto, port := packetOf(p)
		if proto == l4.ICMP || proto == l4.ICMPv6 {
			port = map[l4.Protocol]uint16{l4.ICMP: echo4, l4.ICMPv6: echo6}[proto]
		}
		if v, _ := program.Allows(p.From, p.To, proto, port); v == policy.Deny {
			return false
		}
	}
	return true
}

// judge asks Judge about the rules of both nodes.
func (e *engine) judge(p policytest.Probe) (bool, error) {
	for i, program := range e.programs {
		list, err := e.views[i].Judge(packetFor(program, p))
		if err != nil || FateOf(list) != eval.Accepted {
			return false, err
		}
	}
	return true, nil
}

// sendAll sends every probe of the cluster. It repeats those that the oracle allows until they
// arrive, because a busy machine loses packets (net.core.netdev_max_backlog).
func (e *engine) sendAll() error {
	forgetArrivals()
	e.numbers = make(map[policytest.Probe]uint32)
	var wanted []policytest.Probe
	for i, p := range e.cluster.Probes(e.left...) {
		number++
		e.numbers[p] = number
		if e.cluster.Decide(p).Allowed {
			wanted = append(wanted, p)
		}
		if err := e.send(p, number); err != nil {
			return fmt.Errorf("send %s: %w", p, err)
		}
		if i%200 == 0 {
			time.Sleep(time.Millisecond)
		}
	}
	for try := 0; len(wanted) > 0 && try < 5; try++ {
		until(func() bool {
			wanted = slices.DeleteFunc(wanted, func(p policytest.Probe) bool { return hasArrived(e.numbers[p], p.To) })
			return len(wanted) == 0
		})
		for _, p := range wanted {
			if err := e.send(p, e.numbers[p]); err != nil {
				return fmt.Errorf("send %s: %w", p, err)
			}
		}
	}
	time.Sleep(2 * time.Millisecond) // for what should not arrive
	return nil
}

func (e *engine) send(p policytest.Probe, number uint32) error {
	proto, port := packetOf(p)
	h := e.town.homes[p.From]
	for _, node := range e.town.nodes {
		if node.sockets[p.From] != nil {
			h = node
		}
	}
	_, err := h.sockets[p.From][uint8(proto)].WriteTo(packet(number, p.From, p.To, uint8(proto), port), &net.IPAddr{IP: p.To.AsSlice()})
	return err
}

// packetOf returns the protocol and the port of a probe.
func packetOf(p policytest.Probe) (l4.Protocol, uint16) {
	switch {
	case p.Protocol == api.ProtocolTCP:
		return unix.IPPROTO_TCP, uint16(p.Port)
	case p.Protocol == api.ProtocolUDP:
		return unix.IPPROTO_UDP, uint16(p.Port)
	case p.Protocol == api.ProtocolSCTP:
		return unix.IPPROTO_SCTP, uint16(p.Port)
	case p.From.Is4():
		return l4.ICMP, 0
	}
	return l4.ICMPv6, 0
}

// stateOfCluster reads a cluster's objects as the API serves them.
func stateOfCluster(c policytest.Cluster) (s policy.State, err error) {
	if s.Nodes, err = parse(c.Nodes, policy.ParseNode); err != nil {
		return s, err
	}
	if s.Namespaces, err = parse(c.Namespaces, policy.ParseNamespace); err != nil {
		return s, err
	}
	if s.Pods, err = parse(c.Pods, policy.ParsePod); err != nil {
		return s, err
	}
	if s.Policies, err = parse(c.Policies, policy.ParseNetworkPolicy); err != nil {
		return s, err
	}
	s.ClusterPolicies, err = parse(c.ClusterPolicies, parseBroken)
	return s, err
}

func parse[A, T any](objects []A, read func([]byte) (T, error)) (out []T, err error) {
	for _, o := range objects {
		text, err := policytest.JSON(o)
		if err != nil {
			return nil, err
		}
		parsed, err := read(text)
		if err != nil {
			return nil, err
		}
		out = append(out, parsed)
	}
	return out, nil
}

// parseBroken reads a policy that may be broken, as the generator makes some.
func parseBroken(text []byte) (policy.ClusterNetworkPolicy, error) {
	p, err := policy.ParseClusterNetworkPolicy(text)
	if p.Broken != "" {
		err = nil
	}
	return p, err
}
