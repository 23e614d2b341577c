// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package state

import (
	"encoding/json"
	"net/netip"
	"time"

	"github.com/patchbay-net/patchbay/cnm"
	"github.com/patchbay-net/patchbay/netns"
	"github.com/patchbay-net/patchbay/spec"
)

// schema is the version of a file, 1. A file of a later version is neither read nor
// changed.
type schema struct {
	Schema int `json:"schema"`
}

func (n *Network) key() (id string, version *int)    { return n.ID, &n.Schema }
func (e *Endpoint) key() (id string, version *int)   { return e.ID, &e.Schema }
func (p *Pool) key() (id string, version *int)       { return p.ID, &p.Schema }
func (l *Allocation) key() (id string, version *int) { return l.ID, &l.Schema }

// Network is one `docker network create`.
type Network struct {
	schema
	ID       string            `json:"id"`
	Options  map[string]string `json:"options"` // the user's -o
	Internal bool              `json:"internal,omitempty"`

	// Config is a full copy of the configuration list: what was attached with it is
	// detached with it, whatever the file contains by then.
	Config json.RawMessage `json:"config"`
	Since  time.Time       `json:"since"`

	Deleted bool `json:"deleted,omitempty"` // by Docker, but not completely by us
}

// Phase is how far an endpoint has come. A phase in -ing is written before its work
// begins: the work may be done, in part, or not at all.
type Phase string

// The phases, in their order.
const (
	Creating Phase = "creating" // the interface is made in the holding namespace
	Created  Phase = "created"  // it exists, and Docker has its addresses
	Joining  Phase = "joining"  // it moves to the host, where libnetwork takes it
	Joined   Phase = "joined"   // libnetwork has it
	Leaving  Phase = "leaving"  // the changes in the sandbox are undone
	Left     Phase = "left"     // libnetwork moves it back to the host
	Deleting Phase = "deleting" // it moves back into the holding namespace, then DEL
)

// Step is how far one part of the chain has come.
type Step string

// The steps. The zero value means never begun, or undone.
const (
	Doing Step = "doing" // may be done, in part, or not at all
	Done  Step = "done"
)

// Endpoint is one attachment of a container.
type Endpoint struct {
	schema
	ID      string    `json:"id"`
	Network string    `json:"network"` // its id
	Boot    string    `json:"boot"`    // the boot id at the creation
	Changed time.Time `json:"changed"` // when the driver last wrote this

	Phase Phase `json:"phase"`
	Post  Step  `json:"post,omitempty"`  // the plugins after the first
	Ports Step  `json:"ports,omitempty"` // the plugins that publish ports

	Wanted    cnm.Interface     `json:"wanted"`           // from CreateEndpoint
	Leased    bool              `json:"leased,omitempty"` // its address comes from our IPAM driver
	Args      map[string]string `json:"args,omitempty"`   // CNI_ARGS
	IfName    string            `json:"ifname,omitempty"` // requested by the user
	Published []Port            `json:"published,omitempty"`
	Asked     []cnm.PortBinding `json:"asked,omitempty"`

	Hold   string       `json:"hold"` // path of the holding namespace
	Result *spec.Result `json:"result,omitempty"`
	Kernel *Snapshot    `json:"kernel,omitempty"` // of the holding namespace, after ADD
	Link   string       `json:"link,omitempty"`   // the interface's name while it is on the host

	Keeper    string    `json:"keeper,omitempty"`    // socket of the process that keeps its DHCP lease
	Sandbox   string    `json:"sandbox,omitempty"`   // SandboxKey
	SandboxID netns.ID  `json:"sandboxID,omitzero"`  // once known
	Gateways  []Gateway `json:"gateways,omitempty"`  // the sandbox's when the endpoint joined
	PostAt    Where     `json:"postAt,omitzero"`     // the arguments of the part's calls
	PortsAt   Where     `json:"portsAt,omitzero"`    // as PostAt
	Container string    `json:"container,omitempty"` // its id, if found
	Name      string    `json:"name,omitempty"`      // of the container, if found
	Closed    bool      `json:"closed,omitempty"`    // its link was set down because the chain failed
	Before    *Snapshot `json:"before,omitempty"`    // its link before that

	Labels map[string]string `json:"labels,omitempty"` // of the container, as CNI_ARGS
	DNS    *Resolv           `json:"dns,omitempty"`    // nil: the container keeps Docker's
}

// Resolv is a container's resolv.conf that gets the chain's DNS. After is empty for a
// file that another program owns, and before it is written. Step is Doing while it is
// written, in either direction.
type Resolv struct {
	Step   Step   `json:"step,omitempty"`
	Path   string `json:"path,omitempty"`
	Before string `json:"before,omitempty"` // its text from Docker
	After  string `json:"after,omitempty"`  // our text
}

// Mine says whether a text is ours, even half written: a longer old text is overwritten
// before it is cut.
func (r *Resolv) Mine(text string) bool {
	if text == r.After {
		return true
	}
	if r.Step != Doing {
		return false
	}
	return text == r.Before || text == onto(r.Before, r.After) || text == onto(r.After, r.Before)
}

// onto is an old text whose beginning another text has replaced.
func onto(old, text string) string {
	if len(old) > len(text) {
		return text + old[len(text):]
	}
	return text
}

// Where is the namespace and the interface name of one ADD: its DEL must use the same.
type Where struct {
	NetNS  string `json:"netns"`
	IfName string `json:"ifname"`
}

// Port is a published port with what was chosen for it.
type Port struct {
	Proto    uint8      `json:"proto"`
	Port     uint16     `json:"port"` // of the container
	HostIP   netip.Addr `json:"hostIP,omitzero"`
	HostPort uint16     `json:"hostPort"`
	Chosen   bool       `json:"chosen,omitempty"` // by us: random, or from a range
}

// Snapshot is the kernel's state of one link in a namespace.
type Snapshot struct {
	Name  string         `json:"name"`
	MAC   string         `json:"mac,omitempty"`
	MTU   int            `json:"mtu"` // bytes
	Alias string         `json:"alias"`
	Addrs []netip.Prefix `json:"addrs,omitempty"` // global, host bits kept

	Routes     []Route     `json:"routes,omitempty"`
	Neighbours []Neighbour `json:"neighbours,omitempty"` // permanent ones
}

// Route is a route of a link in the kernel.
type Route struct {
	Dst      netip.Prefix `json:"dst"` // 0.0.0.0/0 or ::/0 is the default route
	GW       netip.Addr   `json:"gw,omitzero"`
	Src      netip.Addr   `json:"src,omitzero"`
	Table    int          `json:"table"`
	Metric   int          `json:"metric,omitempty"`
	MTU      int          `json:"mtu,omitempty"`    // bytes
	AdvMSS   int          `json:"advmss,omitempty"` // bytes
	Scope    uint8        `json:"scope,omitempty"`
	Protocol int          `json:"protocol,omitempty"`
	OnLink   bool         `json:"onlink,omitempty"`
	Kernel   bool         `json:"kernel,omitempty"` // made by the kernel for an address
}

// Gateway is a default route of a sandbox.
type Gateway struct {
	Link  string `json:"link"` // its name there
	Route Route  `json:"route"`
}

// Neighbour is a permanent entry.
type Neighbour struct {
	Addr netip.Addr `json:"addr"`
	MAC  string     `json:"mac"`
}

// Pool is a pool of the IPAM driver.
type Pool struct {
	schema
	ID      string            `json:"id"`
	Network string            `json:"network"` // name of the configuration
	Config  json.RawMessage   `json:"config"`
	Options map[string]string `json:"options,omitempty"` // --ipam-opt
	V6      bool              `json:"v6,omitempty"`
	Prefix  netip.Prefix      `json:"prefix"`
	Gateway netip.Prefix      `json:"gateway,omitzero"`
	Since   time.Time         `json:"since"`
}

// Allocation holds the addresses that the IPAM plugin gave for one MAC address: all families
// at once.
type Allocation struct {
	schema
	ID      string          `json:"id"`      // container id of the IPAM plugin's calls
	Network string          `json:"network"` // name of the configuration
	Config  json.RawMessage `json:"config"`
	Wanted  []netip.Addr    `json:"wanted,omitempty"` // by --ip and --ip6
	Result  *spec.Result    `json:"result,omitempty"` // nil during the ADD
	Given   []netip.Addr    `json:"given,omitempty"`  // to Docker, and not yet given back
	// Endpoint uses the lease; empty between RequestAddress and CreateEndpoint.
	Endpoint string    `json:"endpoint,omitempty"`
	Unbound  bool      `json:"unbound,omitempty"` // its endpoint is gone; false before the first one
	Boot     string    `json:"boot,omitempty"`    // the boot id at the request; empty in files of earlier versions
	Since    time.Time `json:"since"`
}
