// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
)

// NetworkPolicy is a NetworkPolicy of networking.k8s.io/v1.
type NetworkPolicy struct {
	Namespace, Name string
	Spec            NetworkPolicySpec

	// Broken says why the policy cannot be understood. A broken policy isolates what it selects
	// and allows nothing: a rule that is only half understood could allow packets that it should deny.
	Broken string
}

// NetworkPolicySpec has the API's fields.
type NetworkPolicySpec struct {
	PodSelector Selector      `json:"podSelector"`
	PolicyTypes []string      `json:"policyTypes,omitempty"`
	Ingress     []IngressRule `json:"ingress,omitempty"`
	Egress      []EgressRule  `json:"egress,omitempty"`
}

// IngressRule allows traffic from each of its peers to each of its ports.
type IngressRule struct {
	Ports []RulePort `json:"ports,omitempty"`
	From  []Peer     `json:"from,omitempty"`
}

// EgressRule allows traffic to each of its ports of each of its peers.
type EgressRule struct {
	Ports []RulePort `json:"ports,omitempty"`
	To    []Peer     `json:"to,omitempty"`
}

// Peer is the other end of a connection.
type Peer struct {
	PodSelector       *Selector `json:"podSelector,omitempty"`
	NamespaceSelector *Selector `json:"namespaceSelector,omitempty"`
	IPBlock           *IPBlock  `json:"ipBlock,omitempty"`
}

// IPBlock is a network without some networks in it.
type IPBlock struct {
	CIDR   string   `json:"cidr"`
	Except []string `json:"except,omitempty"`
}

// RulePort is a port by number or by name, a range of ports, or all ports of a protocol.
type RulePort struct {
	Protocol string     `json:"protocol,omitempty"`
	Port     *PortValue `json:"port,omitempty"`
	EndPort  *int32     `json:"endPort,omitempty"`
}

// PortValue is the API's IntOrString.
type PortValue struct {
	Number int32
	Name   string // if set, Number does not count
}

// UnmarshalJSON reads a number or a string.
func (v *PortValue) UnmarshalJSON(text []byte) error {
	*v = PortValue{}
	if len(text) > 0 && text[0] == '"' {
		return json.Unmarshal(text, &v.Name)
	}
	return json.Unmarshal(text, &v.Number)
}

// MarshalJSON writes a number or a string.
func (v PortValue) MarshalJSON() ([]byte, error) {
	if v.Name != "" {
		return json.Marshal(v.Name)
	}
	return json.Marshal(v.Number)
}

// object has the parts that policies of both kinds share. The labels of a policy decide nothing.
type object struct {
	Metadata struct {
		Namespace string `json:"namespace"`
		Name      string `json:"name"`
	} `json:"metadata"`
	Spec json.RawMessage `json:"spec"`
}

// ParseNetworkPolicy reads a policy as the API serves it. If err is not nil and the policy has a
// name, the policy is broken; add it to the State all the same. An unknown field breaks the
// policy, because a rule without its unknown condition allows too much.
func ParseNetworkPolicy(text []byte) (p NetworkPolicy, err error) {
	var o object
	if err := json.Unmarshal(text, &o); err != nil {
		return p, fmt.Errorf("read a networkpolicy: %w", err)
	}
	p = NetworkPolicy{Namespace: o.Metadata.Namespace, Name: o.Metadata.Name}
	if p.Name == "" || p.Namespace == "" {
		return p, errors.New("read a networkpolicy: it has no name or no namespace")
	}
	if err := strict(o.Spec, &p.Spec); err != nil {
		p.Broken, p.Spec = err.Error(), remains(o.Spec)
		return p, fmt.Errorf("read networkpolicy %s/%s: %w", p.Namespace, p.Name, err)
	}
	return p, nil
}

// strict reads JSON and refuses unknown fields.
func strict(text []byte, into any) error {
	d := json.NewDecoder(bytes.NewReader(text))
	d.DisallowUnknownFields()
	return d.Decode(into)
}

// remains reads what can be read of a broken specification: which pods it selects, and in
// which directions. What cannot be read is empty, so it selects every pod in both directions.
func remains(text []byte) (s NetworkPolicySpec) {
	var parts struct{ PodSelector, PolicyTypes json.RawMessage }
	_ = json.Unmarshal(text, &parts) // then both parts are empty
	if strict(parts.PodSelector, &s.PodSelector) != nil {
		s.PodSelector = Selector{}
	}
	if strict(parts.PolicyTypes, &s.PolicyTypes) != nil || len(s.PolicyTypes) == 0 {
		s.PolicyTypes = []string{"Ingress", "Egress"}
	}
	return s
}
