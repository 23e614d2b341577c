// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policytest

import (
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"
)

// ICMP is the protocol of probes without a port. Rules cannot name it.
const ICMP corev1.Protocol = "ICMP"

// Probe is the first packet of a connection, after destination NAT and before source NAT.
type Probe struct {
	From, To netip.Addr
	Protocol corev1.Protocol
	Port     int32 // 0 if the protocol is ICMP
}

func (p Probe) String() string {
	if p.Protocol == ICMP {
		return fmt.Sprintf("%s -> %s ICMP", p.From, p.To)
	}
	return fmt.Sprintf("%s -> %s", p.From, netip.AddrPortFrom(p.To, uint16(p.Port))) + "/" + string(p.Protocol)
}
