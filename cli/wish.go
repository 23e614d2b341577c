// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"maps"
	"net/netip"
)

// capabilityFlags holds flags for a container's capabilities. Some plugin of the network
// must declare each of them.
type capabilityFlags struct {
	Ports []string `long:"publish" short:"p" value-name:"[IP:]HOST:CONTAINER[/PROTO]" description:"publish a port of the container, or a range FIRST-LAST of them; may be repeated"`
	IPs   []string `long:"ip" value-name:"ADDRESS[/BITS]" description:"give the container this address; may be repeated"`
	MAC   string   `long:"mac" value-name:"MAC" description:"give the container's interface this hardware address"`
}

// capabilities are those of CAP_ARGS, overridden by the flags. A flag that reaches no
// plugin of the network is refused: otherwise the container would start without it.
func (w *capabilityFlags) capabilities(a *app, n *network) (map[string]any, error) {
	given, err := capArgs(a.getenv("CAP_ARGS"))
	if err != nil {
		return nil, err
	}
	flags, err := w.flags()
	if err != nil {
		return nil, err
	}
	for name := range flags {
		if !n.capability(name) {
			return nil, hinted(fmt.Errorf("network %s: no plugin declares the capability %s", n.Name, name),
				`set "capabilities": {"%s": true} in the plugin that has it`, name)
		}
	}
	if given == nil {
		return flags, nil
	}
	maps.Copy(given, flags)
	return given, nil
}

func (w *capabilityFlags) flags() (map[string]any, error) {
	out := map[string]any{}
	var ports []portMapping
	for _, p := range w.Ports {
		list, err := parsePorts(p)
		if err != nil {
			return nil, err
		}
		ports = append(ports, list...)
	}
	for _, ip := range w.IPs {
		if _, err := netip.ParsePrefix(ip); err != nil {
			if _, err := netip.ParseAddr(ip); err != nil {
				return nil, usage("", "--ip %s: %v", ip, err)
			}
		}
	}
	if ports != nil {
		out["portMappings"] = ports
	}
	if w.IPs != nil {
		out["ips"] = w.IPs
	}
	if w.MAC != "" {
		out["mac"] = w.MAC
	}
	return out, nil
}
