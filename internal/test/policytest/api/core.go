// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package api

// LabelMetadataName is the label with the name of a namespace, which the API server sets.
const LabelMetadataName = "kubernetes.io/metadata.name"

// Namespace is one of v1.
type Namespace struct {
	ObjectMeta `json:"metadata,omitzero"`
}

// Node is one of v1.
type Node struct {
	ObjectMeta `json:"metadata,omitzero"`
	Spec       NodeSpec   `json:"spec,omitzero"`
	Status     NodeStatus `json:"status,omitzero"`
}

// NodeSpec has the prefixes of the node's pods.
type NodeSpec struct {
	PodCIDRs []string `json:"podCIDRs,omitempty"`
}

// NodeStatus has the node's own addresses.
type NodeStatus struct {
	Addresses []NodeAddress `json:"addresses,omitempty"`
}

// NodeAddress is an address, or the node's name.
type NodeAddress struct {
	Type    NodeAddressType `json:"type"`
	Address string          `json:"address"`
}

// NodeAddressType is what an address of a node is.
type NodeAddressType string

// These are the types that a generator draws.
const (
	NodeHostName   NodeAddressType = "Hostname"
	NodeInternalIP NodeAddressType = "InternalIP"
)

// Pod is one of v1.
type Pod struct {
	ObjectMeta `json:"metadata,omitzero"`
	Spec       PodSpec   `json:"spec,omitzero"`
	Status     PodStatus `json:"status,omitzero"`
}

// PodSpec is where the pod runs, and its containers.
type PodSpec struct {
	InitContainers []Container `json:"initContainers,omitempty"`
	Containers     []Container `json:"containers,omitempty"`
	NodeName       string      `json:"nodeName,omitempty"`
	HostNetwork    bool        `json:"hostNetwork,omitempty"`
}

// Container has the named ports of a pod.
type Container struct {
	Name          string                  `json:"name"`
	Ports         []ContainerPort         `json:"ports,omitempty"`
	RestartPolicy *ContainerRestartPolicy `json:"restartPolicy,omitempty"`
}

// ContainerRestartPolicy makes an init container a sidecar.
type ContainerRestartPolicy string

// ContainerRestartPolicyAlways is that of a sidecar.
const ContainerRestartPolicyAlways ContainerRestartPolicy = "Always"

// ContainerPort is a port of a container, with a name or without.
type ContainerPort struct {
	Name          string   `json:"name,omitempty"`
	ContainerPort int32    `json:"containerPort"`
	Protocol      Protocol `json:"protocol,omitempty"`
}

// Protocol is what carries a port.
type Protocol string

// These are the protocols that have ports.
const (
	ProtocolTCP  Protocol = "TCP"
	ProtocolUDP  Protocol = "UDP"
	ProtocolSCTP Protocol = "SCTP"
)

// PodStatus has the addresses of a pod, and whether it runs.
type PodStatus struct {
	Phase  PodPhase `json:"phase,omitempty"`
	PodIPs []PodIP  `json:"podIPs,omitempty"`
}

// PodPhase is how far a pod is.
type PodPhase string

// These are the phases.
const (
	PodPending   PodPhase = "Pending"
	PodRunning   PodPhase = "Running"
	PodSucceeded PodPhase = "Succeeded"
	PodFailed    PodPhase = "Failed"
	PodUnknown   PodPhase = "Unknown"
)

// PodIP is one address.
type PodIP struct {
	IP string `json:"ip"`
}
