// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package netfile

import (
	"encoding/json"
	"net/netip"
	"strconv"
	"strings"

	"github.com/patchbay-net/patchbay/chain"
)

// Info is the content of a network's file, of any origin.
type Info struct {
	Driver    string // the plugin that makes the interface
	Interface string // the bridge, or the parent interface
	Subnets   []Subnet
	IPAM      string // the IPAM plugin
	DataDir   string // of host-local, if not the default
	Internal  bool   // the host forwards nothing for its bridge, or it has no gateway
	Open      bool   // without a gateway and without the key internal
	DNS       []string
	MTU, Vlan int
	Isolate   string // firewall's ingressPolicy
}

// pluginFields holds the fields of a plugin's object that Describe reads.
type pluginFields struct {
	Type             string            `json:"type"`
	Bridge           string            `json:"bridge"`
	Master           string            `json:"master"`
	IsGateway        bool              `json:"isGateway"`
	IsDefaultGateway bool              `json:"isDefaultGateway"`
	Internal         *bool             `json:"internal"`
	MTU              int               `json:"mtu"`
	Vlan             int               `json:"vlan"`
	Ingress          string            `json:"ingressPolicy"`
	Plugin           json.RawMessage   `json:"plugin"`  // of wrap
	Plugins          []json.RawMessage `json:"plugins"` // of patchbay
	IPAM             ipamSaid          `json:"ipam"`
	DNS              struct {
		Nameservers []string `json:"nameservers"`
	} `json:"dns"`
}

type ipamSaid struct {
	Type        string          `json:"type"`
	DataDir     string          `json:"dataDir"`
	rangeFields                 // host-local's older form
	Ranges      [][]rangeFields `json:"ranges"`
	Addresses   []struct {      // static's
		Address string `json:"address"`
		Gateway string `json:"gateway"`
	} `json:"addresses"`
}

type rangeFields struct {
	Subnet     string `json:"subnet"`
	RangeStart string `json:"rangeStart"`
	RangeEnd   string `json:"rangeEnd"`
	Gateway    string `json:"gateway"`
}

// Describe reads the plugins of a network. It skips what cannot be read: finding mistakes
// is the work of validate.
func Describe(l *chain.List) (i Info) {
	for _, p := range l.Plugins {
		i.add(p.Raw)
	}
	return i
}

// add reads a plugin, or the plugins nested in it.
func (i *Info) add(raw json.RawMessage) {
	var s pluginFields
	_ = json.Unmarshal(raw, &s) // a field of the wrong type leaves the others
	members := s.Plugins
	if len(s.Plugin) > 0 {
		members = append(members, s.Plugin)
	}
	for _, m := range members {
		i.add(m)
	}
	switch {
	case len(members) > 0:
	case i.Driver == "":
		i.first(&s)
	case s.Ingress != "":
		i.Isolate = s.Ingress
	}
}

// first reads the interface's plugin.
func (i *Info) first(s *pluginFields) {
	i.Driver, i.Interface, i.IPAM, i.DataDir = s.Type, s.Bridge+s.Master, s.IPAM.Type, s.IPAM.DataDir
	if s.Type == driverBridge && i.Interface == "" {
		i.Interface = "cni0"
	}
	alone := s.Type == driverBridge && !s.IsGateway && !s.IsDefaultGateway && s.IPAM.Type != ""
	i.Internal = alone || s.Type == driverBridge && s.Internal != nil && *s.Internal
	i.Open = alone && s.Internal == nil
	i.DNS, i.MTU, i.Vlan = s.DNS.Nameservers, s.MTU, s.Vlan
	ranges := []rangeFields{s.IPAM.rangeFields}
	for _, set := range s.IPAM.Ranges {
		ranges = append(ranges, set...)
	}
	for _, a := range s.IPAM.Addresses {
		ranges = append(ranges, rangeFields{Subnet: a.Address, Gateway: a.Gateway})
	}
	for _, r := range ranges {
		if n, ok := r.subnet(); ok {
			i.Subnets = append(i.Subnets, n)
		}
	}
}

func (r rangeFields) subnet() (n Subnet, ok bool) {
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

// String lists the subnets.
func (i Info) String() string {
	var words []string
	for _, s := range i.Subnets {
		words = append(words, s.Prefix.String())
	}
	return strings.Join(words, ",")
}

// Ours reports whether network create wrote the file.
func Ours(l *chain.List) bool {
	var head struct {
		By string `json:"generatedBy"`
	}
	return json.Unmarshal(l.Bytes, &head) == nil && head.By == Mark
}

// LeftOpen reports whether network create --internal of an earlier release wrote the file:
// it omitted the gateway, as for no other bridge, and did not isolate the network.
func LeftOpen(l *chain.List) bool { return Ours(l) && Describe(l).Open }

// Options are the values that -o of network create sets.
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
