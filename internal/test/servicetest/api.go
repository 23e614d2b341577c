// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package servicetest

// These types are those fields of the API's objects that decide about packets.

// Meta is the metadata of an object.
type Meta struct {
	Namespace string            `json:"namespace,omitempty"`
	Name      string            `json:"name"`
	Labels    map[string]string `json:"labels,omitempty"`
}

// Service is a Service.
type Service struct {
	Meta   Meta        `json:"metadata"`
	Spec   ServiceSpec `json:"spec"`
	Status struct {
		LoadBalancer struct {
			Ingress []Ingress `json:"ingress,omitempty"`
		} `json:"loadBalancer"`
	} `json:"status"`
}

// ServiceSpec is the spec of a Service.
type ServiceSpec struct {
	Type                     string        `json:"type"`
	ClusterIP                string        `json:"clusterIP,omitempty"`
	ClusterIPs               []string      `json:"clusterIPs,omitempty"`
	ExternalIPs              []string      `json:"externalIPs,omitempty"`
	LoadBalancerSourceRanges []string      `json:"loadBalancerSourceRanges,omitempty"`
	Ports                    []ServicePort `json:"ports,omitempty"`
	InternalTrafficPolicy    string        `json:"internalTrafficPolicy,omitempty"`
	ExternalTrafficPolicy    string        `json:"externalTrafficPolicy,omitempty"`
	SessionAffinity          string        `json:"sessionAffinity,omitempty"`
	SessionAffinityConfig    *Affinity     `json:"sessionAffinityConfig,omitempty"`
	HealthCheckNodePort      int           `json:"healthCheckNodePort,omitempty"`
}

// Affinity is the sessionAffinityConfig.
type Affinity struct {
	ClientIP struct {
		TimeoutSeconds int `json:"timeoutSeconds"`
	} `json:"clientIP"`
}

// Ingress is an address of a load balancer.
type Ingress struct {
	IP       string `json:"ip,omitempty"`
	Hostname string `json:"hostname,omitempty"`
	IPMode   string `json:"ipMode,omitempty"`
}

// ServicePort is a port of a Service.
type ServicePort struct {
	Name     string `json:"name,omitempty"`
	Protocol string `json:"protocol,omitempty"`
	Port     int    `json:"port"`
	NodePort int    `json:"nodePort,omitempty"`
}

// EndpointSlice is an EndpointSlice.
type EndpointSlice struct {
	Meta        Meta           `json:"metadata"`
	AddressType string         `json:"addressType"`
	Ports       []EndpointPort `json:"ports,omitempty"`
	Endpoints   []Endpoint     `json:"endpoints,omitempty"`
}

// EndpointPort is a port of an EndpointSlice.
type EndpointPort struct {
	Name     *string `json:"name,omitempty"`
	Protocol string  `json:"protocol,omitempty"`
	Port     *int    `json:"port,omitempty"`
}

// Endpoint is an endpoint of an EndpointSlice.
type Endpoint struct {
	Addresses  []string   `json:"addresses"`
	NodeName   string     `json:"nodeName,omitempty"`
	Conditions Conditions `json:"conditions"`
	Hints      *Hints     `json:"hints,omitempty"`
}

// Conditions are those of an endpoint.
type Conditions struct {
	Ready       *bool `json:"ready,omitempty"`
	Serving     *bool `json:"serving,omitempty"`
	Terminating *bool `json:"terminating,omitempty"`
}

// Hints say which nodes should use an endpoint.
type Hints struct {
	ForZones []Hint `json:"forZones,omitempty"`
	ForNodes []Hint `json:"forNodes,omitempty"`
}

// Hint is the name of a zone or of a node.
type Hint struct {
	Name string `json:"name"`
}

// Node is the Node of this node.
type Node struct {
	Meta Meta `json:"metadata"`
	Spec struct {
		PodCIDRs []string `json:"podCIDRs,omitempty"`
	} `json:"spec"`
	Status struct {
		Addresses []NodeAddress `json:"addresses,omitempty"`
	} `json:"status"`
}

// NodeAddress is an address of a Node.
type NodeAddress struct {
	Type    string `json:"type"`
	Address string `json:"address"`
}

// Flags are what the operator decides.
type Flags struct {
	ProxyName         string   `json:"proxyName,omitempty"`
	NodePortAddresses []string `json:"nodePortAddresses,omitempty"` // CIDRs; none: the primary addresses
	IgnoreExternalIPs bool     `json:"ignoreExternalIPs,omitempty"`
	MasqueradeAll     bool     `json:"masqueradeAll,omitempty"`
}

// Cluster is what decides about packets on one node.
type Cluster struct {
	Services     []Service       `json:"services,omitempty"`
	Slices       []EndpointSlice `json:"slices,omitempty"`
	Node         Node            `json:"node"`
	Links        []string        `json:"links,omitempty"` // addresses of this node's links
	ServiceCIDRs []string        `json:"serviceCIDRs,omitempty"`
	Flags        Flags           `json:"flags"`
}
