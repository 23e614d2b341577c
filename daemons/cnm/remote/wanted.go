// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package remote

import (
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/daemons/cnm"
	"github.com/patchbay-net/patchbay/internal/endpoint"
	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// Wanted holds what a caller may request outside the configuration.
type Wanted struct {
	RuntimeConfig Runtime `json:"runtimeConfig"`
	Args          Args    `json:"args"`
}

// Runtime holds the capabilities mac and ips.
type Runtime struct {
	// MAC is the requested MAC address. It overrides args.cni.mac, which overrides MAC= in
	// CNI_ARGS. Reference: none, ours only.
	MAC string `json:"mac"`

	// IPs are the requested addresses, with or without a prefix length.
	// Reference: none, ours only.
	IPs []string `json:"ips"`
}

// Args holds the key `args`.
type Args struct {
	CNI struct {
		// MAC is the requested MAC address. It overrides MAC= in CNI_ARGS. Reference: none, ours
		// only.
		MAC string `json:"mac"`

		// IPs are further requested addresses, like IP= in CNI_ARGS; all of them are requested.
		// Reference: none, ours only.
		IPs []string `json:"ips"`
	} `json:"cni"`
}

// MAC returns the requested MAC address, or nil if there is none.
func (w *Wanted) MAC(r *plugin.Request) (net.HardwareAddr, error) {
	return endpoint.WantedMAC(r, w.RuntimeConfig.MAC, w.Args.CNI.MAC)
}

// AddressWanted is a requested address. If it has no prefix length, Bits is -1.
type AddressWanted struct {
	Addr netip.Addr
	Bits int
}

// IPs returns the requested addresses.
func (w *Wanted) IPs(r *plugin.Request) (list []AddressWanted, err error) {
	args, err := r.CNIArgs()
	if err != nil {
		return nil, err
	}
	var texts []string
	if ip, ok := spec.LookupArg(args, "IP"); ok && ip != "" {
		texts = strings.Split(ip, ",")
	}
	texts = append(append(texts, w.Args.CNI.IPs...), w.RuntimeConfig.IPs...)
	for _, text := range texts {
		a := AddressWanted{Bits: -1}
		if p, perr := netip.ParsePrefix(text); perr == nil {
			a = AddressWanted{p.Addr().Unmap(), p.Bits()}
		} else if a.Addr, err = netip.ParseAddr(text); err != nil || a.Addr.Zone() != "" {
			return nil, spec.Invalid("cannot understand ip: invalid IP address %.80q", text)
		}
		a.Addr = a.Addr.Unmap()
		list = append(list, a)
	}
	return list, nil
}

// ChosenMAC returns the MAC address of an attachment, if the driver does not choose one. It is
// the MAC address that the caller requested, or else one derived from the owner key, as in our
// other plugins. So it is known before the interface exists, and an IPAM driver that requires the
// MAC address gets the right one.
func ChosenMAC(r *plugin.Request) (net.HardwareAddr, error) {
	var w Wanted
	if err := json.Unmarshal(r.Config, &w); err != nil {
		return nil, spec.Errorf(spec.CodeDecoding, "failed to load netconf: %w", err)
	}
	mac, err := w.MAC(r)
	if mac == nil && err == nil {
		mac = endpoint.AddressesOf(kernel.Of(r), r.Owner).Container()
	}
	return mac, err
}

// A driver that has lost its state may give one address to two containers. The records show which
// living attachment has an address. RefuseUsed refuses the address for any other attachment. Nor
// may the address be released for another attachment (Holder): the driver would then give it to a
// third one.

// Holder finds the living attachment of a plugin, other than self, that has an address in a
// network. If there is none, Holder returns nil. An attachment that has ended does not count,
// because the driver may already have given its address to another one.
func (d *Dir) Holder(network, pluginName string, self owner.Key, addr netip.Addr) (*DriverState, error) {
	list, _, err := d.List(network, pluginName)
	for _, a := range list {
		if a.Owner != self && a.has(addr) && !d.Dead(a) {
			return a, nil
		}
	}
	return nil, err
}

// has reports whether an attachment has an address. Any driver may have given it.
func (a *DriverState) has(addr netip.Addr) bool {
	same := func(p netip.Prefix) bool { return p.IsValid() && p.Addr() == addr }
	return slices.ContainsFunc(a.Addresses, func(x Address) bool { return same(x.Address) }) ||
		a.Interface != nil && (same(a.Interface.Address) || same(a.Interface.AddressIPv6))
}

// RefuseUsed returns an error if a driver gave an address that another container has. method is
// the call with which the driver gave the address. The caller holds the network's lock until it
// has recorded the address. So if two containers get the same address at once, only one of them
// keeps it.
func (d *Dir) RefuseUsed(r *plugin.Request, pluginName, method string, p netip.Prefix) error {
	other, err := d.Holder(r.Network, pluginName, r.Owner, p.Addr())
	if other == nil {
		return err
	}
	return GivenTwice(method, p, fmt.Sprintf("%s's of container %s", other.IfName, other.ContainerID))
}

// GivenTwice returns the error for a driver that gave an address which is already in use.
func GivenTwice(method string, p netip.Prefix, whose string) error {
	return spec.Errorf(spec.CodeDecoding, "%s: %w: address %s is %s already", method, cnm.ErrBadAnswer, p, whose).
		WithDetails("the driver gave it twice, for example because it lost its state; the present holder keeps it, and it was not given back. " +
			"Attach again to get another; if the driver repeats this, reserve at the driver the addresses that patchbay ps lists")
}
