// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"net"
	"net/netip"
	"strings"
	"testing"
)

func TestMeaning(t *testing.T) {
	subnet := netip.MustParsePrefix("10.88.0.0/16")
	to := netip.MustParseAddrPort("10.88.0.2:80")
	to6 := netip.MustParseAddrPort("[fd00::2]:80")
	mac, err := net.ParseMAC("02:00:00:00:00:01")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		e          Element
		what, does string
	}{
		{Port(Published{Protocol: 6, Port: 8080, To: to}, nil, ""), "published port 8080/tcp", "publish port 8080/tcp to 10.88.0.2:80"},
		{Port(Published{Host: netip.MustParseAddr("::1"), Protocol: 17, Port: 53, To: to6}, nil, ""), "published port [::1]:53/udp", "publish port [::1]:53/udp to [fd00::2]:80"},
		{MasqAll(to.Addr(), ""), "masquerade of published ports", "masquerade every client of the published ports of 10.88.0.2"},
		{GuardLoopback("cni0", ""), "guard of the loopback addresses", "keep 127.0.0.0/8 from what comes in by cni0"},
		{Isolate("cni0", ""), "isolation", "keep bridge cni0 apart from other isolated bridges"},
		{SameBridge("cni0", ""), "isolation", "let bridge cni0 forward to cni0"},
		{Apart("cni0", ""), "isolation", "keep the containers on bridge cni0 apart"},
		{Internal("cni0", "")[0], "isolation", "let the containers on bridge cni0 reach each other"},
		{Internal("cni0", "")[1], "isolation", "forward nothing from or to bridge cni0"},
		{Span(subnet, 24, ""), "isolation", "let internal bridges forward between the containers of 10.88.0.0/16, of which each host has a /24"},
		{Divided(subnet, netip.MustParsePrefix("10.89.0.0/16"), 24, ""), "isolation", "forward nothing from containers of 10.88.0.0/16 towards 10.89.0.0/16"},
		{FastPath("cni0", "eth0", ""), "fast path", "let established flows between bridge cni0 and eth0 skip the hooks of every firewall"},
		{CheckMAC("veth1", mac, "")[0], "check of MAC addresses", "let frames of 02:00:00:00:00:01 in from veth1"},
		{CheckMAC("veth1", mac, "")[1], "check of MAC addresses", "check the source addresses of frames from veth1"},
		{Owner("abcdefghijklmno", ""), "mark of the owner", "mark the owner abcdefghijklmno"},
		{Egress(to.Addr(), netip.MustParseAddr("192.0.2.10"), ""), "egress address", "masquerade 10.88.0.2 as 192.0.2.10"},
		{Exempt(subnet, netip.MustParsePrefix("10.0.0.0/8"), ""), "masquerade", "do not masquerade 10.88.0.0/16 towards 10.0.0.0/8"},
		{AnyPort(subnet, ""), "masquerade", "masquerade 10.88.0.0/16 with random source ports"},
		{Element{Set: "new", Key: []byte{1}}, "firewall element of new", "have new { 01 }"},
	} {
		if m := c.e.Meaning(); m.What != c.what || m.Does != c.does {
			t.Errorf("%s: %+v", c.e, m)
		}
	}
}

// Every set has a meaning of its own.
func TestEverySetHasAMeaning(t *testing.T) {
	for _, set := range append(inetSets(), bridgeSets()...) {
		if m := (Element{Set: set}).Meaning(); set != SetSchema && strings.HasPrefix(m.What, "firewall element") {
			t.Errorf("set %s: %+v", set, m)
		}
	}
}
