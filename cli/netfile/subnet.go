// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package netfile

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/patchbay-net/patchbay/internal/prefix"
)

// Subnet is one range of addresses of a network.
type Subnet struct {
	Prefix      netip.Prefix
	Gateway     netip.Addr // invalid if not given
	First, Last netip.Addr // the range for containers; invalid if that is the whole subnet
}

func (w *wanted) readSubnets() error {
	for _, s := range w.Subnets {
		at := "--subnet " + s
		p, err := netip.ParsePrefix(s)
		switch {
		case err != nil:
			return mistake("such as 10.89.0.0/24 or fd00:89::/64", at, "it is no subnet: ADDRESS/BITS")
		case p.Addr().Is4In6():
			return mistake("", at, "write an IPv4 subnet as IPv4")
		case p != p.Masked():
			return mistake("did you mean "+p.Masked().String()+"?", at, "it is an address in a subnet")
		}
		if err := plausible(at, p); err != nil {
			return err
		}
		for _, other := range w.subnets {
			if other.Prefix.Overlaps(p) {
				return mistake("", at, "it overlaps --subnet %s", other.Prefix)
			}
		}
		w.subnets = append(w.subnets, Subnet{Prefix: p})
	}
	return nil
}

// plausible returns an error for a subnet that containers cannot use, or that covers much of
// the internet.
func plausible(at string, p netip.Prefix) error {
	a, shortest := p.Addr(), 8
	if a.Is6() {
		shortest = 16
	}
	switch {
	case p.Bits() < shortest:
		return mistake("", at, "it is too large for a network: a /%d is the largest there is", shortest)
	case p.Bits() > a.BitLen()-2:
		return mistake("", at, "it is too small for a gateway and a container: a /%d is the smallest there is", a.BitLen()-2)
	case a.IsLoopback(), p.Contains(netip.IPv6Loopback()), a.IsMulticast(), a.IsLinkLocalUnicast(), a.Is4() && (a.As4()[0] == 0 || a.As4()[0] >= 240):
		return mistake("", at, "no container can have an address of it")
	}
	return nil
}

// readGateways gives each gateway to the subnet that contains it, and a link-local gateway, as routers of IPv6
// have, to the first IPv6 subnet without one.
func (w *wanted) readGateways() error {
	for _, s := range w.Gateways {
		at := "--gateway " + s
		a, err := netip.ParseAddr(s)
		if err != nil || a.Zone() != "" {
			return mistake("", at, "it is no address")
		}
		n, err := w.findFor(at, a)
		if err != nil {
			return err
		}
		if n.Gateway.IsValid() {
			return mistake("", at, "%s has the gateway %s already", n.Prefix, n.Gateway)
		}
		if a == n.Prefix.Addr() || a.Is4() && a == prefix.Last(n.Prefix) {
			return mistake("", at, "it is the first or last address of %s, which no host can have", n.Prefix)
		}
		n.Gateway = a
	}
	return nil
}

// findFor returns the subnet whose gateway an address can be.
func (w *wanted) findFor(at string, gateway netip.Addr) (*Subnet, error) {
	if !prefix.IsLinkLocal(gateway) {
		return w.find(at, gateway)
	}
	for i := range w.subnets {
		if n := &w.subnets[i]; n.Prefix.Addr().Is6() && !n.Gateway.IsValid() {
			return n, nil
		}
	}
	return nil, mistake("", at, "a link-local gateway needs an IPv6 --subnet of its own")
}

// find returns the subnet that contains an address.
func (w *wanted) find(at string, a netip.Addr) (*Subnet, error) {
	for i := range w.subnets {
		if w.subnets[i].Prefix.Contains(a) {
			return &w.subnets[i], nil
		}
	}
	if len(w.subnets) == 0 {
		return nil, mistake("", at, "it needs --subnet")
	}
	return nil, mistake("", at, "%s is in no --subnet", a)
}

// readRanges gives each range to the subnet that contains it.
func (w *wanted) readRanges() error {
	for _, s := range w.Ranges {
		at := "--ip-range " + s
		first, last, err := bounds(s)
		if err != nil {
			return mistake("such as 10.89.0.128/25 or 10.89.0.100-10.89.0.200", at, "%v", err)
		}
		n, err := w.find(at, first)
		if err != nil {
			return err
		}
		switch {
		case !n.Prefix.Contains(last):
			return mistake("", at, "it ends outside of %s", n.Prefix)
		case n.First.IsValid():
			return mistake("", at, "%s has a range already", n.Prefix)
		}
		if first == n.Prefix.Addr() {
			first = first.Next()
		}
		if last.Is4() && last == prefix.Last(n.Prefix) {
			last = last.Prev()
		}
		if err := n.holds(at, first, last); err != nil {
			return err
		}
		n.First, n.Last = first, last
	}
	return nil
}

// holds returns an error if no container can get an address of the range.
func (n *Subnet) holds(at string, first, last netip.Addr) error {
	gateway := n.Gateway
	if !gateway.IsValid() {
		gateway = n.Prefix.Addr().Next() // host-local never assigns this address, even if no gateway uses it
	}
	switch {
	case last.Less(first):
		return mistake("", at, "it holds only the first or last address of %s, which no host can have", n.Prefix)
	case first == last && first == gateway:
		return mistake("choose a range with more addresses, or another --gateway", at, "it holds only %s, which is the gateway's", gateway)
	}
	return nil
}

// bounds parses PREFIX or FIRST-LAST.
func bounds(s string) (first, last netip.Addr, err error) {
	if p, err := netip.ParsePrefix(s); err == nil {
		return p.Masked().Addr(), prefix.Last(p), nil
	}
	low, high, _ := strings.Cut(s, "-")
	first, err = netip.ParseAddr(low)
	if err == nil {
		last, err = netip.ParseAddr(high)
	}
	switch {
	case err != nil:
		return first, last, fmt.Errorf("it is neither a prefix nor FIRST-LAST")
	case last.Less(first):
		return first, last, fmt.Errorf("the last address comes before the first")
	}
	return first, last, nil
}

// has reports whether the network has an IPv4 subnet (if v4 is true) or an IPv6 subnet.
func (w *wanted) has(v4 bool) bool {
	for _, s := range w.subnets {
		if s.Prefix.Addr().Is4() == v4 {
			return true
		}
	}
	return false
}
