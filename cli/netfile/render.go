// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package netfile

import (
	"bytes"
	"encoding/json"
	"io"
	"net/netip"
)

// Mark is the value of the key generatedBy in our files. Any other file is not ours.
const Mark = "patchbay network create"

// conflist is the file. Older runtimes read only cniVersion, newer ones choose from
// cniVersions, so each gets the newest version that it knows.
type conflist struct {
	CNIVersion  string   `json:"cniVersion"`
	CNIVersions []string `json:"cniVersions"`
	Name        string   `json:"name"`
	GeneratedBy string   `json:"generatedBy"`
	Plugins     []any    `json:"plugins"`
}

// device is the plugin that makes the interface, of any type.
type device struct {
	Type             string          `json:"type"`
	Bridge           string          `json:"bridge,omitempty"`
	Master           string          `json:"master,omitempty"`
	Mode             string          `json:"mode,omitempty"`
	IsDefaultGateway bool            `json:"isDefaultGateway,omitempty"`
	IPMasq           bool            `json:"ipMasq,omitempty"`
	Internal         bool            `json:"internal,omitempty"`
	HairpinMode      bool            `json:"hairpinMode,omitempty"`
	MTU              int             `json:"mtu,omitempty"`
	Vlan             int             `json:"vlan,omitempty"`
	Capabilities     map[string]bool `json:"capabilities,omitempty"`
	IPAM             ipam            `json:"ipam"`
	DNS              *dns            `json:"dns,omitempty"`
}

type dns struct {
	Nameservers []string `json:"nameservers"`
}

type ipam struct {
	Type   string       `json:"type"`
	Ranges [][]poolConf `json:"ranges,omitempty"`
	Routes []route      `json:"routes,omitempty"`
}

type poolConf struct {
	Subnet     netip.Prefix `json:"subnet"`
	RangeStart netip.Addr   `json:"rangeStart,omitzero"`
	RangeEnd   netip.Addr   `json:"rangeEnd,omitzero"`
	Gateway    netip.Addr   `json:"gateway,omitzero"`
}

type route struct {
	Dst netip.Prefix `json:"dst"`
}

// helper is a plugin after the interface's.
type helper struct {
	Type         string          `json:"type"`
	Ingress      string          `json:"ingressPolicy,omitempty"`
	Capabilities map[string]bool `json:"capabilities,omitempty"`
}

// New returns the text of the file for a wish, and warnings. random is read for an IPv6
// prefix.
func New(wish Wish, t *Taken, random io.Reader) (text []byte, warnings []string, err error) {
	w, err := read(wish)
	if err != nil {
		return nil, nil, err
	}
	if warnings, err = w.settle(t, random); err != nil {
		return nil, nil, err
	}
	more, err := w.fitsParent(t)
	if err != nil {
		return nil, nil, err
	}
	warnings = append(warnings, more...)
	d, err := w.device(t)
	if err != nil {
		return nil, nil, err
	}
	c := conflist{"1.0.0", []string{"1.0.0", "1.1.0"}, w.Name, Mark, append([]any{d}, w.helpers()...)}
	if w.One {
		c.Plugins = []any{oneProcess(d, w.helpers())}
	}
	text, err = encode(c)
	return text, warnings, err
}

// oneProcess is the plugin that runs all others in one process.
func oneProcess(d device, helpers []any) any {
	all := map[string]bool{}
	for name := range d.Capabilities {
		all[name] = true
	}
	for _, h := range helpers {
		for name := range h.(helper).Capabilities {
			all[name] = true
		}
	}
	return struct {
		Type         string          `json:"type"`
		Capabilities map[string]bool `json:"capabilities,omitempty"`
		Plugins      []any           `json:"plugins"`
	}{"patchbay", all, append([]any{d}, helpers...)}
}

func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err := e.Encode(v)
	return b.Bytes(), err
}

func (w *wanted) device(t *Taken) (d device, err error) {
	d = device{Type: w.Driver, MTU: w.mtu, Vlan: w.vlan, IPAM: w.ipam(), Capabilities: map[string]bool{"ips": true, "mac": true}}
	if w.dns != nil {
		d.DNS = &dns{w.dns}
	}
	switch w.Driver {
	case driverBridge:
		d.Internal = w.Internal
		d.IsDefaultGateway, d.IPMasq, d.HairpinMode = !w.Internal, !w.Internal, !w.Internal
		d.Bridge, err = w.bridge(t)
	case driverPTP:
		d.IPMasq = true
		delete(d.Capabilities, "mac")
	case driverMACVLAN:
		d.Master, d.Mode = w.parent, w.mode
	case driverIPVLAN:
		d.Master, d.Mode = w.parent, w.mode
		delete(d.Capabilities, "mac")
	}
	if d.IPAM.Type == "dhcp" {
		delete(d.Capabilities, "ips")
	}
	return d, err
}

// ipam is host-local with the subnets; without subnets it is dhcp, since the parent's
// network has a DHCP server.
func (w *wanted) ipam() (i ipam) {
	if len(w.subnets) == 0 {
		return ipam{Type: "dhcp"}
	}
	i.Type = "host-local"
	for _, s := range w.subnets {
		p := poolConf{Subnet: s.Prefix, RangeStart: s.First, RangeEnd: s.Last, Gateway: s.Gateway}
		if !p.Gateway.IsValid() && !w.Internal {
			p.Gateway = s.Prefix.Addr().Next()
		}
		i.Ranges = append(i.Ranges, []poolConf{p})
	}
	if w.Internal || w.Driver == driverBridge { // isDefaultGateway adds the default routes
		return i
	}
	for _, v4 := range []bool{true, false} {
		if w.has(v4) {
			i.Routes = append(i.Routes, route{everything(v4)})
		}
	}
	return i
}

func everything(v4 bool) netip.Prefix {
	if v4 {
		return netip.PrefixFrom(netip.IPv4Unspecified(), 0)
	}
	return netip.PrefixFrom(netip.IPv6Unspecified(), 0)
}

// helpers are the plugins of a container that the host routes for: ports and firewall.
func (w *wanted) helpers() (list []any) {
	if w.child() || w.Internal {
		return nil
	}
	return []any{
		helper{Type: "portmap", Capabilities: map[string]bool{"portMappings": true}},
		helper{Type: "firewall", Ingress: w.isolate},
	}
}
