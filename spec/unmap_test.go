// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package spec_test

import (
	"net/netip"
	"testing"

	"github.com/patchbay-net/patchbay/spec"
)

// IPv4 addresses that are written as IPv6 are read as IPv4, in every version.
func TestMappedAddresses(t *testing.T) {
	for version, result := range map[string]string{
		"1.1.0": `{"cniVersion":"1.1.0","ips":[{"address":"::ffff:10.7.0.5/120","gateway":"::ffff:10.7.0.1"}],"routes":[{"dst":"0.0.0.0/0","gw":"::ffff:10.7.0.9"}]}`,
		"0.4.0": `{"cniVersion":"0.4.0","ips":[{"version":"4","address":"::ffff:10.7.0.5/120","gateway":"::ffff:10.7.0.1"}],"routes":[{"dst":"0.0.0.0/0","gw":"::ffff:10.7.0.9"}]}`,
		"0.2.0": `{"cniVersion":"0.2.0","ip4":{"ip":"::ffff:10.7.0.5/120","gateway":"::ffff:10.7.0.1","routes":[{"dst":"0.0.0.0/0","gw":"::ffff:10.7.0.9"}]}}`,
	} {
		r, err := spec.ParseResult([]byte(result), version)
		if err != nil {
			t.Errorf("%s: %v", version, err)
			continue
		}
		if ip := r.IPs[0]; ip.Address.String() != "10.7.0.5/24" || ip.Gateway.String() != "10.7.0.1" || r.Routes[0].GW.String() != "10.7.0.9" {
			t.Errorf("%s: %+v", version, r)
		}
	}
}

func TestUnmapPrefix(t *testing.T) {
	for in, want := range map[string]string{
		"::ffff:10.7.0.5/120": "10.7.0.5/24", "::ffff:10.7.0.5/96": "10.7.0.5/0", "::ffff:10.7.0.5/95": "::ffff:10.7.0.5/95",
		"10.7.0.5/24": "10.7.0.5/24", "fd00::5/64": "fd00::5/64",
	} {
		if got := spec.UnmapPrefix(netip.MustParsePrefix(in)); got.String() != want {
			t.Errorf("%s: %s, want %s", in, got, want)
		}
	}
}

func TestOnLink(t *testing.T) {
	link, host, site := 253, 254, 200
	for _, c := range []struct {
		gw    string
		scope *int
		want  bool
	}{
		{"", nil, false}, {"", &link, true}, {"", &host, true}, {"", &site, false},
		{"0.0.0.0", nil, true}, {"::", nil, true}, {"10.0.0.1", nil, false}, {"fd00::1", &link, false},
	} {
		r := spec.Route{Scope: c.scope}
		if c.gw != "" {
			r.GW = netip.MustParseAddr(c.gw)
		}
		if r.OnLink() != c.want {
			t.Errorf("%+v: %t", c, r.OnLink())
		}
	}
}
