// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"encoding/json"
	"errors"
	"fmt"
)

// ClusterNetworkPolicy is a ClusterNetworkPolicy of policy.networking.k8s.io/v1alpha2.
type ClusterNetworkPolicy struct {
	Name string
	Spec ClusterNetworkPolicySpec

	// Broken says why the tier, the priority or the subject cannot be understood. A broken policy denies,
	// in its tier, all traffic of the pods that it selects. An error in a rule breaks only that rule.
	Broken string
}

// ClusterNetworkPolicySpec has the API's fields.
type ClusterNetworkPolicySpec struct {
	Tier     string               `json:"tier"`
	Priority int32                `json:"priority"`
	Subject  PodPeer              `json:"subject"`
	Ingress  []ClusterIngressRule `json:"ingress,omitempty"`
	Egress   []ClusterEgressRule  `json:"egress,omitempty"`
}

// PodPeer selects pods. Exactly one field is set.
type PodPeer struct {
	Namespaces *Selector      `json:"namespaces,omitempty"`
	Pods       *NamespacedPod `json:"pods,omitempty"`
}

// NamespacedPod selects pods by their labels and by those of their namespace.
type NamespacedPod struct {
	NamespaceSelector Selector `json:"namespaceSelector"`
	PodSelector       Selector `json:"podSelector"`
}

// ClusterIngressRule decides on traffic from its peers.
type ClusterIngressRule struct {
	Name      string            `json:"name,omitempty"`
	Action    string            `json:"action"`
	From      []PodPeer         `json:"from"`
	Protocols []ClusterProtocol `json:"protocols,omitempty"`

	// Broken says why the rule cannot be understood, such as a field of a later API. Then only Name and
	// Action count: a broken rule accepts nothing, or denies everything in its direction.
	Broken string `json:"-"`
}

// ClusterEgressRule decides on traffic to its peers.
type ClusterEgressRule struct {
	Name      string              `json:"name,omitempty"`
	Action    string              `json:"action"`
	To        []ClusterEgressPeer `json:"to"`
	Protocols []ClusterProtocol   `json:"protocols,omitempty"`

	Broken string `json:"-"` // as in ClusterIngressRule
}

// ClusterEgressPeer is a destination. Exactly one field is set.
type ClusterEgressPeer struct {
	PodPeer
	Nodes       *Selector `json:"nodes,omitempty"`
	Networks    []string  `json:"networks,omitempty"`
	DomainNames []string  `json:"domainNames,omitempty"` // read, so that it can be refused
}

// ClusterProtocol is a protocol with a port, or a port's name. Exactly one field is set.
type ClusterProtocol struct {
	TCP       *DestinationPort `json:"tcp,omitempty"`
	UDP       *DestinationPort `json:"udp,omitempty"`
	SCTP      *DestinationPort `json:"sctp,omitempty"`
	NamedPort string           `json:"destinationNamedPort,omitempty"`
}

// DestinationPort is the ports of one protocol. Without a port it is all of them.
type DestinationPort struct {
	DestinationPort *ClusterPort `json:"destinationPort,omitempty"`
}

// ClusterPort is one port or a range.
type ClusterPort struct {
	Number int32      `json:"number,omitempty"`
	Range  *PortRange `json:"range,omitempty"`
}

// PortRange is a range with both ends.
type PortRange struct {
	Start int32 `json:"start"`
	End   int32 `json:"end"`
}

// ParseClusterNetworkPolicy reads a policy as the API serves it. As with ParseNetworkPolicy, a
// policy with a name and an error is broken; add it to the State all the same. A broken rule is not an
// error.
func ParseClusterNetworkPolicy(text []byte) (p ClusterNetworkPolicy, err error) {
	var o object
	if err := json.Unmarshal(text, &o); err != nil {
		return p, fmt.Errorf("read a clusternetworkpolicy: %w", err)
	}
	p.Name = o.Metadata.Name
	if p.Name == "" {
		return p, errors.New("read a clusternetworkpolicy: it has no name")
	}
	if err := p.Spec.read(o.Spec); err != nil {
		p.Broken = err.Error()
		return p, fmt.Errorf("read clusternetworkpolicy %s: %w", p.Name, err)
	}
	return p, nil
}

// read reads a specification. Its error is about a part that decides which pods the policy selects, or
// when it applies. If the subject cannot be read, the policy selects every pod.
func (s *ClusterNetworkPolicySpec) read(text []byte) error {
	var parts struct{ Tier, Priority, Subject, Ingress, Egress json.RawMessage }
	if err := json.Unmarshal(text, &parts); err != nil {
		return err
	}
	unknown := strict(text, &parts)
	err := errors.Join(part("tier", parts.Tier, &s.Tier), part("priority", parts.Priority, &s.Priority))
	if bad := part("subject", parts.Subject, &s.Subject); bad != nil {
		s.Subject, err = PodPeer{}, errors.Join(err, bad)
	}
	err = errors.Join(err, part("ingress", parts.Ingress, &s.Ingress), part("egress", parts.Egress, &s.Egress))
	if unknown != nil {
		s.breakRules(unknown)
	}
	return oneLine(err)
}

// part reads a part of a specification. A part that is missing stays empty.
func part(name string, text []byte, into any) error {
	if len(text) == 0 {
		return nil
	}
	if err := strict(text, into); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// breakRules breaks all rules because of an unknown field beside them, which may be a condition of
// each rule.
func (s *ClusterNetworkPolicySpec) breakRules(unknown error) {
	for i := range s.Ingress {
		s.Ingress[i].Broken = unknown.Error()
	}
	for i := range s.Egress {
		s.Egress[i].Broken = unknown.Error()
	}
}

// UnmarshalJSON never fails: a rule that cannot be read is broken.
func (r *ClusterIngressRule) UnmarshalJSON(text []byte) error {
	type plain ClusterIngressRule
	var p plain
	if err := strict(text, &p); err != nil {
		p = plain{Broken: err.Error()}
		p.Name, p.Action = ruleRemains(text)
	}
	*r = ClusterIngressRule(p)
	return nil
}

// UnmarshalJSON never fails: a rule that cannot be read is broken.
func (r *ClusterEgressRule) UnmarshalJSON(text []byte) error {
	type plain ClusterEgressRule
	var p plain
	if err := strict(text, &p); err != nil {
		p = plain{Broken: err.Error()}
		p.Name, p.Action = ruleRemains(text)
	}
	*r = ClusterEgressRule(p)
	return nil
}

// ruleRemains reads what can be read of a broken rule. Without an action, the rule denies.
func ruleRemains(text []byte) (name, action string) {
	var parts struct{ Name, Action json.RawMessage }
	_ = json.Unmarshal(text, &parts) // then both are empty
	_ = part("name", parts.Name, &name)
	_ = part("action", parts.Action, &action)
	return name, action
}
