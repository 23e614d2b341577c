// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package netfile

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strconv"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/internal/packed"
)

// Info describes the content of any network's file.
type Info struct {
	Driver    string // the plugin that makes the interface
	Interface string // the bridge, or the parent interface
	Subnets   []Subnet
	IPAM      string // the IPAM plugin
	DataDir   string // the data directory of host-local, or ""
	Internal  bool   // the host forwards nothing for the bridge, or the bridge has no gateway
	DNS       []string
	MTU, Vlan int
	Isolate   string   // the firewall plugin's ingressPolicy
	Plugins   []string // the types of all plugins, including nested ones
}

// typeWrap is the type of the plugin that calls another plugin. One of type packed.Type calls several.
const typeWrap = "wrap"

// Plugin is one plugin in the file. Create writes it; Describe and doctor read it from any file.
type Plugin struct {
	Type             string          `json:"type"`
	Bridge           string          `json:"bridge,omitempty"`
	Master           string          `json:"master,omitempty"`
	Mode             string          `json:"mode,omitempty"`
	IsGateway        bool            `json:"isGateway,omitempty"`
	IsDefaultGateway bool            `json:"isDefaultGateway,omitempty"`
	IPMasq           bool            `json:"ipMasq,omitempty"`
	IPMasqOutside    []any           `json:"ipMasqOutside,omitempty"`
	Span             []any           `json:"span,omitempty"`
	Internal         *bool           `json:"internal,omitempty"`
	HairpinMode      bool            `json:"hairpinMode,omitempty"`
	MTU              int             `json:"mtu,omitempty"`
	Vlan             int             `json:"vlan,omitempty"`
	LinkInContainer  bool            `json:"linkInContainer,omitempty"`
	Ingress          string          `json:"ingressPolicy,omitempty"`
	Capabilities     map[string]bool `json:"capabilities,omitempty"`
	IPAM             ipam            `json:"ipam,omitzero"`
	DNS              dns             `json:"dns,omitzero"`
	Plugin           *Plugin         `json:"plugin,omitempty"`  // the nested plugin of wrap
	Plugins          []*Plugin       `json:"plugins,omitempty"` // the nested plugins of patchbay
}

type dns struct {
	Nameservers []string `json:"nameservers"`
}

type ipam struct {
	Type      string     `json:"type"`
	DataDir   string     `json:"dataDir,omitempty"`
	Socket    string     `json:"daemonSocketPath,omitempty"` // of dhcp
	Range                // the older form of host-local
	Ranges    [][]Range  `json:"ranges,omitempty"`
	Addresses []struct { // the addresses of static
		Address string `json:"address"`
		Gateway string `json:"gateway"`
	} `json:"addresses,omitempty"`
	Routes []route `json:"routes,omitempty"`
}

// Range holds addresses as text, so that one that cannot be parsed does not hide the
// others.
type Range struct {
	Subnet     string `json:"subnet,omitempty"`
	RangeStart string `json:"rangeStart,omitempty"`
	RangeEnd   string `json:"rangeEnd,omitempty"`
	Gateway    string `json:"gateway,omitempty"`
}

type route struct {
	Dst string `json:"dst"`
}

// Describe reads the plugins of a network. It skips what it cannot read, because network
// validate reports mistakes.
func Describe(l *chain.List) (i Info) {
	for _, p := range l.Plugins {
		var read Plugin
		_ = json.Unmarshal(p.Raw, &read) // a field of the wrong type does not stop the others
		i.add(&read)
	}
	return i
}

// add adds a plugin and the plugins nested in it to the description.
func (i *Info) add(p *Plugin) {
	i.Plugins = append(i.Plugins, p.Type)
	members := p.members()
	for _, m := range members {
		i.add(m)
	}
	switch {
	case len(members) > 0:
	case i.Driver == "":
		i.first(p)
	case p.Ingress != "":
		i.Isolate = p.Ingress
	}
}

// members returns the plugins nested in a plugin of type patchbay or wrap.
func (p *Plugin) members() []*Plugin {
	list := p.Plugins
	switch p.Type {
	case packed.Type:
	case typeWrap:
		list = []*Plugin{p.Plugin}
	default:
		return nil
	}
	return slices.DeleteFunc(list, func(m *Plugin) bool { return m == nil })
}

// first adds the plugin that makes the interface.
func (i *Info) first(s *Plugin) {
	i.Driver, i.Interface, i.IPAM, i.DataDir = s.Type, s.Bridge+s.Master, s.IPAM.Type, s.IPAM.DataDir
	if s.Type == driverBridge && i.Interface == "" {
		i.Interface = "cni0"
	}
	alone := s.Type == driverBridge && !s.IsGateway && !s.IsDefaultGateway && s.IPAM.Type != ""
	i.Internal = alone || s.Type == driverBridge && s.Internal != nil && *s.Internal
	i.DNS, i.MTU, i.Vlan = s.DNS.Nameservers, s.MTU, s.Vlan
	ranges := []Range{s.IPAM.Range}
	for _, set := range s.IPAM.Ranges {
		ranges = append(ranges, set...)
	}
	for _, a := range s.IPAM.Addresses {
		ranges = append(ranges, Range{Subnet: a.Address, Gateway: a.Gateway})
	}
	for _, r := range ranges {
		if n, ok := r.subnet(); ok {
			i.Subnets = append(i.Subnets, n)
		}
	}
}

func (r Range) subnet() (n Subnet, ok bool) {
	p, err := netip.ParsePrefix(r.Subnet)
	if err != nil {
		return n, false
	}
	n.Prefix = p.Masked()
	n.Gateway, _ = netip.ParseAddr(r.Gateway)
	n.First, _ = netip.ParseAddr(r.RangeStart)
	n.Last, _ = netip.ParseAddr(r.RangeEnd)
	return n, true
}

// Ours reports whether `network create` wrote the file.
func Ours(l *chain.List) bool {
	var head struct {
		By string `json:"generatedBy"`
	}
	return json.Unmarshal(l.Bytes, &head) == nil && head.By == Mark
}

// Options returns the values for the options -o of network create.
func (i Info) Options() map[string]string {
	out := map[string]string{}
	if i.MTU != 0 {
		out["mtu"] = strconv.Itoa(i.MTU)
	}
	if i.Vlan != 0 {
		out["vlan"] = strconv.Itoa(i.Vlan)
	}
	switch i.Isolate {
	case "same-bridge":
		out["isolate"] = "true"
	case "isolated":
		out["isolate"] = "strict"
	}
	if i.Driver == driverMACVLAN || i.Driver == driverIPVLAN {
		out["parent"] = i.Interface
	}
	return out
}
