// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/test/endpointtest"
	"github.com/patchbay-net/patchbay/internal/test/nettest/node"
	"github.com/patchbay-net/patchbay/spec"
)

// Masquerade belongs to the attachment. A network without masquerade keeps its addresses, even if
// it lies in the range of a network that has it. A wide network does not affect another network's
// traffic to the outside.
func TestMasqueradeOfOthers(t *testing.T) {
	const first, second = `"bridge": "tbr0", "isDefaultGateway": true, `, `"bridge": "tbr1", "isDefaultGateway": true, `
	for _, c := range []struct{ name, wide, narrow string }{
		{"IPv4", "10.9.0.5/8", "10.88.5.5/24"},
		{"IPv6", "fd09::5/16", "fd09:0:5::5/64"},
	} {
		t.Run("plain within masqueraded, "+c.name, func(t *testing.T) {
			w, outside, _ := outsides(t, c.name)
			w.Pod("wide", first+`"ipMasq": true, `+endpointtest.Static(c.wide)).Add()
			p := w.Pod("narrow", second+endpointtest.Static(c.narrow)).Add()
			w.Want("its own address is seen", p.Ask("tcp", outside), "client "+p.IP(0))
		})
		t.Run("masqueraded within plain, "+c.name, func(t *testing.T) {
			w, outside, uplink := outsides(t, c.name)
			w.Pod("wide", first+endpointtest.Static(c.wide)).Add()
			p := w.Pod("narrow", second+`"ipMasq": true, `+endpointtest.Static(c.narrow)).Add()
			w.Want("the host's address is seen", p.Ask("tcp", outside), "client "+uplink)
		})
		t.Run("both masqueraded, "+c.name, func(t *testing.T) {
			w, outside, uplink := outsides(t, c.name)
			wide := w.Pod("wide", first+`"ipMasq": true, `+endpointtest.Static(c.wide)).Add()
			narrow := w.Pod("narrow", second+`"ipMasq": true, `+endpointtest.Static(c.narrow)).Add()
			at := endpointtest.Join(wide.IP(0), "80")
			wide.Serve("tcp", at)
			w.Want("from the narrow one into the wide one", narrow.Ask("tcp", at), "wide "+wide.Gateway(0))
			endpointtest.Must(t, wide.Do(spec.Del))
			w.Want("after the wide one has gone", narrow.Ask("tcp", outside), "client "+uplink)
		})
	}
}

// A subnet may be a part of a wider network, which ipMasqOutside names. Traffic within the wider
// network keeps its addresses. So does traffic to a network that lies in the wider one by chance.
func TestMasqueradeOutside(t *testing.T) {
	for _, c := range []struct{ name, inner, other, plain, key string }{
		{"IPv4", "10.88.5.5/24", "10.9.0.5/24", "10.88.6.5/24", `"ipMasqOutside": ["172.16.0.0/12", "10.88.0.0/16", "10.0.0.0/8"], `},
		{"IPv4, ipMasq", "10.88.5.5/24", "10.9.0.5/24", "10.88.6.5/24", `"ipMasq": true, "ipMasqOutside": ["10.0.0.0/8"], `},
		{"IPv6", "fd09:0:5::5/64", "fd09:1::5/64", "fd09:0:6::5/64", `"ipMasqOutside": ["fd09::/16"], `},
	} {
		t.Run(c.name, func(t *testing.T) {
			w, outside, uplink := outsides(t, c.name[:4])
			p := w.Pod("inner", `"bridge": "tbr0", "isDefaultGateway": true, `+c.key+endpointtest.Static(c.inner)).Add()
			other := w.Pod("other", `"bridge": "tbr1", "isDefaultGateway": true, `+endpointtest.Static(c.other)).Add()
			plain := w.Pod("plain", `"bridge": "tbr2", "isDefaultGateway": true, `+endpointtest.Static(c.plain)).Add()
			at := endpointtest.Join(other.IP(0), "80")
			other.Serve("tcp", at)
			w.Want("to the wider network, its own address is seen", p.Ask("tcp", at), "other "+p.IP(0))
			w.Want("to the outside, the host's is", p.Ask("tcp", outside), "client "+uplink)
			w.Want("a network without, within", plain.Ask("tcp", outside), "client "+plain.IP(0))
			endpointtest.Must(t, p.Do(spec.Check))
			w.LoseRecords()
			endpointtest.Must(t, p.Do(spec.Del))
			w.Want("elements after DEL", strings.Join(elementsOf(t, p.IP(0)), ", "), "")
		})
	}
}

// elementsOf returns the firewall's elements for masquerade of an address.
func elementsOf(t *testing.T, address string) (found []string) {
	fw := nft.Open("")
	defer fw.Close() //nolint:errcheck // a test
	a := netip.MustParseAddr(address)
	for bits := 1; bits <= a.BitLen(); bits++ {
		for _, e := range nft.Masqueraded(netip.PrefixFrom(a, bits), "") {
			if _, there, err := fw.Get(e.Set, e.Key); there && err == nil {
				found = append(found, e.String())
			}
		}
	}
	return found
}

// An address outside of all listed prefixes is masqueraded only with ipMasq. A string that is no
// prefix is refused.
func TestMasqueradeOutsideOthers(t *testing.T) {
	w, outside, _ := outsides(t, "IPv4")
	p := w.Pod("plain", `"bridge": "tbr0", "isDefaultGateway": true, "ipMasqOutside": ["10.89.0.0/16"], `+endpointtest.Static("10.88.5.5/24")).Add()
	w.Want("its own address is seen", p.Ask("tcp", outside), "client "+p.IP(0))
	bad := w.Pod("bad", "")
	head := bad.Conf
	for value, text := range map[string]string{
		`["10.89.0.7/16"]`: `invalid ipMasqOutside "10.89.0.7/16": write 10.89.0.0/16`,
		`["0.0.0.0/0"]`:    `invalid ipMasqOutside "0.0.0.0/0": want the prefix of a network`,
		`[""]`:             `invalid ipMasqOutside`,
		`["ten"]`:          `failed to load netconf: netip.ParsePrefix("ten")`,
	} {
		bad.Conf = head + `"ipMasqOutside": ` + value + `, ` + endpointtest.Static("10.89.5.5/24")
		bad.Refused(text)
	}
}

// outsides makes a world with a server outside the node.
func outsides(t *testing.T, family string) (w *endpointtest.World, outside, uplink string) {
	w = newWorld(t)
	at, uplink := node.Client4, node.Uplink4
	if family == "IPv6" {
		at, uplink = node.Client6, node.Uplink6
	}
	w.Client.Serve("tcp", endpointtest.Join(at, "80"))
	return w, endpointtest.Join(at, "80"), uplink
}
