// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"net/netip"

	"github.com/patchbay-net/patchbay/spec"
)

// shortestPrefix is that of the largest private networks: 10.0.0.0/8 and fd00::/8.
const shortestPrefix = 8

// CheckPrefix refuses the address of a container whose prefix cannot be its network. A
// prefix of no bits is everything: what a host accepts and does not masquerade for the
// network would apply to every host.
func CheckPrefix(address netip.Prefix) error {
	if address.Bits() >= shortestPrefix {
		return nil
	}
	return spec.Invalid("address %s: a prefix of %d bits cannot be a container's network (at least %d)",
		address, address.Bits(), shortestPrefix).WithDetails("give the address with the prefix length of its network, or %s/%d alone",
		address.Addr(), address.Addr().BitLen())
}

// CheckPrefixes is CheckPrefix of each address in a result.
func CheckPrefixes(result *spec.Result) error {
	if result == nil {
		return nil
	}
	for _, ip := range result.IPs {
		if err := CheckPrefix(ip.Address); err != nil {
			return err
		}
	}
	return nil
}
