// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package l4 names the protocols above IP that policies and Services know.
package l4

import (
	"fmt"
	"strconv"
)

// Protocol is the number of an IP protocol. 0 stands for all.
type Protocol uint8

// These are the protocols with a name here.
const (
	ICMP   Protocol = 1
	TCP    Protocol = 6
	UDP    Protocol = 17
	ICMPv6 Protocol = 58
	SCTP   Protocol = 132
)

// HasPorts reports whether packets of the protocol begin with the ports of both ends, and conntrack tells flows apart by
// them: TCP, UDP, DCCP, SCTP and UDP-Lite.
func (p Protocol) HasPorts() bool { return p == TCP || p == UDP || p == 33 || p == SCTP || p == 136 }

// String returns the name in lower case, as nft writes it.
func (p Protocol) String() string {
	switch p {
	case ICMP:
		return "icmp"
	case TCP:
		return "tcp"
	case UDP:
		return "udp"
	case ICMPv6:
		return "icmpv6"
	case SCTP:
		return "sctp"
	}
	return "protocol " + strconv.Itoa(int(p))
}

// Parse reads Kubernetes' name of the protocol of a port. The API's default is TCP.
func Parse(name string) (Protocol, error) {
	switch name {
	case "", "TCP":
		return TCP, nil
	case "UDP":
		return UDP, nil
	case "SCTP":
		return SCTP, nil
	}
	return 0, fmt.Errorf("protocol %q is not known", name)
}
