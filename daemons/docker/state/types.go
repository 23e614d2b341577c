// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package state

import (
	"encoding/json"
	"net/netip"
	"time"

	"github.com/patchbay-net/patchbay/daemons/cnm"
	"github.com/patchbay-net/patchbay/netns"
	"github.com/patchbay-net/patchbay/spec"
)

// schema is the version of a file's format. It is 1 now. The driver neither reads nor changes a
// file of a later version.
type schema struct {
	Schema int `json:"schema"`
}

func (n *Network) key() (id string, version *int)    { return n.ID, &n.Schema }
func (e *Endpoint) key() (id string, version *int)   { return e.ID, &e.Schema }
func (p *Pool) key() (id string, version *int)       { return p.ID, &p.Schema }
func (l *Allocation) key() (id string, version *int) { return l.ID, &l.Schema }

// Network is a network that `docker network create` made.
type Network struct {
	schema
	ID       string            `json:"id"`
	Options  map[string]string `json:"options"` // the options -o that the user gave
	Internal bool              `json:"internal,omitempty"`
	NoIPv4   bool              `json:"noIPv4,omitempty"` // --ipv4=false

	// Config is a full copy of the configuration list. An attachment must be detached with the
	// configuration with which it was attached, even if the file has changed.
	Config json.RawMessage `json:"config"`
	Since  time.Time       `json:"since"`

	Deleted bool `json:"deleted,omitempty"` // Docker has deleted the network, but we could not remove all of it
}

// Phase says how far an endpoint has come. A phase that ends in -ing is written before its work
// begins, so the work may be done completely, partly or not at all.
type Phase string

// These are the phases, in their order.
const (
	Creating Phase = "creating" // the plugin makes the interface in the holding namespace
	Created  Phase = "created"  // the interface exists, and Docker has its addresses
	Joining  Phase = "joining"  // the interface moves to the host, where libnetwork takes it
	Joined   Phase = "joined"   // libnetwork has the interface
	Leaving  Phase = "leaving"  // the driver undoes its changes in the sandbox
	Left     Phase = "left"     // libnetwork moves the interface back to the host
	Deleting Phase = "deleting" // the interface moves back into the holding namespace, and DEL runs
)

// Step says how far one part of the chain has come.
type Step string

// These are the steps. The zero value means that the part has not begun, or was undone.
const (
	Doing Step = "doing" // may be done completely, partly or not at all
	Done  Step = "done"
)

// Endpoint is one attachment of a container.
type Endpoint struct {
	schema
	ID      string    `json:"id"`
	Network string    `json:"network"` // the network's id
	Boot    string    `json:"boot"`    // the boot id at its creation
	Changed time.Time `json:"changed"` // when the driver last wrote this object

	Phase Phase `json:"phase"`
	Post  Step  `json:"post,omitempty"`  // the plugins after the first
	Ports Step  `json:"ports,omitempty"` // the plugins that publish ports

	Wanted    cnm.Interface     `json:"wanted"`           // from CreateEndpoint
	Leased    bool              `json:"leased,omitempty"` // the address comes from our IPAM driver
	Args      map[string]string `json:"args,omitempty"`   // CNI_ARGS
	IfName    string            `json:"ifname,omitempty"` // the name that the user asked for, if any
	Published []Port            `json:"published,omitempty"`
	Asked     []cnm.PortBinding `json:"asked,omitempty"`

	// Config is the configuration that it was created with, if the network's file had changed.
	Config json.RawMessage `json:"config,omitempty"`

	Hold   string       `json:"hold"` // path of the holding namespace
	Result *spec.Result `json:"result,omitempty"`
	Kernel *Snapshot    `json:"kernel,omitempty"` // the interface in the holding namespace, after ADD
	Link   string       `json:"link,omitempty"`   // the interface's name while it is on the host

	Keeper    string    `json:"keeper,omitempty"`    // socket of the process that keeps its DHCP lease
	Sandbox   string    `json:"sandbox,omitempty"`   // SandboxKey
	SandboxID netns.ID  `json:"sandboxID,omitzero"`  // set when it is known
	Gateways  []Gateway `json:"gateways,omitempty"`  // the default routes of the sandbox when the endpoint joined
	PostAt    Where     `json:"postAt,omitzero"`     // for which interface the part post was called
	PortsAt   Where     `json:"portsAt,omitzero"`    // for which interface the part ports was called
	Container string    `json:"container,omitempty"` // the container's id, if it was found
	Name      string    `json:"name,omitempty"`      // the container's name, if it was found
	Closed    bool      `json:"closed,omitempty"`    // its link was set down because the chain failed
	Before    *Snapshot `json:"before,omitempty"`    // the state of its link before that

	Labels map[string]string `json:"labels,omitempty"` // the container's labels, as CNI_ARGS
	DNS    *Resolv           `json:"dns,omitempty"`    // if nil, the container keeps Docker's DNS
}

// Resolv describes a container's resolv.conf that gets the chain's DNS. Until the file is
// written, After is empty. If another program owns the file, After stays empty. While the file is
// written or restored, Step is Doing.
type Resolv struct {
	Step   Step   `json:"step,omitempty"`
	Path   string `json:"path,omitempty"`
	Before string `json:"before,omitempty"` // the text that Docker wrote
	After  string `json:"after,omitempty"`  // the text that we wrote
}

// Mine reports whether a text is ours, even half written. While we overwrite a longer text, the
// end of that text is still there until the file is truncated.
func (r *Resolv) Mine(text string) bool {
	if text == r.After {
		return true
	}
	if r.Step != Doing {
		return false
	}
	return text == r.Before || text == onto(r.Before, r.After) || text == onto(r.After, r.Before)
}

// onto returns an old text whose beginning was overwritten with another text.
func onto(old, text string) string {
	if len(old) > len(text) {
		return text + old[len(text):]
	}
	return text
}

// Where is the namespace and the interface name of one ADD. The DEL of that ADD must use the
// same.
type Where struct {
	NetNS  string `json:"netns"`
	IfName string `json:"ifname"`
}

// Port is a published port, with the host's address and port that were chosen for it.
type Port struct {
	Proto    uint8      `json:"proto"`
	Port     uint16     `json:"port"` // the container's port
	HostIP   netip.Addr `json:"hostIP,omitzero"`
	HostPort uint16     `json:"hostPort"`
	Chosen   bool       `json:"chosen,omitempty"` // we chose the port ourselves, at random or from a range
}

// Snapshot is the kernel's state of one link in a namespace.
type Snapshot struct {
	Name  string         `json:"name"`
	MAC   string         `json:"mac,omitempty"`
	MTU   int            `json:"mtu"` // in bytes
	Alias string         `json:"alias"`
	Addrs []netip.Prefix `json:"addrs,omitempty"` // global addresses, with their host bits

	Routes     []Route     `json:"routes,omitempty"`
	Neighbours []Neighbour `json:"neighbours,omitempty"` // only permanent ones
}

// Route is a route of a link in the kernel.
type Route struct {
	Dst      netip.Prefix `json:"dst"` // 0.0.0.0/0 or ::/0 is the default route
	GW       netip.Addr   `json:"gw,omitzero"`
	Src      netip.Addr   `json:"src,omitzero"`
	Table    int          `json:"table"`
	Metric   int          `json:"metric,omitempty"`
	MTU      int          `json:"mtu,omitempty"`    // in bytes
	AdvMSS   int          `json:"advmss,omitempty"` // in bytes
	Scope    uint8        `json:"scope,omitempty"`
	Protocol int          `json:"protocol,omitempty"`
	OnLink   bool         `json:"onlink,omitempty"`
	Kernel   bool         `json:"kernel,omitempty"` // the kernel made it for an address
}

// Gateway is a default route of a sandbox.
type Gateway struct {
	Link  string `json:"link"` // the link's name in the sandbox
	Route Route  `json:"route"`
}

// Neighbour is a permanent neighbour entry.
type Neighbour struct {
	Addr netip.Addr `json:"addr"`
	MAC  string     `json:"mac"`
}

// Pool is an address pool of the IPAM driver.
type Pool struct {
	schema
	ID      string            `json:"id"`
	Network string            `json:"network"` // name of the CNI configuration
	Config  json.RawMessage   `json:"config"`
	Options map[string]string `json:"options,omitempty"` // --ipam-opt
	V6      bool              `json:"v6,omitempty"`
	Prefix  netip.Prefix      `json:"prefix"`
	Gateway netip.Prefix      `json:"gateway,omitzero"`
	Since   time.Time         `json:"since"`
}

// Allocation holds the addresses that the IPAM plugin gave for one MAC address, of all families
// together.
type Allocation struct {
	schema
	ID      string          `json:"id"`      // container id in calls of the IPAM plugin
	Network string          `json:"network"` // name of the CNI configuration
	Config  json.RawMessage `json:"config"`
	Wanted  []netip.Addr    `json:"wanted,omitempty"` // asked for by --ip and --ip6
	Result  *spec.Result    `json:"result,omitempty"` // nil while the ADD runs
	Given   []netip.Addr    `json:"given,omitempty"`  // addresses that Docker has got and not released
	// Endpoint is the endpoint that uses the lease. It is empty between RequestAddress and
	// CreateEndpoint.
	Endpoint string    `json:"endpoint,omitempty"`
	Unbound  bool      `json:"unbound,omitempty"` // the lease's endpoint was removed; false if the lease never had one
	Boot     string    `json:"boot,omitempty"`    // the boot id at the request; empty in files of earlier versions
	Since    time.Time `json:"since"`
}
