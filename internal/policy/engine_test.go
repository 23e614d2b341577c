// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"fmt"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/l4"
	"github.com/patchbay-net/patchbay/internal/test/policytest"
)

// engine is the programs of all nodes of a cluster.
type engine struct {
	state    State
	programs map[string]*Program
}

// TestEngine compares programs with an oracle that was written apart from them.
func TestEngine(t *testing.T) {
	policytest.Compare(t, func() policytest.Engine {
		return &engine{programs: make(map[string]*Program)}
	}, policytest.Plan{Tables: policytest.Tables(t, 20, 60), Probes: 300})
}

// Load reads the objects as the API serves them, and compiles the program of each node. The same state gives the same
// program.
func (e *engine) Load(c policytest.Cluster) (err error) {
	if e.state, err = stateOf(c); err != nil {
		return err
	}
	for _, n := range e.state.Nodes {
		e.state.Node = n.Name
		e.programs[n.Name] = Compile(&e.state)
		if again := Compile(&e.state).String(); again != e.programs[n.Name].String() {
			return fmt.Errorf("compiled twice, the program of %s is\n%s\nand\n%s", n.Name, e.programs[n.Name], again)
		}
	}
	return nil
}

// stateOf reads a cluster, without the name of this node.
func stateOf(c policytest.Cluster) (s State, err error) {
	if err := parseAll(c.Nodes, ParseNode, &s.Nodes); err != nil {
		return s, err
	}
	if err := parseAll(c.Namespaces, ParseNamespace, &s.Namespaces); err != nil {
		return s, err
	}
	if err := parseAll(c.Pods, ParsePod, &s.Pods); err != nil {
		return s, err
	}
	if err := parseAll(c.Policies, ParseNetworkPolicy, &s.Policies); err != nil {
		return s, err
	}
	if err := parseAll(c.ClusterPolicies, parseBroken, &s.ClusterPolicies); err != nil {
		return s, err
	}
	return s, nil
}

func parseAll[A, T any](objects []A, parse func([]byte) (T, error), into *[]T) error {
	for _, o := range objects {
		text, err := policytest.JSON(o)
		if err != nil {
			return err
		}
		parsed, err := parse(text)
		if err != nil {
			return err
		}
		*into = append(*into, parsed)
	}
	return nil
}

// Allows asks the nodes of both ends.
func (e *engine) Allows(p policytest.Probe) (allowed bool, by string, err error) {
	proto, port := packetOf(p)
	for _, program := range e.programs {
		v, why := program.Allows(p.From, p.To, proto, port)
		name, _, _ := strings.Cut(why[len(why)-1].Policy, ", ")
		if v == Deny {
			return false, name, nil
		}
		if name != "" {
			by = name
		}
	}
	return true, by, nil
}

// packetOf returns the protocol and the port of a probe. ICMP is an echo request.
func packetOf(p policytest.Probe) (l4.Protocol, uint16) {
	switch proto, err := l4.Parse(string(p.Protocol)); {
	case err == nil:
		return proto, uint16(p.Port)
	case p.From.Is4():
		return l4.ICMP, 8
	}
	return l4.ICMPv6, 128
}

// In its ADD a pod needs no more than the policies of its namespace and of the cluster: the chains
// are the same as in the program of the whole cluster. So an ADD does not read the cluster.
func TestOnePodAlone(t *testing.T) {
	compared := 0
	for seed := range uint64(100) {
		g := policytest.NewGenerator(seed, policytest.Small)
		whole, err := stateOf(g.Clone())
		if err != nil {
			t.Fatal(err)
		}
		for i := range whole.Pods {
			p := &whole.Pods[i]
			whole.Node = p.Node
			alone := Compile(whole.alone(p))
			for _, l := range Compile(&whole).Pods {
				if l.Name != p.path() {
					continue
				}
				compared++
				if len(alone.Pods) != 1 || !alone.Pods[0].equal(&l) {
					t.Fatalf("seed %d: got %s alone, want %s", seed, alone.Pods, l)
				}
			}
		}
	}
	if compared < 200 {
		t.Errorf("compared %d pods, want 200", compared)
	}
}

// alone returns the part of a state that decides about the isolation of one pod.
func (s *State) alone(p *Pod) *State {
	part := &State{Node: p.Node, Pods: []Pod{*p}, ClusterPolicies: s.ClusterPolicies}
	for _, n := range s.Namespaces {
		if n.Name == p.Namespace {
			part.Namespaces = append(part.Namespaces, n)
		}
	}
	for _, np := range s.Policies {
		if np.Namespace == p.Namespace {
			part.Policies = append(part.Policies, np)
		}
	}
	return part
}

// parseBroken reads a policy that may be broken, as the generator makes some.
func parseBroken(text []byte) (ClusterNetworkPolicy, error) {
	p, err := ParseClusterNetworkPolicy(text)
	if p.Broken != "" {
		err = nil
	}
	return p, err
}
