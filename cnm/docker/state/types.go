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

// schema is the version of a file, 1. A file of a later one is not understood,
// and left alone.
type schema struct {
	Schema int `json:"schema"`
}

func (s *schema) version() *int { return &s.Schema }

// Network is one `docker network create`.
type Network struct {
	schema
	ID       string            `json:"id"`
	Options  map[string]string `json:"options"` // the user's -o
	Internal bool              `json:"internal,omitempty"`

	// Config is a copy of the configuration list with everything in it: what is
	// attached with it is detached with it, whatever the file says by then.
	Config json.RawMessage `json:"config"`
	Since  time.Time       `json:"since"`

	Deleted bool `json:"deleted,omitempty"` // by Docker, and not by us completely
}

// Phase is how far an endpoint has come. Those in -ing are written before the
// work begins: what they name may be done, in part, or not at all.
type Phase string

// The phases, in their order.
const (
	Creating Phase = "creating" // the interface is made in the holding namespace
	Created  Phase = "created"  // it is there, and Docker was told its addresses
	Joining  Phase = "joining"  // it moves to the host, for libnetwork to take
	Joined   Phase = "joined"   // libnetwork has it
	Leaving  Phase = "leaving"  // what was done in the sandbox is taken back
	Left     Phase = "left"     // libnetwork takes it back to the host
	Deleting Phase = "deleting" // it goes back into the holding namespace, and DEL
)

// Step is how far one part of the chain is.
type Step string

// The steps. The zero value is a part that was never begun, or is undone.
const (
	Doing Step = "doing" // may be done, in part, or not at all
	Done  Step = "done"
)

// Endpoint is one attachment of a container.
type Endpoint struct {
	schema
	ID      string    `json:"id"`
	Network string    `json:"network"` // its id
	Boot    string    `json:"boot"`    // the kernel's boot id, when it was made
	Changed time.Time `json:"changed"` // when this was written

	Phase Phase `json:"phase"`
	Post  Step  `json:"post,omitempty"`  // the plugins after the first
	Ports Step  `json:"ports,omitempty"` // those that publish ports

	Wanted    cnm.Interface     `json:"wanted"`           // what CreateEndpoint brought along
	Leased    bool              `json:"leased,omitempty"` // its address is our IPAM driver's
	Args      map[string]string `json:"args,omitempty"`   // CNI_ARGS
	IfName    string            `json:"ifname,omitempty"` // wanted by the user
	Published []Port            `json:"published,omitempty"`
	Asked     []cnm.PortBinding `json:"asked,omitempty"`

	Hold   string       `json:"hold"` // path of the holding namespace
	Result *spec.Result `json:"result,omitempty"`
	Kernel *Snapshot    `json:"kernel,omitempty"` // of the holding namespace, after ADD
	Link   string       `json:"link,omitempty"`   // the interface's name while it is the host's

	Keeper    string    `json:"keeper,omitempty"`    // socket of who keeps its DHCP lease
	Sandbox   string    `json:"sandbox,omitempty"`   // SandboxKey
	SandboxID netns.ID  `json:"sandboxID,omitzero"`  // once it was seen
	Gateways  []Gateway `json:"gateways,omitempty"`  // the sandbox's when the endpoint joined
	PostAt    Where     `json:"postAt,omitzero"`     // what the part was called with
	PortsAt   Where     `json:"portsAt,omitzero"`    // as PostAt
	Container string    `json:"container,omitempty"` // its id, if it was found
	Name      string    `json:"name,omitempty"`      // of the container, if it was found
	Closed    bool      `json:"closed,omitempty"`    // its link was set down, as the chain failed
	Before    *Snapshot `json:"before,omitempty"`    // of its link, before that

	Labels map[string]string `json:"labels,omitempty"` // of the container, as CNI_ARGS
	DNS    *Resolv           `json:"dns,omitempty"`    // nil: the container has Docker's
}

// Resolv is a container's resolv.conf that gets the chain's DNS. After is empty
// for a file that is somebody else's, and before it is written. While it is
// written, in either direction, Step is Doing.
type Resolv struct {
	Step   Step   `json:"step,omitempty"`
	Path   string `json:"path,omitempty"`
	Before string `json:"before,omitempty"` // its text as Docker made it
	After  string `json:"after,omitempty"`  // and as we did
}

// Mine says whether a text is what we wrote, as far as we came: a longer one is
// overwritten before it is cut.
func (r *Resolv) Mine(text string) bool {
	if text == r.After {
		return true
	}
	if r.Step != Doing {
		return false
	}
	return text == r.Before || text == onto(r.Before, r.After) || text == onto(r.After, r.Before)
}

// onto is a text of which another has replaced the beginning.
func onto(old, text string) string {
	if len(old) > len(text) {
		return text + old[len(text):]
	}
	return text
}

// Where is the namespace and the name of the interface of one ADD: its DEL must
// say the same.
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
	Chosen   bool       `json:"chosen,omitempty"` // by us: random, or out of a range
}

// Snapshot is what a namespace's kernel says of one link.
type Snapshot struct {
	Name  string         `json:"name"`
	MAC   string         `json:"mac,omitempty"`
	MTU   int            `json:"mtu"` // bytes
	Alias string         `json:"alias"`
	Addrs []netip.Prefix `json:"addrs,omitempty"` // global, host bits kept

	Routes     []Route     `json:"routes,omitempty"`
	Neighbours []Neighbour `json:"neighbours,omitempty"` // permanent ones
}

// Route is a route of a link, as the kernel has it.
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
	Kernel   bool         `json:"kernel,omitempty"` // made by an address
}

// Gateway is a default route of a sandbox.
type Gateway struct {
	Link  string `json:"link"` // its name there
	Route Route  `json:"route"`
}

// Neighbour is an entry that does not expire.
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

// Lease is what the IPAM plugin gave for one MAC address: all families at once.
type Lease struct {
	schema
	ID      string          `json:"id"`      // container id of the IPAM plugin's calls
	Network string          `json:"network"` // name of the configuration
	Config  json.RawMessage `json:"config"`
	Wanted  []netip.Addr    `json:"wanted,omitempty"` // by --ip and --ip6
	Result  *spec.Result    `json:"result,omitempty"` // nil while it is asked
	Given   []netip.Addr    `json:"given,omitempty"`  // to Docker, and not given back yet
	// Endpoint is who uses it; empty between RequestAddress and CreateEndpoint.
	Endpoint string    `json:"endpoint,omitempty"`
	Unbound  bool      `json:"unbound,omitempty"` // its endpoint is gone; false while none has come yet
	Boot     string    `json:"boot,omitempty"`    // the kernel's boot id, when it was asked; files from before have none
	Since    time.Time `json:"since"`
}
