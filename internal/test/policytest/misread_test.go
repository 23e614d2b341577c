// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policytest

import (
	"github.com/patchbay-net/patchbay/internal/test/policytest/api"
)

// misread is an engine with a planted bug: the oracle, on a cluster and a probe that it misreads.
type misread struct {
	cluster func(*Cluster)         // once, in Load
	probe   func(*Cluster, *Probe) // for each probe
	loaded  Cluster
}

func (m *misread) Load(c Cluster) error {
	m.loaded = c
	if m.cluster != nil {
		m.cluster(&m.loaded)
	}
	return nil
}

func (m *misread) Allows(p Probe) (allowed bool, policy string, err error) {
	c := m.loaded
	if m.probe != nil {
		c = c.Clone()
		m.probe(&c, &p)
	}
	return c.Decide(p).Allowed, "", nil
}

// late is an engine that misses a part of a change, as one that updates its state by differences
// might.
type late struct {
	misread
	last   *Cluster
	misses func(last, next *Cluster)
}

func (l *late) Load(c Cluster) error {
	if l.last != nil {
		l.misses(l.last, &c)
	}
	kept := c.Clone()
	l.last = &kept
	return l.misread.Load(c)
}

// eachRule rewrites the peers and ports of every rule of the NetworkPolicies. A rule for which
// rewrite returns false is dropped.
func eachRule(c *Cluster, rewrite func(namespace string, peers *[]api.NetworkPolicyPeer, ports *[]api.NetworkPolicyPort) bool) {
	for i := range c.Policies {
		np := &c.Policies[i]
		np.Spec.PolicyTypes = typesOf(np) // which rules are dropped does not change them
		var ingress []api.NetworkPolicyIngressRule
		for _, r := range np.Spec.Ingress {
			if rewrite(np.Namespace, &r.From, &r.Ports) {
				ingress = append(ingress, r)
			}
		}
		var egress []api.NetworkPolicyEgressRule
		for _, r := range np.Spec.Egress {
			if rewrite(np.Namespace, &r.To, &r.Ports) {
				egress = append(egress, r)
			}
		}
		np.Spec.Ingress, np.Spec.Egress = ingress, egress
	}
}

// eachPort rewrites every port of the NetworkPolicies' rules.
func eachPort(rewrite func(*api.NetworkPolicyPort)) func(*Cluster) {
	return func(c *Cluster) {
		eachRule(c, func(_ string, _ *[]api.NetworkPolicyPeer, ports *[]api.NetworkPolicyPort) bool {
			for i := range *ports {
				rewrite(&(*ports)[i])
			}
			return true
		})
	}
}

// eachPeer replaces every peer of the NetworkPolicies' rules by others. A rule that loses its last
// peer is dropped: without peers it would allow all.
func eachPeer(replace func(namespace string, peer api.NetworkPolicyPeer) []api.NetworkPolicyPeer) func(*Cluster) {
	return func(c *Cluster) {
		eachRule(c, func(namespace string, peers *[]api.NetworkPolicyPeer, _ *[]api.NetworkPolicyPort) bool {
			var out []api.NetworkPolicyPeer
			for _, peer := range *peers {
				out = append(out, replace(namespace, peer)...)
			}
			empty := len(*peers) > 0 && len(out) == 0
			*peers = out
			return !empty
		})
	}
}

// eachPod rewrites every pod.
func eachPod(rewrite func(*api.Pod)) func(*Cluster) {
	return func(c *Cluster) {
		for i := range c.Pods {
			rewrite(&c.Pods[i])
		}
	}
}
