// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"strconv"
	"strings"

	"github.com/patchbay-net/patchbay/chain"
)

// wish is what a container should get, as flags. Each becomes a capability,
// which some plugin of the network must declare.
type wish struct {
	Ports []string `long:"publish" short:"p" value-name:"[IP:]HOST:CONTAINER[/PROTO]" description:"publish a port of the container; may be repeated"`
	IPs   []string `long:"ip" value-name:"ADDRESS[/BITS]" description:"give the container this address; may be repeated"`
	MAC   string   `long:"mac" value-name:"MAC" description:"give the container's interface this hardware address"`
}

// portMapping is an entry of the capability portMappings (CONVENTIONS.md).
type portMapping struct {
	HostPort      uint16 `json:"hostPort"`
	ContainerPort uint16 `json:"containerPort"`
	Protocol      string `json:"protocol"`
	HostIP        string `json:"hostIP,omitempty"`
}

// capabilities are CAP_ARGS and, over them, the flags. A flag that no plugin
// of the network would hear of is refused: the container would start without.
func (w *wish) capabilities(a *app, n *network) (map[string]any, error) {
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

func (w *wish) flags() (map[string]any, error) {
	out := map[string]any{}
	var ports []portMapping
	for _, p := range w.Ports {
		m, err := parsePort(p)
		if err != nil {
			return nil, err
		}
		ports = append(ports, m)
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

// parsePort reads [IP:]HOST:CONTAINER[/PROTO]; an IPv6 address is in brackets.
func parsePort(s string) (m portMapping, err error) {
	bad := func(why string) (portMapping, error) {
		return m, usage("such as 8080:80, 127.0.0.1:8080:80/tcp, [::1]:53:53/udp", "--publish %s: %s", s, why)
	}
	rest, proto, ok := strings.Cut(s, "/")
	if m.Protocol = "tcp"; ok {
		m.Protocol = strings.ToLower(proto)
	}
	switch m.Protocol {
	case "tcp", "udp", "sctp":
	default:
		return bad("the protocol is tcp, udp or sctp")
	}
	i := strings.LastIndexByte(rest, ':')
	if i < 0 {
		return bad("the host's port is missing")
	}
	host, container := rest[:i], rest[i+1:]
	if i = strings.LastIndexByte(host, ':'); i >= 0 {
		addr, err := netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(host[:i], "["), "]"))
		if err != nil {
			return bad("the host's address is not one")
		}
		m.HostIP, host = addr.String(), host[i+1:]
	}
	var errs [2]error
	m.HostPort, errs[0] = parsePortNumber(host)
	m.ContainerPort, errs[1] = parsePortNumber(container)
	if err := errors.Join(errs[:]...); err != nil {
		return bad("a port is a number from 1 to 65535")
	}
	return m, nil
}

func parsePortNumber(s string) (uint16, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err == nil && n == 0 {
		err = strconv.ErrRange
	}
	return uint16(n), err
}

// isMissingNetwork says that no file has the network, as opposed to a file
// that is broken.
func isMissingNetwork(err error) bool {
	var missing *chain.NotFoundError
	var none *chain.NoConfigsFoundError
	return errors.As(err, &missing) || errors.As(err, &none)
}

func isNotCached(err error) bool { return errors.Is(err, chain.ErrNotCached) }
