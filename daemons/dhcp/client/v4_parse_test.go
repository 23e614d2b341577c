// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/iana"
)

// ack makes a DHCPACK for 10.0.0.7 with options by their numbers.
func ack(t testing.TB, options map[uint8]string) *dhcpv4.DHCPv4 {
	t.Helper()
	m, err := dhcpv4.New(dhcpv4.WithMessageType(dhcpv4.MessageTypeAck), dhcpv4.WithYourIP(net.IPv4(10, 0, 0, 7)))
	if err != nil {
		t.Fatal(err)
	}
	for code, value := range options {
		m.UpdateOption(dhcpv4.OptGeneric(dhcpv4.GenericOptionCode(code), []byte(value)))
	}
	return m
}

const mask24, router, other = "\xff\xff\xff\x00", "\x0a\x00\x00\x01", "\x0a\x00\x00\x02"

func TestParse(t *testing.T) {
	for _, tc := range []struct {
		about   string
		options map[uint8]string
		want    string
	}{
		{"the least", map[uint8]string{1: mask24}, "10.0.0.7/24 []"},
		{"two routers", map[uint8]string{1: mask24, 3: router + other}, "10.0.0.7/24 [0.0.0.0/0 via 10.0.0.1]"},
		{"classful", map[uint8]string{1: mask24, 3: router, 33: "\xc0\xa8\x05\x00" + other + "\x09\x00\x00\x00" + other},
			"10.0.0.7/24 [192.168.5.0/24 via 10.0.0.2 9.0.0.0/8 via 10.0.0.2 0.0.0.0/0 via 10.0.0.1]"},
		{"classless alone count", map[uint8]string{1: mask24, 3: router, 33: "\xc0\xa8\x05\x00" + other, 121: "\x10\x09\x09" + other},
			"10.0.0.7/24 [9.9.0.0/16 via 10.0.0.2]"},
		{"router 0.0.0.0", map[uint8]string{1: mask24, 3: "\x00\x00\x00\x00"}, "10.0.0.7/24 []"},
		{"a router after 0.0.0.0", map[uint8]string{1: mask24, 3: "\x00\x00\x00\x00" + router}, "10.0.0.7/24 [0.0.0.0/0 via 10.0.0.1]"},
		{"loopback, groups and this network", map[uint8]string{1: mask24, 121: "\x08\x7f" + other + "\x04\xe0" + other + "\x20\x00\x00\x00\x05" + other + "\x10\x09\x09" + other},
			"10.0.0.7/24 [9.9.0.0/16 via 10.0.0.2]"},
		{"only loopback, so no default route", map[uint8]string{1: mask24, 3: router, 121: "\x08\x7f" + other}, "10.0.0.7/24 []"},
		{"the halves of all addresses", map[uint8]string{1: mask24, 121: "\x01\x00" + other + "\x01\x80" + other + "\x00" + router},
			"10.0.0.7/24 [0.0.0.0/1 via 10.0.0.2 128.0.0.0/1 via 10.0.0.2 0.0.0.0/0 via 10.0.0.1]"},
		{"classful loopback", map[uint8]string{1: mask24, 33: "\x7f\x00\x00\x00" + other + "\xe0\x00\x00\x00" + other}, "10.0.0.7/24 []"},
		{"on the link", map[uint8]string{1: mask24, 121: "\x20\xa9\xfe\xa9\xfe\x00\x00\x00\x00"}, "10.0.0.7/24 [169.254.169.254/32 via 0.0.0.0]"},
		{"no mask", map[uint8]string{3: router}, "error: DHCP option Subnet Mask not found in DHCPACK"},
		{"no time at all", map[uint8]string{1: mask24, 51: "\x00\x00\x00\x00"}, "error: lease of 0s in DHCPACK"},
	} {
		g, err := parseV4(ack(t, tc.options))
		got := ""
		if err != nil {
			got = "error: " + err.Error()
		} else {
			routes := []string{}
			for _, r := range g.Routes {
				routes = append(routes, fmt.Sprintf("%s via %s", r.Dst, r.GW))
			}
			got = fmt.Sprint(g.Address, " ", routes)
		}
		if got != tc.want {
			t.Errorf("%s: %s, want %s", tc.about, got, tc.want)
		}
	}
}

// An offer and an ACK count only with the server's identifier (option 54), a refusal also without it.
func TestIdentifier(t *testing.T) {
	for _, tc := range []struct {
		kind          dhcpv4.MessageType
		server        string
		offer, answer bool
	}{
		{dhcpv4.MessageTypeOffer, router, true, false},
		{dhcpv4.MessageTypeOffer, "", false, false},
		{dhcpv4.MessageTypeOffer, "\x00\x00\x00\x00", false, false},
		{dhcpv4.MessageTypeAck, router, false, true},
		{dhcpv4.MessageTypeAck, "", false, false},
		{dhcpv4.MessageTypeAck, "\x0a\x00", false, false},
		{dhcpv4.MessageTypeNak, "", false, true},
	} {
		options := map[uint8]string{}
		if tc.server != "" {
			options[54] = tc.server
		}
		m := ack(t, options)
		m.UpdateOption(dhcpv4.OptMessageType(tc.kind))
		if offer, answer := offers(m), answers(m); offer != tc.offer || answer != tc.answer {
			t.Errorf("%s from %q: offer %v, answer %v", tc.kind, tc.server, offer, answer)
		}
	}
}

func TestTimes(t *testing.T) {
	seconds := func(n byte) string { return string([]byte{0, 0, 0, n}) }
	for _, tc := range []struct {
		about   string
		options map[uint8]string
		want    [3]time.Duration // T1, T2, valid
	}{
		{"the reference's defaults", nil, [3]time.Duration{1800, 3060, 3600}},
		{"the server's", map[uint8]string{51: seconds(100), 58: seconds(10), 59: seconds(20)}, [3]time.Duration{10, 20, 100}},
		{"T2 beyond the end", map[uint8]string{51: seconds(100), 59: seconds(200)}, [3]time.Duration{50, 85, 100}},
		{"T1 beyond T2", map[uint8]string{51: seconds(100), 58: seconds(90), 59: seconds(20)}, [3]time.Duration{20, 20, 100}},
	} {
		g, err := parseV4(ack(t, map[uint8]string{1: mask24}))
		if tc.options != nil {
			tc.options[1] = mask24
			g, err = parseV4(ack(t, tc.options))
		}
		if err != nil || g.T1 != tc.want[0]*time.Second || g.T2 != tc.want[1]*time.Second || g.Valid != tc.want[2]*time.Second {
			t.Errorf("%s: %v %v %v, %v; want %v", tc.about, g.T1, g.T2, g.Valid, err, tc.want)
		}
	}
}

// If a server sends no options in a renewal, the earlier options stay.
func TestComplete(t *testing.T) {
	before := ack(t, map[uint8]string{1: mask24, 3: router, 15: "lan"})
	bare, full := ack(t, map[uint8]string{51: "\x00\x00\x00\x09"}), ack(t, map[uint8]string{1: mask24})
	complete(bare, before)
	complete(full, before)
	if g, err := parseV4(bare); err != nil || !g.Gateway.IsValid() || g.DNS.Domain != "lan" || g.Valid != 9*time.Second {
		t.Errorf("%+v, %v", g, err)
	}
	if g, err := parseV4(full); err != nil || g.Gateway.IsValid() {
		t.Errorf("%+v, %v", g, err)
	}
}

func TestID(t *testing.T) {
	if id := ID("c", "n", "eth0"); id != "c/n/eth0" {
		t.Error(id)
	}
	if id := ID(strings.Repeat("c", 300), "n", "eth0"); len(id) != 254 {
		t.Error(len(id))
	}
}

// FuzzParse parses any message of a server. The outcome is a grant or an error.
func FuzzParse(f *testing.F) {
	f.Add(ack(f, map[uint8]string{1: mask24, 3: router, 33: "\xc0\xa8\x05\x00" + other, 121: "\x10\x09\x09" + other, 119: "\x01a\x00"}).ToBytes())
	c := &V4{}
	f.Fuzz(func(t *testing.T, raw []byte) {
		g, err := c.Parse(raw)
		if err == nil && (!g.Address.IsValid() || g.T1 > g.T2 || g.T2 > g.Valid) {
			t.Errorf("%+v", g)
		}
	})
}

// A device on the link answers with text that would forge lines of the log.
func TestServersTextIsQuoted(t *testing.T) {
	evil := "no\n2026-01-01 patchbayd: all is well\x1b[2J" + strings.Repeat("x", 200)
	nak, err := dhcpv4.New(dhcpv4.WithMessageType(dhcpv4.MessageTypeNak), dhcpv4.WithOption(dhcpv4.OptMessage(evil)))
	if err != nil {
		t.Fatal(err)
	}
	_, v4 := new(V4).grant(nak)
	v6 := failed(&dhcpv6.OptStatusCode{StatusCode: iana.StatusNoAddrsAvail, StatusMessage: evil})
	for _, err := range []error{v4, v6} {
		if err == nil || strings.ContainsAny(err.Error(), "\n\x1b") || len(err.Error()) > 150 || !strings.Contains(err.Error(), `no\n2026`) {
			t.Errorf("%v", err)
		}
	}
}
