// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"net/netip"

	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// NoIPv6 returns the sysctl that keeps IPv6 away from links that are made on the host now. If none does, it
// returns "".
func NoIPv6(host *nl.Conn) (sysctl string) {
	const key = "net/ipv6/conf/default/disable_ipv6"
	if off, err := host.Sysctl(key); err == nil && off == "1" {
		return key
	}
	return ""
}

// IPv6IsOff is the error for an address that a link cannot have because of a sysctl. The kernel's error is
// "permission denied".
func IPv6IsOff(link string, a netip.Prefix, sysctl string) error {
	return spec.Invalid("%q cannot have the address %s: IPv6 is switched off", link, a).WithDetails("sysctl -w %s=0", sysctl)
}

// Answers returns, for STATUS, the answers that IPAM may give. Only host-local's ranges are known; other IPAM
// plugins return their addresses only during the ADD.
func Answers(r *plugin.Request, ipam string) []*spec.Result {
	if ipam != "host-local" {
		return nil
	}
	judged := &plugin.Request{Call: r.Call, Plugin: r.Plugin, Head: r.Head, Session: r.Session, InList: new(plugin.InList)}
	return judged.Samples()
}
