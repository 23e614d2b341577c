// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"net/netip"
	"testing"
)

// A set's name says what its elements have in common.
func TestSetNamed(t *testing.T) {
	for set := Pods; set <= CIDR; set++ {
		for _, want := range []Element{{Set: set}, {Set: set, IPv6: true, Size: 24}, {Set: set, NodePort: true, Size: 65536}} {
			if set == Allowed && want.Size == 0 {
				continue // a range of all addresses restricts nothing
			}
			if got, ok := SetNamed(want.Name()); !ok || got != want {
				t.Errorf("%s: %+v, %v", want.Name(), got, ok)
			}
		}
	}
	for _, name := range []string{"", "4", "one", "one5", "many4_x", "many4_08", "affinity4", "revision"} {
		if got, ok := SetNamed(name); ok {
			t.Errorf("%q: %+v", name, got)
		}
	}
}

// A client goes on to the endpoint that it remembers while it may.
func TestRemembers(t *testing.T) {
	s := world(t, "10.244.1.1@n1, 10.244.2.1@n2")
	s.web().Affinity = 10
	p := Compile(s, nil)
	memory := func(to string) Packet {
		return Packet{From: netip.MustParseAddr(outside), To: netip.MustParseAddrPort(webLB + ":80"), Protocol: 6, Remembered: netip.MustParseAddrPort(to)}
	}
	if !p.Remembers(memory("10.244.2.1:8080")) || p.Remembers(memory("10.244.3.1:8080")) {
		t.Error("does not remember the endpoints that it has, and no others")
	}
	externalLocal(s)
	p.Update(s, s.web().Name)
	if p.Remembers(memory("10.244.2.1:8080")) {
		t.Error("remembers an endpoint that those outside do not see any more")
	}
	s.web().Affinity = 0
	p.Update(s, s.web().Name)
	if p.Remembers(memory("10.244.1.1:8080")) {
		t.Error("remembers without affinity")
	}
}
