// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/daemons/cnm"
	"github.com/patchbay-net/patchbay/internal/test/draw"
	"github.com/patchbay-net/patchbay/internal/test/reftest"
)

func TestHasGateway(t *testing.T) {
	const ranges = `"ranges":[[{"subnet":"10.1.0.0/24"}],[{"subnet":"fd01::/64"}]]`
	for text, want := range map[string]string{
		`{"type":"macvlan","ipam":{"type":"static"}}`:                                                         "",
		`{"type":"macvlan"}`:                                                                                  "",
		`{"type":"macvlan","ipam":{"type":"host-local",` + ranges + `}}`:                                      "46",
		`{"type":"macvlan","ipam":{"type":"static","routes":[{"dst":"0.0.0.0/0"}]}}`:                          "4",
		`{"type":"macvlan","ipam":{"type":"static","routes":[{"dst":"10.9.0.0/16"}]}}`:                        "",
		`{"type":"macvlan","ipam":{"type":"static","routes":[{"dst":"fd09::/64","gw":"fd01::9"}]}}`:           "6",
		`{"type":"vlan","ipam":{"type":"static","addresses":[{"address":"fd01::5/64","gateway":"fd01::1"}]}}`: "6",
		`{"type":"bridge","ipam":{"type":"static"}}`:                                                          "",
		`{"type":"bridge","isGateway":true,"ipam":{"type":"static"}}`:                                         "46",
		`{"type":"bridge","isDefaultGateway":true}`:                                                           "46",
		`{"type":"ptp","ipam":{"type":"static"}}`:                                                             "46",
		`{"type":"macvlan","ipam":{"type":"dhcp"}}`:                                                           "46",
		`{"type":"somebodys"}`:                                                                                "46",
		`{"type":"patchbay","plugins":[{"type":"macvlan"},{"type":"tuning"}]}`:                                "",
		`{"type":"macvlan","ipam":7}`:                                                                         "46",
	} {
		list, err := chain.ParseList([]byte(`{"name":"n","cniVersion":"1.1.0","plugins":[` + text + `]}`))
		must(t, err)
		got := ""
		for i, v6 := range []bool{false, true} {
			if hasGateway(list, v6) {
				got += "46"[i : i+1]
			}
		}
		if got != want {
			t.Errorf("%s: %q, want %q", text, got, want)
		}
	}
}

// If the network has no gateway, our IPAM driver returns none either.
func TestGwAllocCheck(t *testing.T) {
	n := newNode(t, `{"cniVersion":"1.1.0","name":"macnet","plugins":[{"type":"macvlan","master":"parent0","capabilities":{"ips":true},"ipam":{"type":"static","routes":[{"dst":"::/0"}]}}]}`)
	n.parent("parent0")
	if c, err := n.c.Capabilities(n.ctx()); err != nil || !c.GwAllocChecker {
		t.Errorf("%+v %v", c, err)
	}
	ask := func(options map[string]string) (*cnm.GwAllocCheckResponse, error) {
		in := &cnm.GwAllocCheckRequest{Options: cnm.Options{}}
		must(t, in.Options.Set(cnm.OptionGeneric, options))
		return n.c.GwAllocCheck(n.ctx(), in)
	}
	of := map[string]string{optNetwork: "macnet"}
	if got, err := ask(of); err != nil || !got.SkipIPv4 || got.SkipIPv6 {
		t.Errorf("%+v %v", got, err)
	}
	if _, err := ask(map[string]string{optNetwork: "nosuch"}); err == nil || !strings.Contains(err.Error(), "nosuch") {
		t.Error(err)
	}
	for v6, want := range map[bool]string{false: "", true: "::/0"} {
		p, err := n.c.RequestPool(n.ctx(), &cnm.RequestPoolRequest{AddressSpace: space, V6: v6, Options: of})
		if err != nil || p.Data[cnm.OptionGateway] != want {
			t.Errorf("%s %v, want gateway %q", asJSON(p), err, want)
		}
		must(t, n.c.ReleasePool(n.ctx(), &cnm.ReleasePoolRequest{PoolID: p.PoolID}))
	}
}

// Docker's own IPAM driver has the subnet. The plugin gets the address, by capability and by
// CNI_ARGS.
func TestAddressesOfDocker(t *testing.T) {
	for name, dir := range map[string]string{"ours": "", "reference": reftest.Plugins(t)} {
		for i, ipam := range []string{`"ipam":{"type":"static"}`, `"capabilities":{"ips":true},"ipam":{"type":"static"}`, `"ipam":{"type":"host-local","subnet":"10.91.0.0/24"}`} {
			if !draw.All(t) && i > 0 && name == "reference" {
				continue
			}
			t.Run(name, func(t *testing.T) {
				n := newNode(t, `{"cniVersion":"1.0.0","name":"podnet","plugins":[{"type":"bridge","bridge":"br-t0",`+ipam+`}]}`)
				n.with(dir)
				want := netip.MustParsePrefix("10.91.0.77/24")
				c := n.mustStart(run{network: n.network("podnet"), iface: cnm.Interface{Address: want}})
				e, err := n.driver.state.Endpoints.Get(c.endpoint)
				if err != nil || len(e.Kernel.Addrs) != 1 || e.Kernel.Addrs[0] != want {
					t.Errorf("%s: %v %v", ipam, e.Kernel.Addrs, err)
				}
				c.stop(true)
			})
		}
	}
}
