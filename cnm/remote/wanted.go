// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package remote

import (
	"encoding/json"
	"net"
	"net/netip"
	"strings"

	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/endpoint"
	"github.com/patchbay-net/patchbay/spec"
)

// Wanted holds what a caller may request outside the configuration.
type Wanted struct {
	RuntimeConfig Runtime `json:"runtimeConfig"`
	Args          Args    `json:"args"`
}

// Runtime holds the capabilities mac and ips.
type Runtime struct {
	// MAC is the requested MAC address, before args.cni.mac and MAC= in CNI_ARGS.
	// Reference: none, ours only.
	MAC string `json:"mac"`

	// IPs are the requested addresses, with or without a prefix length.
	// Reference: none, ours only.
	IPs []string `json:"ips"`
}

// Args holds the key `args`.
type Args struct {
	CNI struct {
		// MAC is as in runtimeConfig.
		// Reference: none, ours only.
		MAC string `json:"mac"`

		// IPs are as in runtimeConfig, and so is IP= in CNI_ARGS; all are added up.
		// Reference: none, ours only.
		IPs []string `json:"ips"`
	} `json:"cni"`
}

// MAC returns the requested MAC address, or nil if there is none.
func (w *Wanted) MAC(r *plugin.Request) (net.HardwareAddr, error) {
	return endpoint.WantedMAC(r, w.RuntimeConfig.MAC, w.Args.CNI.MAC)
}

// AddressWanted is a requested address. Bits is -1 if it has no prefix length.
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

// ChosenMAC returns the MAC address for an attachment, if the driver does not choose one. It is
// the requested one, or else one derived from the owner, as our other plugins use. So an IPAM
// driver that requires the MAC address gets the right one before the interface exists.
func ChosenMAC(r *plugin.Request) (net.HardwareAddr, error) {
	var w Wanted
	if err := json.Unmarshal(r.Config, &w); err != nil {
		return nil, spec.Errorf(spec.CodeDecoding, "failed to load netconf: %w", err)
	}
	mac, err := w.MAC(r)
	if mac == nil && err == nil {
		mac = endpoint.AddressesOf(r).Container()
	}
	return mac, err
}
