// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package npwg

import (
	"fmt"
	"net/netip"

	"github.com/patchbay-net/patchbay/internal/lightjson"
	"github.com/patchbay-net/patchbay/spec"
)

// Status is an entry of the annotation network-status (§5).
type Status struct {
	Name      string   `json:"name"`
	Interface string   `json:"interface,omitempty"`
	IPs       []string `json:"ips,omitempty"` // without prefix lengths, as programs that read them compare single addresses
	MAC       string   `json:"mac,omitempty"`
	MTU       int      `json:"mtu,omitempty"` // bytes; not in the standard, and written by Multus
	Default   bool     `json:"default,omitempty"`
	DNS       spec.DNS `json:"dns"`

	// Gateway and DefaultRoute have the same value: Multus writes the first, and the standard has the second (§5.3.6.4).
	Gateway      []netip.Addr `json:"gateway,omitzero"`
	DefaultRoute []netip.Addr `json:"default-route,omitzero"`
}

// Statuses returns the entries of a pod: first that of the default network, then those of each attachment that is done. If a
// result has several interfaces of the container, each has an entry.
func (p *Plan) Statuses() ([]Status, error) {
	var result *spec.Result
	if len(p.Default) > 0 {
		var err error
		if result, err = spec.ParseResult(p.Default, spec.Current); err != nil {
			return nil, fmt.Errorf("result of network %s: %w", p.Network, err)
		}
	}
	list := statusesOf(p.Network, p.IfName, result)
	list[0].Default = true
	for i := range p.Interfaces {
		a := &p.Interfaces[i]
		if a.State != Done {
			continue
		}
		result, err := a.result()
		if err != nil {
			return nil, fmt.Errorf("result of network %s: %w", a.Definition, err)
		}
		more := statusesOf(a.Definition, a.IfName, result)
		more[0].Gateway, more[0].DefaultRoute = a.Ask.DefaultRoute, a.Ask.DefaultRoute
		list = append(list, more...)
	}
	return list, nil
}

// statusesOf returns at least one entry. Without a result it has only the names.
func statusesOf(name, ifName string, result *spec.Result) (list []Status) {
	if result == nil {
		return []Status{{Name: name, Interface: ifName}}
	}
	for i, in := range result.Interfaces {
		if in.Sandbox == "" {
			continue
		}
		list = append(list, Status{
			Name: name, Interface: in.Name, MAC: in.Mac, MTU: in.MTU, DNS: result.DNS, IPs: ipsOf(result, i, len(list) == 0),
		})
	}
	if len(list) == 0 { // a result before 0.3.0 has no interfaces, and some plugins return none
		list = append(list, Status{Name: name, Interface: ifName, DNS: result.DNS, IPs: ipsOf(result, -1, true)})
	}
	return list
}

// ipsOf returns the addresses of an interface. Those without an interface belong to the first one.
func ipsOf(result *spec.Result, index int, first bool) (ips []string) {
	for _, ip := range result.IPs {
		if ip.Interface == nil && first || ip.Interface != nil && *ip.Interface == index {
			ips = append(ips, ip.Address.Addr().String())
		}
	}
	return ips
}

// StatusText returns the value of the annotation, laid out as Multus does.
func StatusText(list []Status) (string, error) {
	data, err := lightjson.MarshalIndent(list, "", "    ")
	if err != nil {
		return "", fmt.Errorf("encode annotation %s: %w", StatusKey, err)
	}
	return string(data), nil
}
