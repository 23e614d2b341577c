// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package netfile

import (
	"fmt"

	"github.com/patchbay-net/patchbay/plugin/endpoint"
	"github.com/patchbay-net/patchbay/spec"
)

// possible refuses requests that are well-formed but that no ADD could carry out.
func (w *wanted) possible() error {
	if second := w.second4(); second != "" && w.Driver == driverBridge && !w.Internal {
		return mistake("make a network of each; a container can be on both", "--subnet "+second,
			"a bridge is the gateway of one IPv4 subnet, and this is another one")
	}
	if six := w.IPv6 || w.has(false); six && w.mtu != 0 && w.mtu < endpoint.LeastMTU6 {
		return mistake("raise it, or leave IPv6 out", fmt.Sprintf("--option mtu=%d", w.mtu),
			"IPv6 needs an MTU of at least %d", endpoint.LeastMTU6)
	}
	if link := fmt.Sprintf("%s.%d", w.Interface, w.vlan); w.vlan != 0 && len(link) > spec.IfNameMax {
		return mistake("choose a shorter name", "--interface-name "+w.Interface,
			"the gateway's interface in the VLAN would be %s, and names have at most %d characters", link, spec.IfNameMax)
	}
	return nil
}

// second4 is the second IPv4 subnet.
func (w *wanted) second4() string {
	var list []string
	for _, s := range w.subnets {
		if s.Prefix.Addr().Is4() {
			list = append(list, s.Prefix.String())
		}
	}
	if len(list) < 2 {
		return ""
	}
	return list[1]
}

// Device is an interface of the host, with what matters to its children and ports.
type Device struct {
	MTU      int
	Ethernet bool   // its frames are Ethernet's, and it is not lo
	Port     string // the bridge or bond that it is a port of
}

// fitsParent refuses an interface that can have no child, and warns of a missing or busy
// one.
func (w *wanted) fitsParent(t *Taken) (warnings []string, err error) {
	if !w.child() {
		return nil, nil
	}
	for _, other := range t.Children {
		if other.Parent == w.parent && other.Driver != w.Driver {
			warnings = append(warnings, fmt.Sprintf("network %s has the driver %s on %s: an interface cannot have a %s and a %s at the same time",
				other.Network, other.Driver, w.parent, other.Driver, w.Driver))
		}
	}
	d, known := t.Devices[w.parent]
	at := "--parent " + w.parent
	switch {
	case !known:
		warnings = append(warnings, fmt.Sprintf("this host has no interface %s now", w.parent))
	case !d.Ethernet:
		return nil, mistake("such as --parent eth0", at, "it is no Ethernet interface, so it cannot have a %s", w.Driver)
	case d.Port != "":
		return nil, mistake("use --parent "+d.Port, at, "it is a port of %s, so it cannot have a %s", d.Port, w.Driver)
	case w.Driver == driverMACVLAN && w.mtu > d.MTU:
		return nil, mistake("leave it out, and it is the parent's", fmt.Sprintf("--option mtu=%d", w.mtu), "the MTU of %s is %d, and a macvlan on it cannot have more", w.parent, d.MTU)
	}
	return warnings, nil
}
