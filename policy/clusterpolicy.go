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

	// Broken says why the policy cannot be understood. A broken policy denies, in its tier, all
	// traffic of the pods that it selects.
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
}

// ClusterEgressRule decides on traffic to its peers.
type ClusterEgressRule struct {
	Name      string              `json:"name,omitempty"`
	Action    string              `json:"action"`
	To        []ClusterEgressPeer `json:"to"`
	Protocols []ClusterProtocol   `json:"protocols,omitempty"`
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
// policy with a name and an error is broken; add it to the State all the same.
func ParseClusterNetworkPolicy(text []byte) (p ClusterNetworkPolicy, err error) {
	var o object
	if err := json.Unmarshal(text, &o); err != nil {
		return p, fmt.Errorf("read a clusternetworkpolicy: %w", err)
	}
	p.Name = o.Metadata.Name
	if p.Name == "" {
		return p, errors.New("read a clusternetworkpolicy: it has no name")
	}
	if err := strict(o.Spec, &p.Spec); err != nil {
		p.Broken, p.Spec = err.Error(), clusterRemains(o.Spec)
		return p, fmt.Errorf("read clusternetworkpolicy %s: %w", p.Name, err)
	}
	return p, nil
}

// clusterRemains reads what can be read of a broken specification. Without a subject that can be
// read, the policy selects every pod.
func clusterRemains(text []byte) (s ClusterNetworkPolicySpec) {
	var parts struct{ Tier, Priority, Subject json.RawMessage }
	_ = json.Unmarshal(text, &parts) // then all parts are empty
	_ = strict(parts.Tier, &s.Tier)
	_ = strict(parts.Priority, &s.Priority)
	if strict(parts.Subject, &s.Subject) != nil {
		s.Subject = PodPeer{}
	}
	return s
}
