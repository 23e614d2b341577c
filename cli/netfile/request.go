// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package netfile

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/jessevdk/go-flags"

	"github.com/patchbay-net/patchbay/internal/endpoint"
	"github.com/patchbay-net/patchbay/spec"
)

// Driver is the value of a flag that the shell completes to a driver of networks.
type Driver string

// Complete lists the drivers that begin with match.
func (*Driver) Complete(match string) (out []flags.Completion) {
	for _, d := range []string{driverBridge, driverPTP, driverMACVLAN, driverIPVLAN} {
		if strings.HasPrefix(d, match) {
			out = append(out, flags.Completion{Item: d})
		}
	}
	return out
}

// Request holds what the operator asked for; its tags define the flags of network create. If
// only Name is set, the request is for a bridge with a free IPv4 subnet.
type Request struct {
	Name      string
	Driver    Driver   `long:"driver" short:"d" value-name:"NAME" default:"bridge" description:"bridge, ptp, macvlan or ipvlan"`
	Subnets   []string `long:"subnet" value-name:"SUBNET" description:"subnet of the containers (a free one); may be repeated, for IPv6 too"`
	Gateways  []string `long:"gateway" value-name:"ADDRESS" description:"address of the gateway (the first one of the subnet); may be repeated"`
	Ranges    []string `long:"ip-range" value-name:"PREFIX|FIRST-LAST" description:"give containers addresses from this part of the subnet; may be repeated"`
	IPv6      bool     `long:"ipv6" description:"a subnet of each family; the one of IPv6 is a unique local /64"`
	Internal  bool     `long:"internal" description:"no way out: no gateway, no masquerade, no published ports"`
	Parent    string   `long:"parent" value-name:"INTERFACE" description:"interface of the host that a macvlan or ipvlan is on; -o parent= is the same"`
	Interface string   `long:"interface-name" value-name:"NAME" description:"name of the bridge (a free one: pb1, pb2 ...)"`
	DNS       []string `long:"dns" value-name:"ADDRESS" description:"name server for the containers; may be repeated"`
	Options   []string `long:"option" short:"o" value-name:"KEY=VALUE" description:"mtu, vlan, isolate (bridge); mtu (ptp); parent, mode, mtu (macvlan, ipvlan); may be repeated"`
	Opt       []string `long:"opt" hidden:"yes"` // podman's name of --option
	Separate  bool     `long:"separate" description:"list the plugins one by one instead of inside one of type patchbay: slower, for podman's commands or other programs of the plugins"`
}

// Mistake is an error about an option's value.
type Mistake struct{ Option, Why, Hint string }

func (m *Mistake) Error() string { return m.Option + ": " + m.Why }

func mistake(hint, option, format string, args ...any) error {
	return &Mistake{Option: option, Why: fmt.Sprintf(format, args...), Hint: hint}
}

// These are the drivers. Each is the name of the plugin that makes the interface.
const (
	driverBridge  = "bridge"
	driverPTP     = "ptp"
	driverMACVLAN = "macvlan"
	driverIPVLAN  = "ipvlan"
)

// options lists the keys that -o accepts for a driver.
func options(driver string) []string {
	switch driver {
	case driverBridge:
		return []string{"isolate", "mtu", "vlan"}
	case driverPTP:
		return []string{"mtu"}
	case driverMACVLAN, driverIPVLAN:
		return []string{"mode", "mtu", "parent"}
	}
	return nil
}

// wanted is a validated Request.
type wanted struct {
	Request
	subnets []Subnet
	dns     []string
	mtu     int
	vlan    int
	isolate string // the firewall plugin's ingressPolicy
	parent  string
	mode    string
}

// child reports whether the interfaces are macvlans or ipvlans of a host's interface. They are
// in the network of that parent, so we choose no subnet and the host is not the gateway.
func (w *wanted) child() bool { return w.Driver == driverMACVLAN || w.Driver == driverIPVLAN }

// read checks the request, before anything of the host is read.
func read(wish Request) (*wanted, error) {
	w := &wanted{Request: wish}
	if w.Driver == "" {
		w.Driver = driverBridge
	}
	if err := spec.ValidateNetworkName(w.Name); err != nil {
		return nil, mistake("letters, digits, and then also . _ -", fmt.Sprintf("NAME %q", w.Name), "%v", err)
	}
	if options(string(w.Driver)) == nil {
		return nil, mistake("bridge, ptp, macvlan or ipvlan", "--driver "+string(w.Driver), "network create knows no such driver")
	}
	for _, step := range []func() error{w.readOptions, w.readInterface, w.readDNS, w.readSubnets, w.readGateways, w.readRanges} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	return w, w.coherent()
}

// coherent returns an error if options contradict each other.
func (w *wanted) coherent() error {
	switch {
	case w.child() && w.parent == "":
		return mistake("such as --parent eth0", "--driver "+string(w.Driver), "it needs the interface of the host that it is on: --parent")
	case w.child() && w.IPv6 && !w.has(false):
		return mistake("", "--ipv6", "a %s is in the network of its parent: give the IPv6 subnet of that with --subnet", w.Driver)
	case w.Driver == driverIPVLAN && len(w.subnets) == 0:
		return mistake("", "--driver ipvlan", "it needs --subnet: its interfaces share one hardware address, so DHCP cannot tell them apart")
	case w.Interface != "" && w.Driver != driverBridge:
		return mistake("", "--interface-name "+w.Interface, "only a bridge has one")
	case w.Internal && w.Driver == driverPTP:
		return mistake("use the driver bridge", "--internal", "a ptp network has nothing but its way out, so it cannot be internal")
	case w.Internal && w.child():
		return mistake("use the driver bridge", "--internal", "a %s is in the network of its parent, and so not internal", w.Driver)
	case w.Internal && w.isolate != "":
		return mistake("", "-o isolate", "nothing leaves an --internal network")
	case w.Internal && len(w.Gateways) > 0:
		return mistake("", "--gateway "+w.Gateways[0], "an --internal network has no gateway")
	}
	return w.possible()
}

func (w *wanted) readInterface() error {
	if w.Interface == "" {
		return nil
	}
	if err := spec.ValidateNewIfName(w.Interface); err != nil {
		return mistake("", "--interface-name "+w.Interface, "%v", err)
	}
	return nil
}

func (w *wanted) readDNS() error {
	for _, s := range w.DNS {
		a, err := netip.ParseAddr(s)
		if err != nil {
			return mistake("such as --dns 192.0.2.53", "--dns "+s, "it is no address")
		}
		w.dns = append(w.dns, a.String())
	}
	return nil
}

func (w *wanted) readOptions() error {
	known, given := options(string(w.Driver)), slices.Concat(w.Options, w.Opt)
	if w.Parent != "" {
		given = append(given, "parent="+w.Parent)
	}
	for _, o := range given {
		key, value, ok := strings.Cut(o, "=")
		if !ok || value == "" {
			return mistake("", "--option "+o, "an option is KEY=VALUE")
		}
		if !slices.Contains(known, key) {
			return mistake("", "--option "+o, "a %s network has no such option, only %s", w.Driver, strings.Join(known, ", "))
		}
		if err := w.option(key, value); err != nil {
			return err
		}
	}
	return nil
}

func (w *wanted) option(key, value string) (err error) {
	at := "--option " + key + "=" + value
	switch key {
	case "mtu":
		w.mtu, err = number(at, value, 68, 65535)
	case "vlan":
		w.vlan, err = number(at, value, 1, 4094)
	case "parent":
		if err := spec.ValidateIfName(value); err != nil {
			return mistake("", at, "%v", err)
		}
		w.parent = value
	case "mode":
		w.mode, err = w.readMode(at, value)
	case "isolate":
		w.isolate, err = readIsolate(at, value)
	}
	return err
}

func number(at, value string, low, high int) (int, error) {
	n, err := strconv.Atoi(value)
	if err != nil || n < low || n > high {
		return 0, mistake("", at, "it is a number from %d to %d", low, high)
	}
	return n, nil
}

func (w *wanted) readMode(at, value string) (string, error) {
	modes := []string{"bridge", "private", "vepa", "passthru"}
	if w.Driver == driverIPVLAN {
		modes = []string{"l2", "l3", "l3s"}
	}
	if !slices.Contains(modes, value) {
		return "", mistake("", at, "a %s has the modes %s", w.Driver, strings.Join(modes, ", "))
	}
	return value, nil
}

// readIsolate returns the ingressPolicy of the firewall plugin that means the same as podman's
// value.
func readIsolate(at, value string) (string, error) {
	switch value {
	case "false":
		return "", nil
	case "true":
		return "same-bridge", nil
	case "strict":
		return "isolated", nil
	}
	return "", mistake("", at, "it is true (other networks with this option cannot reach it), strict (its containers also cannot reach each other through the host) or false")
}

// possible returns an error for a valid request that no ADD could carry out.
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

// second4 returns the second IPv4 subnet, or "".
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

// Device describes an interface of the host that may become a parent.
type Device struct {
	MTU      int
	Ethernet bool   // its frames have Ethernet headers, and it is not lo
	Port     string // the bridge or bond of which it is a port
}

// fitsParent returns an error for an interface that can have no macvlan or ipvlan. It warns if
// the interface does not exist, or if another network's driver prevents it.
func (w *wanted) fitsParent(t *InUse) (warnings []string, err error) {
	if !w.child() {
		return nil, nil
	}
	for _, other := range t.Children {
		if other.Parent == w.parent && other.Driver != string(w.Driver) {
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
