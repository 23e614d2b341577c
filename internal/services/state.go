// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"iter"
	"maps"
	"net/netip"
	"time"

	"github.com/patchbay-net/patchbay/internal/l4"
)

// State is what the program of one node depends on. The order of its lists does not matter.
type State struct {
	Node      Node
	Addresses []netip.Addr   // of this node's links
	CIDRs     []netip.Prefix // of the ServiceCIDRs, also of those that are being deleted
	Options   Options
	Services  map[Name]*Service
	Slices    map[Name][]*Slice // by the name of their Service

	// Source has the Services and slices instead of both maps, unless it is nil. So not all of them need to be in memory.
	Source Source
}

// Source makes Services and their slices when they are asked for.
type Source interface {
	Names() iter.Seq[Name]             // of the Services
	Of(name Name) (*Service, []*Slice) // the Service is nil if there is none
}

// names returns the names of the Services.
func (s *State) names() iter.Seq[Name] {
	if s.Source != nil {
		return s.Source.Names()
	}
	return maps.Keys(s.Services)
}

// of returns a Service, or nil, and its slices.
func (s *State) of(name Name) (*Service, []*Slice) {
	if s.Source != nil {
		return s.Source.Of(name)
	}
	return s.Services[name], s.Slices[name]
}

// Options are what the operator decides.
type Options struct {
	ProxyName         string         // compile only Services with this service-proxy-name; "": only those without the label
	NodePorts         []netip.Prefix // this node's addresses that have node ports; none: the primary ones
	IgnoreExternalIPs bool
	MasqueradeAll     bool // everything that is sent to a cluster IP
}

// Node is this node in the API.
type Node struct {
	Name, Zone string
	Addresses  []netip.Addr   // internal ones first; the first of each family is the primary one
	Pods       []netip.Prefix // podCIDRs; without one of a family, the pods of this family are not known from others
}

// Name names a Service.
type Name struct{ Namespace, Name string }

// String returns "shop/web".
func (n Name) String() string { return n.Namespace + "/" + n.Name }

// Service is what counts of a Service here.
type Service struct {
	Name        Name
	ProxyName   *string `json:",omitzero"` // the label service-proxy-name; nil if there is none
	Type        string
	ClusterIPs  []netip.Addr   `json:",omitzero"` // none: headless
	ExternalIPs []netip.Addr   `json:",omitzero"`
	Balancers   []netip.Addr   `json:",omitzero"` // of status.loadBalancer, without those of a mode other than VIP
	Sources     []netip.Prefix `json:",omitzero"`
	Restricted  bool           `json:",omitzero"` // has loadBalancerSourceRanges, readable or not
	Ports       []ServicePort  `json:",omitzero"`

	InternalLocal       bool   `json:",omitzero"` // the traffic policies
	ExternalLocal       bool   `json:",omitzero"`
	Affinity            uint32 `json:",omitzero"` // seconds; 0: none
	HealthCheckNodePort uint16 `json:",omitzero"`
}

// ServicePort is a port of a Service.
type ServicePort struct {
	Name     string `json:",omitzero"`
	Protocol l4.Protocol
	Number   uint16
	NodePort uint16 `json:",omitzero"` // 0: none
}

// These are the types of Services that have frontends. Each has those of the types before it.
const (
	typeClusterIP    = "ClusterIP"
	typeNodePort     = "NodePort"
	TypeLoadBalancer = "LoadBalancer"
)

// Slice is what counts of an EndpointSlice here.
type Slice struct {
	Name      string
	Service   Name
	Headless  bool            `json:",omitzero"` // has the label service.kubernetes.io/headless
	IPv6      bool            `json:",omitzero"`
	Ports     []SlicePort     `json:",omitzero"` // those with a name (it may be "") and a number
	Endpoints []SliceEndpoint `json:",omitzero"` // those with an address of the slice's family

	// Triggered is when a change of a Service or a pod was seen that changed the slice; zero: not known. It changes no program.
	Triggered time.Time `json:"-"`
}

// SlicePort is a port that all endpoints of a slice have.
type SlicePort struct {
	Name     string `json:",omitzero"`
	Protocol l4.Protocol
	Number   uint16
}

// SliceEndpoint is an endpoint of a slice.
type SliceEndpoint struct {
	Address                     netip.Addr
	Node                        string
	Ready, Serving, Terminating bool
	Hints                       *Hints // nil: it has none
}

// Hints say which clients should use an endpoint: those of some zones, and those of some nodes.
type Hints struct{ ForZones, ForNodes []string }
