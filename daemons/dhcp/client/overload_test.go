// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"bytes"
	"strings"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

// message is a DHCPACK for 10.0.0.7 with options in three fields.
func message(options, file, sname string) []byte {
	m := make([]byte, optionsAt)
	m[0], m[1], m[2] = 2, 1, 6
	copy(m[16:], "\x0a\x00\x00\x07")
	copy(m[snameAt:fileAt], sname)
	copy(m[fileAt:cookieAt], file)
	copy(m[cookieAt:], "\x63\x82\x53\x63")
	return append(m, "\x35\x01\x05"+options...)
}

// Options in the fields file and sname count if option 52 says so.
func TestOverload(t *testing.T) {
	const mask, gateway, time = "\x01\x04" + mask24, "\x03\x04" + router, "\x33\x04\x00\x00\x0e\x10"
	for _, tc := range []struct{ about, options, file, sname, want string }{
		{"none", mask + gateway + "\xff", "boot", "server", "10.0.0.7/24 10.0.0.1 boot server"},
		{"file", "\x34\x01\x01\xff", mask + "\x00\x00" + gateway + "\xff", "server", "10.0.0.7/24 10.0.0.1  server"},
		{"sname", "\x34\x01\x02\xff", "boot", mask + gateway + "\xff", "10.0.0.7/24 10.0.0.1 boot "},
		{"both", "\x34\x01\x03\xff", mask + "\xff", gateway + time + "\xff", "10.0.0.7/24 10.0.0.1  "},
		{"one option in two fields", "\x34\x01\x03" + "\x03\x02\x0a\x00" + "\xff", mask + "\xff", "\x03\x02\x00\x01" + "\xff", "10.0.0.7/24 10.0.0.1  "},
		{"no end in the field", "\x34\x01\x01\xff", mask + gateway, "", "10.0.0.7/24 10.0.0.1  "},
		{"an option cut short", "\x34\x01\x02" + mask + gateway + "\xff", "", "\x06\xf0", "10.0.0.7/24 10.0.0.1  "},
		{"not announced", mask + "\xff", gateway + "\xff", "", "10.0.0.7/24 invalid IP \x03\x04\x0a "},
	} {
		m, err := dhcpv4.FromBytes(unfold(message(tc.options, tc.file, tc.sname), 1500))
		if err != nil {
			t.Errorf("%s: %v", tc.about, err)
			continue
		}
		g, err := parseV4(m)
		if err != nil {
			t.Errorf("%s: %v", tc.about, err)
			continue
		}
		if got := strings.Join([]string{g.Address.String(), g.Gateway.String(), m.BootFileName, m.ServerHostName}, " "); got != tc.want {
			t.Errorf("%s: %q, want %q", tc.about, got, tc.want)
		}
	}
}

// No message grows beyond the reader's buffer, whatever its bytes. A message without option 52 does not change.
func FuzzUnfold(f *testing.F) {
	f.Add(message("\x34\x01\x03\xff", "\x01\x04"+mask24, "\x03"))
	f.Fuzz(func(t *testing.T, m []byte) {
		before := bytes.Clone(m)
		out := unfold(m, max(len(m), 300))
		if len(out) > max(len(m), 300) {
			t.Errorf("%d bytes of %d", len(out), len(m))
		}
		if !bytes.Equal(m, before) {
			t.Error("the message was changed")
		}
	})
}
