// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package netavark

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/spec"
)

// call is the input of setup and of teardown. netavark has the type as NetworkPluginExec.
type call struct {
	ContainerID string  `json:"container_id"`
	Name        string  `json:"container_name"` // of a pod's container, the name of the pod
	Ports       []port  `json:"port_mappings"`  // each network gets all ports of the container
	Network     network `json:"network"`
	Wanted      wanted  `json:"network_options"`
}

// port is a range of published ports.
type port struct {
	HostIP        netip.Addr `json:"host_ip"` // zero for all addresses
	HostPort      uint16     `json:"host_port"`
	ContainerPort uint16     `json:"container_port"`
	Protocol      string     `json:"protocol"` // or several, with commas between them
	Range         uint16     `json:"range"`    // how many ports there are; 0 is 1
}

// wanted is what the user wants of one attachment.
type wanted struct {
	Aliases []string          `json:"aliases"`
	IfName  string            `json:"interface_name"`
	IPs     []netip.Addr      `json:"static_ips"` // after podman network reload, each twice
	MAC     string            `json:"static_mac"`
	Options map[string]string `json:"options"`
}

// These are capabilities of plugins: to publish ports, and to give fixed addresses.
const (
	portMappings = "portMappings"
	fixedIPs     = "ips"
)

// options decodes the network's options. A single container has no options. netavark passes options that it does
// not know, so such an option is a typing error.
func (c *call) options() (*options, error) {
	for key := range c.Wanted.Options {
		return nil, fmt.Errorf("option %q of --network %s is not one of this driver", key, c.Network.Name)
	}
	return c.Network.options()
}

// attachment returns the attachment for which the plugins are called. The arguments are those of podman 4. A plugin
// may take a fixed address from the capability or from the arguments; chain passes capabilities only to
// plugins that declare them.
func (c *call) attachment(netns string) chain.Attachment {
	ips := c.addresses()
	a := chain.Attachment{
		ContainerID: c.ContainerID, NetNS: netns, IfName: c.Wanted.IfName,
		Args:         [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAME", c.Name}},
		Capabilities: spec.Capabilities{IPs: ips, MAC: c.Wanted.MAC, Aliases: c.Wanted.Aliases, PortMappings: mappings(c.Ports)}.Map(),
	}
	if len(ips) > 0 {
		a.Args = append(a.Args, [2]string{"IP", ips[0]})
	}
	if c.Wanted.MAC != "" {
		a.Args = append(a.Args, [2]string{"MAC", c.Wanted.MAC})
	}
	return a
}

// addresses returns the fixed addresses, each once. The plugin static needs the prefix length, which the network's
// subnets say.
func (c *call) addresses() (out []string) {
	for _, ip := range c.Wanted.IPs {
		text := ip.String()
		if i := slices.IndexFunc(c.Network.Subnets, func(s Subnet) bool { return s.Subnet.Contains(ip) }); i >= 0 {
			text = netip.PrefixFrom(ip, c.Network.Subnets[i].Subnet.Bits()).String()
		}
		if !slices.Contains(out, text) {
			out = append(out, text)
		}
	}
	return out
}

// mappings returns the values of the capability portMappings.
func mappings(list []port) (out []spec.PortMapping) {
	for _, p := range list {
		for _, protocol := range strings.Split(p.Protocol, ",") {
			for i := range cmp.Or(p.Range, 1) {
				out = append(out, spec.PortMapping{
					HostPort: p.HostPort + i, ContainerPort: p.ContainerPort + i, Protocol: protocol, HostIP: p.HostIP,
				})
			}
		}
	}
	return out
}
