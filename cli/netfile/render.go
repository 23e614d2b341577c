// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package netfile

import (
	"bytes"
	"encoding/json"
	"io"
	"net/netip"

	"github.com/patchbay-net/patchbay/internal/packed"
	"github.com/patchbay-net/patchbay/spec"
)

// Mark is the value of the key "generatedBy" in our files. Other programs wrote all other
// files.
const Mark = "patchbay network create"

// conflist is the content of the file. Older runtimes read only cniVersion. Newer ones choose
// from cniVersions. So each uses the newest version that it knows.
type conflist struct {
	CNIVersion  string            `json:"cniVersion"`
	CNIVersions []string          `json:"cniVersions"`
	Name        string            `json:"name"`
	GeneratedBy string            `json:"generatedBy"`
	Plugins     []json.RawMessage `json:"plugins"`
}

// New returns the text of the file for a request, and warnings. It reads random to choose an
// IPv6 prefix.
func New(wish Request, t *InUse, random io.Reader) (text []byte, warnings []string, err error) {
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
	plugins := append([]*Plugin{d}, w.helpers()...)
	list, err := w.list(plugins)
	if err != nil {
		return nil, nil, err
	}
	text, err = encode(conflist{"1.0.0", []string{"1.0.0", "1.1.0"}, w.Name, Mark, list})
	return text, warnings, err
}

// list returns the plugins as the list has them: in one that runs them in one process, or separate.
func (w *wanted) list(plugins []*Plugin) (list []json.RawMessage, err error) {
	for _, p := range plugins {
		raw, err := json.Marshal(p)
		if err != nil {
			return nil, err
		}
		list = append(list, raw)
	}
	if w.Separate {
		return list, nil
	}
	one, err := packed.Pack(list)
	return []json.RawMessage{one}, err
}

func encode(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err := e.Encode(v)
	return b.Bytes(), err
}

// device returns the plugin that makes the interface.
func (w *wanted) device(t *InUse) (d *Plugin, err error) {
	d = &Plugin{Type: string(w.Driver), MTU: w.mtu, Vlan: w.vlan, IPAM: w.ipam(), DNS: dns{w.dns}, Capabilities: map[string]bool{"ips": true, "mac": true}}
	switch w.Driver {
	case driverBridge:
		if w.Internal {
			d.Internal = &w.Internal
		}
		d.IsDefaultGateway, d.IPMasq, d.HairpinMode = !w.Internal, !w.Internal, !w.Internal
		d.Bridge, err = w.bridge(t)
	case driverPTP:
		d.IPMasq = true
	case driverMACVLAN, driverIPVLAN:
		d.Master, d.Mode = w.parent, w.mode
	}
	if w.Driver == driverPTP || w.Driver == driverIPVLAN {
		delete(d.Capabilities, "mac")
	}
	if d.IPAM.Type == "dhcp" {
		delete(d.Capabilities, "ips")
	}
	return d, err
}

// ipam returns the section for IPAM: host-local with the subnets, or dhcp if there are none.
// Only a network on a parent interface may lack subnets, because a DHCP server may answer there.
func (w *wanted) ipam() (i ipam) {
	if len(w.subnets) == 0 {
		return ipam{Type: "dhcp"}
	}
	i.Type = "host-local"
	for _, s := range w.subnets {
		if !s.Gateway.IsValid() && !w.Internal {
			s.Gateway = s.Prefix.Addr().Next()
		}
		i.Ranges = append(i.Ranges, []Range{{s.Prefix.String(), addrText(s.First), addrText(s.Last), addrText(s.Gateway)}})
	}
	if w.Internal || w.Driver == driverBridge { // isDefaultGateway of the bridge adds the default routes
		return i
	}
	for _, v4 := range []bool{true, false} {
		if w.has(v4) {
			i.Routes = append(i.Routes, route{spec.DefaultDst(v4).String()})
		}
	}
	return i
}

// addrText formats an address. It returns "" if there is none.
func addrText(a netip.Addr) string {
	if !a.IsValid() {
		return ""
	}
	return a.String()
}

// helpers returns portmap and firewall, for containers that the host routes for.
func (w *wanted) helpers() []*Plugin {
	if w.child() || w.Internal {
		return nil
	}
	return []*Plugin{
		{Type: "portmap", Capabilities: map[string]bool{"portMappings": true}},
		{Type: "firewall", Ingress: w.isolate},
	}
}
