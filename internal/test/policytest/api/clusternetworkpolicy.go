// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package api

// ClusterNetworkPolicy is one of policy.networking.k8s.io/v1alpha2.
type ClusterNetworkPolicy struct {
	ObjectMeta `json:"metadata"`
	Spec       ClusterNetworkPolicySpec `json:"spec"`
}

// ClusterNetworkPolicySpec is when the policy is asked, for which pods, and its rules.
type ClusterNetworkPolicySpec struct {
	Tier     Tier                              `json:"tier"`
	Priority int32                             `json:"priority"`
	Subject  ClusterNetworkPolicySubject       `json:"subject"`
	Ingress  []ClusterNetworkPolicyIngressRule `json:"ingress,omitempty"`
	Egress   []ClusterNetworkPolicyEgressRule  `json:"egress,omitempty"`
}

// Tier is whether the policy is asked before the NetworkPolicies or after them.
type Tier string

// These are the tiers.
const (
	AdminTier    Tier = "Admin"
	BaselineTier Tier = "Baseline"
)

// ClusterNetworkPolicySubject is the pods of a policy. It has one field.
type ClusterNetworkPolicySubject struct {
	Namespaces *LabelSelector `json:"namespaces,omitempty"`
	Pods       *NamespacedPod `json:"pods,omitempty"`
}

// NamespacedPod selects pods in selected namespaces.
type NamespacedPod struct {
	NamespaceSelector LabelSelector `json:"namespaceSelector"`
	PodSelector       LabelSelector `json:"podSelector"`
}

// ClusterNetworkPolicyIngressRule is about what the pods get.
type ClusterNetworkPolicyIngressRule struct {
	Action    ClusterNetworkPolicyRuleAction    `json:"action"`
	From      []ClusterNetworkPolicyIngressPeer `json:"from"`
	Protocols []ClusterNetworkPolicyProtocol    `json:"protocols,omitempty"`
}

// ClusterNetworkPolicyEgressRule is about what the pods send.
type ClusterNetworkPolicyEgressRule struct {
	Action    ClusterNetworkPolicyRuleAction   `json:"action"`
	To        []ClusterNetworkPolicyEgressPeer `json:"to"`
	Protocols []ClusterNetworkPolicyProtocol   `json:"protocols,omitempty"`
}

// ClusterNetworkPolicyRuleAction is what a rule does with what it matches.
type ClusterNetworkPolicyRuleAction string

// These are the actions.
const (
	ClusterNetworkPolicyRuleActionAccept ClusterNetworkPolicyRuleAction = "Accept"
	ClusterNetworkPolicyRuleActionDeny   ClusterNetworkPolicyRuleAction = "Deny"
	ClusterNetworkPolicyRuleActionPass   ClusterNetworkPolicyRuleAction = "Pass"
)

// ClusterNetworkPolicyIngressPeer is where something comes from. It has one field, or is of a later version.
type ClusterNetworkPolicyIngressPeer struct {
	Namespaces *LabelSelector `json:"namespaces,omitempty"`
	Pods       *NamespacedPod `json:"pods,omitempty"`
}

// ClusterNetworkPolicyEgressPeer is where something goes. It has one field, or is of a later version.
type ClusterNetworkPolicyEgressPeer struct {
	Namespaces  *LabelSelector `json:"namespaces,omitempty"`
	Pods        *NamespacedPod `json:"pods,omitempty"`
	Nodes       *LabelSelector `json:"nodes,omitempty"`
	Networks    []string       `json:"networks,omitempty"`
	DomainNames []string       `json:"domainNames,omitempty"`
}

// ClusterNetworkPolicyProtocol is a protocol with its ports, or a port by its name. It has one field.
type ClusterNetworkPolicyProtocol struct {
	TCP                  *ClusterNetworkPolicyPorts `json:"tcp,omitempty"`
	UDP                  *ClusterNetworkPolicyPorts `json:"udp,omitempty"`
	SCTP                 *ClusterNetworkPolicyPorts `json:"sctp,omitempty"`
	DestinationNamedPort string                     `json:"destinationNamedPort,omitempty"`
}

// ClusterNetworkPolicyPorts is ports of one protocol. Upstream has such a type for each protocol.
type ClusterNetworkPolicyPorts struct {
	DestinationPort *Port `json:"destinationPort,omitempty"`
}

// Port is a number, or a range of numbers.
type Port struct {
	Number int32      `json:"number,omitempty"`
	Range  *PortRange `json:"range,omitempty"`
}

// PortRange is all numbers from Start to End.
type PortRange struct {
	Start int32 `json:"start"`
	End   int32 `json:"end"`
}
