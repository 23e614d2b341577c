// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package cnmplugin is the plugin `cnm`, which attaches a container with a Docker network driver.
// The plugin does what dockerd does. At the first ADD it creates the network. For each attachment
// it creates an endpoint. The driver makes a link for the endpoint; the plugin moves it into the
// container and configures it.
//
// Ids are derived from names, so every call can be repeated. The plugin writes down each request
// before it sends the request. Docker's own bridge and overlay drivers are part of dockerd, so a
// plugin cannot use them; docs/plugins/cnm.md says what replaces them.
package cnmplugin

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"

	"github.com/patchbay-net/patchbay/daemons/cnm"
	"github.com/patchbay-net/patchbay/daemons/cnm/cnmipam"
	"github.com/patchbay-net/patchbay/daemons/cnm/remote"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

const name = "cnm"

// Plugin has the name, the versions and the functions of this plugin.
var Plugin = plugin.Plugin{
	Name:         name,
	Kind:         plugin.Interface,
	About:        "attaches a container by a Docker network driver",
	Capabilities: []string{"portMappings", "ips", "mac"},
	Conf:         func() any { return new(Conf) },

	Add:    add,
	Del:    del,
	Check:  check,
	GC:     gc,
	Status: status,
}

// Conf is the configuration of the plugin.
type Conf struct {
	remote.Conf

	// Options are the driver's options for the network, as -o of docker network create.
	// Reference: none, ours only.
	Options map[string]string `json:"options"`

	// EndpointOptions are the driver's options for each attachment, as --driver-opt of
	// docker network connect.
	// Reference: none, ours only.
	EndpointOptions map[string]string `json:"endpointOptions"`

	// Internal creates a network without a way out. No gateway and no default route is
	// set, whatever driver and IPAM answer, and no port is published.
	// Reference: none, ours only.
	Internal bool `json:"internal"`

	// IPv6 asks the driver for IPv6 even if no address is an IPv6 address. Reference: none, ours
	// only.
	IPv6 bool `json:"ipv6"`

	// NetworkID is the id under which the driver knows the network.
	// Default: 64 hex digits derived from driver and name.
	// Reference: none, ours only.
	NetworkID string `json:"networkId"`

	// KeepNetwork keeps the network. With false, the first GC that finds no attachment deletes
	// it. Default: true. Reference: none, ours only.
	KeepNetwork *bool `json:"keepNetwork"`

	// EmulateSwarm calls AllocateNetwork before CreateNetwork, as a manager of a swarm
	// does for a driver of scope global, and passes on the options from the answer.
	// Reference: none, ours only.
	EmulateSwarm bool `json:"emulateSwarm"`

	// NodeAddress is this node's address, as --advertise-addr of a swarm. With
	// emulateSwarm the driver gets this address in DiscoverNew.
	// Reference: none, ours only.
	NodeAddress string `json:"nodeAddress"`

	// Nodes are the addresses of the other nodes. The driver gets them in DiscoverNew,
	// and in DiscoverDelete those that are no longer in the list.
	// Reference: none, ours only.
	Nodes []string `json:"nodes"`

	// Labels are the network's labels. No call sends labels to the driver, but a driver can
	// read them from Docker's API (patchbay-cnm docker-api).
	// Reference: none, ours only.
	Labels map[string]string `json:"labels"`

	// DNS replaces the DNS settings of IPAM if any of its keys is set.
	// Reference: none, ours only.
	DNS spec.DNS `json:"dns"`

	IPAM struct {
		// Type is the IPAM plugin: cnm-ipam for a Docker IPAM driver, any other that
		// needs no interface, or none when the network driver chooses the addresses.
		// Reference: none, ours only.
		Type string `json:"type"`
	} `json:"ipam"`

	RuntimeConfig Runtime     `json:"runtimeConfig"`
	Args          remote.Args `json:"args"`

	pools *cnmipam.Section // the section of cnm-ipam
}

// Runtime holds the capabilities that the runtime sends.
type Runtime struct {
	remote.Runtime

	// PortMappings are published by the driver.
	// Reference: none, ours only.
	PortMappings []PortMapping `json:"portMappings"`
}

// PortMapping is a published port.
type PortMapping struct {
	// HostPort is the port of the host; 0 leaves the choice to the driver.
	// Reference: none, ours only.
	HostPort int `json:"hostPort"`

	// ContainerPort is the port of the container.
	// Reference: none, ours only.
	ContainerPort int `json:"containerPort"`

	// Protocol is tcp, udp or sctp, in upper or lower case.
	// Default: tcp.
	// Reference: none, ours only.
	Protocol string `json:"protocol"`

	// HostIP is the host's address at which the port is published; empty means all addresses.
	// Reference: none, ours only.
	HostIP string `json:"hostIP"`
}

func decode(r *plugin.Request) (*Conf, error) {
	c := new(Conf)
	if err := r.Decode(c); err != nil {
		return nil, err
	}
	if err := c.Validate(); err != nil {
		return nil, err
	}
	if c.NetworkID != "" && strings.Trim(c.NetworkID, "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_.-") != "" || len(c.NetworkID) > 200 {
		return nil, spec.Invalid("invalid networkId %.80q: want letters, digits, '_', '.' and '-'", c.NetworkID)
	}
	switch c.IPAM.Type {
	case "":
	case "dhcp":
		return nil, spec.Invalid("IPAM plugin dhcp works through the interface, and a driver wants the address before the interface exists")
	case cnmipam.Plugin.Name:
		var with struct {
			IPAM *cnmipam.Section `json:"ipam"`
		}
		if err := r.Decode(&with); err != nil {
			return nil, err
		}
		c.pools = with.IPAM
	default:
		if err := spec.ValidatePluginType(c.IPAM.Type); err != nil {
			return nil, err
		}
	}
	if _, err := c.nodes(); err != nil {
		return nil, err
	}
	_, err := c.ports()
	return c, err
}

// wanted returns the addresses and the MAC address that the caller requests.
func (c *Conf) wanted() *remote.Wanted {
	return &remote.Wanted{RuntimeConfig: c.RuntimeConfig.Runtime, Args: c.Args}
}

// driver returns a word that identifies the network's driver.
func (c *Conf) driver() string {
	return cmp.Or(c.Driver, c.Socket, c.URL)
}

// ports returns the published ports in the types of the driver's protocol.
func (c *Conf) ports() ([]cnm.PortBinding, error) {
	list := []cnm.PortBinding{}
	for _, p := range c.RuntimeConfig.PortMappings {
		proto, ok := nft.ProtocolNumber(cmp.Or(p.Protocol, "tcp"))
		switch {
		case !ok:
			return nil, spec.Invalid("unknown protocol %.40q of port mapping", p.Protocol)
		case p.ContainerPort < 1 || p.ContainerPort > 65535:
			return nil, spec.Invalid("invalid container port number: %d", p.ContainerPort)
		case p.HostPort < 0 || p.HostPort > 65535:
			return nil, spec.Invalid("invalid host port number: %d", p.HostPort)
		}
		if p.HostIP != "" {
			if _, err := netip.ParseAddr(p.HostIP); err != nil {
				return nil, spec.Invalid("invalid hostIP %.80q of port mapping", p.HostIP)
			}
		}
		host := uint16(p.HostPort)
		list = append(list, cnm.PortBinding{Proto: proto, Port: uint16(p.ContainerPort), HostIP: p.HostIP, HostPort: host, HostPortEnd: host})
	}
	return list, nil
}

// hash returns a hash of everything that CreateNetwork requests and of the driver's address.
func (c *Conf) hash() string {
	return remote.Hash([]any{c.Identity(), c.Options, c.Internal, c.IPv6, c.NetworkID, c.EmulateSwarm, c.IPAM.Type})
}

// bad returns the error for a driver's answer that violates the protocol.
func bad(method, format string, args ...any) error {
	return fmt.Errorf("%s: %w: %s", method, cnm.ErrBadAnswer, fmt.Sprintf(format, args...))
}
