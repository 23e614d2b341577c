// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"net/netip"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/policy"
	"github.com/patchbay-net/patchbay/internal/policy/enforce"
)

// The experiment policies has one node for each number of network policies and each way to enforce
// them. All nodes have the network of patchbayd node and the same two pods, whose namespace has one
// of a hundred parts of the policies. All of them select both pods, and only the last one allows
// their traffic.

// policiesExperiment is the name of this experiment. It has its own page.
const policiesExperiment = "policies"

// These are the ways to enforce policies. With sources, packets are only from whom they say: it is what an ADD
// itself does for each pod, whether there are policies or not.
const (
	nothing   = "none"
	sources   = "sources"
	byNft     = "Patchbay"
	byIpset   = "ipset"
	localPods = 110
	spaces    = 100 // namespaces
	perSpace  = 50  // pods of each namespace in the cluster
)

// sourcesFloor is the part of the rate without a check of sources that remains with it.
const sourcesFloor = 0.98

// enforcement is a way with a number of policies.
type enforcement struct {
	way      string
	policies int
}

// enforcements are those that are measured. The first one is the measure of the others.
var enforcements = []enforcement{{nothing, 0}, {sources, 0}, {byNft, 0}, {byNft, 100}, {byNft, 1000}, {byIpset, 100}, {byIpset, 1000}}

func (e enforcement) node() string { return fmt.Sprintf("%s.%d", e.way, e.policies) }

// policies measures the traffic between two pods of one node. The nodes take turns.
func (l *lab) policies() error {
	if len(l.want(oursOne)) == 0 {
		return nil
	}
	for _, e := range enforcements {
		if err := l.policyNode(e); err != nil {
			return err
		}
	}
	for round := range l.pick(24, 2) + 1 {
		for _, kind := range kinds {
			for i := range enforcements {
				e := enforcements[(i+round)%len(enforcements)]
				rep, err := l.ask(e.node(), request{Op: "traffic", Chain: kind.name, Pod: "client", To: l.served[e.node()], N: l.pick(1500, 300)})
				if err != nil {
					return err
				}
				if round > 0 { // the first round warms up
					key := e.node() + "/" + kind.name
					l.results.Policies[key] = append(l.results.Policies[key], rep.Rate)
				}
			}
		}
	}
	return nil
}

// policyNode makes the pods of a node, and loads the policies.
func (l *lab) policyNode(e enforcement) error {
	l.plugins[e.node()] = l.plugins[oursOne]
	for _, pod := range []string{"client", "server"} {
		if _, err := l.ask(e.node(), request{Op: "pod", Chain: oursOne, Pod: pod}); err != nil {
			return err
		}
	}
	rep, err := l.ask(e.node(), request{Op: "policies", Chain: e.way, N: e.policies})
	l.served[e.node()] = rep.Text
	return err
}

// enforce makes a node enforce policies, and returns the address of the server.
func (w *worker) enforce(way string, policies int) (string, error) {
	client, err := podAddress("client")
	if err != nil {
		return "", err
	}
	server, err := podAddress("server")
	if err != nil || way == sources {
		return server, err
	}
	fw := nft.Open(paths.Default().Run)
	defer fw.Close()
	e := enforce.New(fw, enforce.Options{})
	if way == nothing {
		return server, e.Clear(context.Background())
	}
	program := policy.Compile(policyState(client, server, policies))
	if way == byIpset {
		return server, ipsetRules(program)
	}
	return server, e.Load(context.Background(), program, nil)
}

// policyState is a cluster in which the two pods are on this node.
func policyState(client, server string, policies int) *policy.State {
	s := &policy.State{Node: "n0", Nodes: []policy.Node{{Name: "n0", Addresses: []netip.Addr{wireAddr(0)}}}}
	for i := range spaces {
		name := fmt.Sprint("ns", i)
		s.Namespaces = append(s.Namespaces, policy.Namespace{Name: name, Labels: policy.LabelsOf(map[string]string{"team": fmt.Sprint("t", i%10)})})
		for j := range perSpace {
			n := i*perSpace + j
			p := policy.Pod{
				Namespace: name, Name: fmt.Sprint("pod", j), Node: fmt.Sprint("n", 1+n/localPods), Phase: "Running",
				Labels:    policy.LabelsOf(map[string]string{"app": fmt.Sprint("app", j%10)}),
				Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 211, byte(n >> 8), byte(n)})},
			}
			if n%(spaces*perSpace/localPods) == 0 {
				p.Node = "n0"
			}
			s.Pods = append(s.Pods, p)
		}
	}
	for i, addr := range []string{client, server} {
		s.Pods[i].Node, s.Pods[i].Addresses = "n0", []netip.Addr{netip.MustParseAddr(addr)}
	}
	for i := range policies {
		s.Policies = append(s.Policies, onePolicy(i, i/spaces == policies/spaces-1))
	}
	return s
}

// onePolicy selects all pods of a namespace, in both directions. The last one of the namespace
// allows everything within it, and the others allow pods of other teams.
func onePolicy(i int, last bool) policy.NetworkPolicy {
	p := policy.NetworkPolicy{Namespace: fmt.Sprint("ns", i%spaces), Name: fmt.Sprintf("p%04d", i)}
	peer := policy.Peer{
		NamespaceSelector: &policy.Selector{MatchLabels: policy.LabelsOf(map[string]string{"team": fmt.Sprint("t", 1+i/spaces%9)})},
		PodSelector:       &policy.Selector{MatchLabels: policy.LabelsOf(map[string]string{"app": fmt.Sprint("app", i%10)})},
	}
	ports := []policy.RulePort{{Port: &policy.PortValue{Number: int32(1000 + i/spaces)}}, {Port: &policy.PortValue{Number: 80}}}
	if last {
		peer, ports = policy.Peer{PodSelector: &policy.Selector{}}, nil
	}
	p.Spec.PolicyTypes = []string{"Ingress", "Egress"}
	p.Spec.Ingress = []policy.IngressRule{{From: []policy.Peer{peer}, Ports: ports}}
	p.Spec.Egress = []policy.EgressRule{{To: []policy.Peer{peer}, Ports: ports}}
	return p
}

// writePolicies writes the page of this experiment.
func (r *results) writePolicies(w io.Writer) {
	fmt.Fprintf(w, `# What network policies cost a packet

Made by `+"`go run ./test/bench -only policies`"+`, which `+"`make bench`"+` runs; do not edit. %s, %s, %d cores, Linux %s.

Traffic between two pods of one node with the network of `+"`patchbayd node`"+`: medians, and quartiles in parentheses. The cluster has %d namespaces with
%d pods each, %d of them on this node. Each namespace has a hundredth of the policies. They select all pods of the namespace in both directions, and
only the last one allows the traffic. *ipset* enforces the same program with iptables rules and sets of the kind that kube-router writes, through
iptables-nft. On *sources* the kernel only checks that a packet is from whom it says,
as each ADD has it done; on *none* it does not. The ratio to *none* is the median of the rounds' ratios. The target of Patchbay is at least %.2f,
and of sources alone %.2f.

| policies | enforced by | traffic | rate | ratio | |
| --: | --- | --- | --: | --: | --- |
`, r.Date, r.Machine.CPU, r.Machine.Cores, r.Machine.Kernel, spaces, perSpace, localPods, packetFloor, sourcesFloor)
	for _, kind := range kinds {
		for _, e := range enforcements {
			r.writePolicyRow(w, e, kind.name, kind.unit)
		}
	}
}

func (r *results) writePolicyRow(w io.Writer, e enforcement, kind, unit string) {
	rates := r.Policies[e.node()+"/"+kind]
	low, ratio, high := quartiles(ratios(rates, r.Policies[enforcements[0].node()+"/"+kind]))
	if ratio == 0 {
		return
	}
	verdict := ""
	if floor, ok := map[string]float64{byNft: packetFloor, sources: sourcesFloor}[e.way]; ok {
		verdict = met
		if ratio < floor {
			verdict = missed
		}
	}
	fmt.Fprintf(w, "| %d | %s | %s, %s | %s | %.2fx (%.2f-%.2f) | %s |\n", e.policies, e.way, kind, unit, rateText(rates), ratio, low, high, verdict)
}
