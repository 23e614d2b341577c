// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/daemons/cnm"
	"github.com/patchbay-net/patchbay/daemons/docker/state"
)

// ipamNet is a network with our IPAM driver, as Docker keeps it.
type ipamNet struct {
	n        *node
	id, name string
	pools    [2]*cnm.RequestPoolResponse // for IPv4 and for IPv6
}

func (n *node) ipamNetwork(name string) *ipamNet {
	n.Helper()
	x := &ipamNet{n: n, name: name}
	in := &cnm.CreateNetworkRequest{NetworkID: n.id(), Options: cnm.Options{}}
	for i, v6 := range []bool{false, true} {
		var err error
		x.pools[i], err = n.c.RequestPool(n.ctx(), &cnm.RequestPoolRequest{AddressSpace: space, V6: v6, Options: map[string]string{"cni.network": name}})
		must(n, err)
	}
	in.IPv4Data = []cnm.IPAMData{{AddressSpace: space, Pool: x.pools[0].Pool, Gateway: netip.MustParsePrefix(x.pools[0].Data[cnm.OptionGateway])}}
	in.IPv6Data = []cnm.IPAMData{{AddressSpace: space, Pool: x.pools[1].Pool, Gateway: netip.MustParsePrefix(x.pools[1].Data[cnm.OptionGateway])}}
	must(n, in.Options.Set(cnm.OptionGeneric, map[string]string{"cni.network": name}))
	must(n, n.c.CreateNetwork(n.ctx(), in))
	x.id = in.NetworkID
	n.Cleanup(func() {
		n.check(n.c.DeleteNetwork(n.ctx(), &cnm.NetworkRequest{NetworkID: x.id}))
		for _, p := range x.pools {
			n.check(n.c.ReleasePool(n.ctx(), &cnm.ReleasePoolRequest{PoolID: p.PoolID}))
		}
	})
	return x
}

// address requests an address of one family.
func (x *ipamNet) address(i int, mac, wanted string) (netip.Prefix, error) {
	in := &cnm.RequestAddressRequest{PoolID: x.pools[i].PoolID, Options: map[string]string{cnm.OptionMAC: mac}}
	if wanted != "" {
		in.Address = netip.MustParseAddr(wanted)
	}
	out, err := x.n.c.RequestAddress(x.n.ctx(), in)
	if err != nil {
		return netip.Prefix{}, err
	}
	return out.Address, nil
}

func (x *ipamNet) release(i int, a netip.Prefix) {
	x.n.check(x.n.c.ReleaseAddress(x.n.ctx(), &cnm.ReleaseAddressRequest{PoolID: x.pools[i].PoolID, Address: a.Addr()}))
}

func TestIPAM(t *testing.T) {
	for name, conf := range map[string]string{"podnet": bridgeNet, "ptpnet": ptpNet} {
		t.Run(name, func(t *testing.T) { ipamLife(t, name, conf) })
	}
}

func ipamLife(t *testing.T, name, conf string) {
	n := newNode(t, conf)
	x := n.ipamNetwork(name)
	if x.pools[0].Pool.String() != "10.91.0.0/24" || x.pools[1].Data[cnm.OptionGateway] != "fd91::1/64" {
		t.Errorf("pools %s", asJSON(x.pools))
	}
	var list []*container
	for i, wanted := range [][2]string{{"", ""}, {"10.91.0.77", ""}, {"10.91.0.78", "fd91::78"}} {
		mac := "02:42:00:00:00:0" + string(rune('1'+i))
		v4, err := x.address(0, mac, wanted[0])
		must(t, err)
		v6, err := x.address(1, mac, wanted[1])
		must(t, err)
		if wanted[0] != "" && v4.Addr().String() != wanted[0] || wanted[1] != "" && v6.Addr().String() != wanted[1] {
			t.Errorf("wanted %v, got %s %s", wanted, v4, v6)
		}
		list = append(list, n.mustStart(run{network: x.id, iface: cnm.Interface{Address: v4, AddressIPv6: v6, MacAddress: mac}}))
	}
	if files := addressFiles(t); len(files) != 6 {
		t.Errorf("addresses: %v", files)
	}
	for _, to := range []netip.Prefix{list[2].iface.Address, list[2].iface.AddressIPv6} {
		if err := list[0].reaches(list[2], to.Addr()); err != nil {
			t.Errorf("%s: %v", to, err)
		}
	}
	n.sweep(0)
	for _, c := range list {
		c.stop(true)
		x.release(0, c.iface.Address)
		x.release(1, c.iface.AddressIPv6)
	}
}

// Docker requested an address and was killed. Nothing else shows the address.
func TestSweepLease(t *testing.T) {
	n := newNode(t, bridgeNet)
	x := n.ipamNetwork("podnet")
	a := n.asking(x.id)
	a.bare("podnet")
	_, err := x.address(0, "02:42:00:00:00:01", "")
	must(t, err)
	n.collect(false, unusedLease)
	if files := addressFiles(t); len(files) > 0 {
		t.Errorf("addresses: %v", files)
	}
	_, err = x.address(0, "02:42:00:00:00:02", "")
	must(t, err)
	must(t, n.driver.state.Leases.Save(&state.Allocation{ID: leaseID("podnet", "02:42:00:00:00:03"), Network: "podnet", Config: []byte(bridgeNet)}))
	n.stop()
	n.boot()
	out := n.collect(false, kindAddresses+": no endpoint uses them", unusedLease)
	if a, b := out.Items[0].Name, out.Items[1].Name; a != "asked of podnet" && b != "asked of podnet" || strings.Contains(a+b, "[") {
		t.Errorf("they are called %q and %q", a, b)
	}
}

// The driver was killed during a request. dockerd repeats the request to the next driver.
func TestAskAgain(t *testing.T) {
	n := newNode(t, bridgeNet)
	x := n.ipamNetwork("podnet")
	const mac = "02:42:00:00:00:01"
	_, err := x.address(0, mac, "")
	must(t, err)
	l, err := n.driver.state.Leases.Get(leaseID("podnet", mac))
	must(t, err)
	l.Result, l.Given = nil, nil // as the file was before the call of the plugin
	must(t, n.driver.state.Leases.Save(l))
	n.stop()
	n.boot()
	v4, err := x.address(0, mac, "")
	must(t, err)
	x.release(0, v4)
}

// away is an IPAM plugin whose server fails after it has reserved an address. When the file is
// gone, the server works again.
const away = `#!/bin/sh
case $CNI_COMMAND in
ADD) touch %[1]s/reserved %[1]s/down; echo '{"cniVersion":"1.1.0","code":11,"msg":"no answer"}'; exit 1;;
DEL) [ -e %[1]s/down ] && { echo '{"cniVersion":"1.1.0","code":11,"msg":"no answer"}'; exit 1; }; rm -f %[1]s/reserved;;
VERSION) echo '{"cniVersion":"1.1.0","supportedVersions":["1.1.0"]}';;
esac
exit 0
`

// A reserved address cannot be released at once. It is not forgotten.
func TestLeaseOfAServerThatIsAway(t *testing.T) {
	n := newNode(t, `{"cniVersion":"1.1.0","name":"away","plugins":[{"type":"bridge","bridge":"br-t9","ipam":{"type":"away"}}]}`)
	n.stop()
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "away"), fmt.Appendf(nil, away, dir), 0o755))
	n.opts.Plugins = append(n.opts.Plugins, dir)
	n.boot()
	p, err := n.c.RequestPool(n.ctx(), &cnm.RequestPoolRequest{AddressSpace: space, Options: map[string]string{"cni.network": "away"}})
	must(t, err)
	_, err = n.c.RequestAddress(n.ctx(), &cnm.RequestAddressRequest{PoolID: p.PoolID, Options: map[string]string{cnm.OptionMAC: "02:42:00:00:00:01"}})
	if err == nil || !strings.Contains(err.Error(), "no answer") {
		t.Errorf("the server is away: %v", err)
	}
	must(t, os.Remove(filepath.Join(dir, "down")))
	n.sweep(0)
	if _, err := os.Stat(filepath.Join(dir, "reserved")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the address is still reserved: %v", err)
	}
	if all, err := n.driver.state.Leases.List(); err != nil || len(all) > 0 {
		t.Errorf("leases: %v %v", asJSON(all), err)
	}
	must(t, n.c.ReleasePool(n.ctx(), &cnm.ReleasePoolRequest{PoolID: p.PoolID}))
}

// A container with --mac-address starts again after dockerd was killed. Its old endpoint must not
// release the address.
func TestLeaseOfTheNext(t *testing.T) {
	n := newNode(t, bridgeNet)
	x := n.ipamNetwork("podnet")
	const mac = "02:42:00:00:00:01"
	start := func() *container {
		v4, err := x.address(0, mac, "")
		must(t, err)
		return n.mustStart(run{network: x.id, iface: cnm.Interface{Address: v4, MacAddress: mac}})
	}
	before := start()
	before.die()
	after := start() // removes the old one
	n.sweep(0)
	if l, err := n.driver.state.Leases.Get(leaseID("podnet", mac)); err != nil || l.Endpoint != after.endpoint || len(addressFiles(t)) != 2 {
		t.Errorf("lease %s %v, addresses %v", asJSON(l), err, addressFiles(t))
	}
	after.stop(true)
	x.release(0, after.iface.Address)
}

// Docker before 28 repeats its request until it gets a pool that overlaps no route of the
// host.
func TestPoolLoopEnds(t *testing.T) {
	n := newNode(t, bridgeNet)
	in := &cnm.RequestPoolRequest{AddressSpace: space, Options: map[string]string{"cni.network": "podnet"}}
	var pools []string
	for range maxRepeats {
		p, err := n.c.RequestPool(n.ctx(), in)
		must(t, err)
		pools = append(pools, p.PoolID)
	}
	if _, err := n.c.RequestPool(n.ctx(), in); err == nil || !strings.Contains(err.Error(), "use --subnet") {
		t.Error(err)
	}
	subnet := *in
	subnet.Pool = "10.91.0.0/24"
	p, err := n.c.RequestPool(n.ctx(), &subnet)
	must(t, err)
	for _, id := range append(pools, p.PoolID) {
		must(t, n.c.ReleasePool(n.ctx(), &cnm.ReleasePoolRequest{PoolID: id}))
	}
	p, err = n.c.RequestPool(n.ctx(), in)
	must(t, err)
	must(t, n.c.ReleasePool(n.ctx(), &cnm.ReleasePoolRequest{PoolID: p.PoolID}))
}

func TestIPAMRefusals(t *testing.T) {
	dhcp := `{"cniVersion":"1.1.0","name":"dhcpnet","plugins":[{"type":"bridge","bridge":"br-t6","ipam":{"type":"dhcp"}}]}`
	bare := `{"cniVersion":"1.1.0","name":"bare","plugins":[{"type":"bridge","bridge":"br-t7"}]}`
	v4only := `{"cniVersion":"1.1.0","name":"v4only","plugins":[{"type":"bridge","bridge":"br-t8","ipam":{"type":"host-local","subnet":"10.98.0.0/30","gateway":"10.98.0.2"}}]}`
	n := newNode(t, bridgeNet, dhcp, bare, v4only)
	of := func(name string) map[string]string { return map[string]string{"cni.network": name} }
	for _, c := range []struct {
		in   cnm.RequestPoolRequest
		want string
	}{
		{cnm.RequestPoolRequest{}, "name the CNI network"},
		{cnm.RequestPoolRequest{Options: of("nosuch")}, "nosuch"},
		{cnm.RequestPoolRequest{Options: of("dhcpnet")}, "use --ipam-driver null"},
		{cnm.RequestPoolRequest{Options: of("bare")}, "no ipam section"},
		{cnm.RequestPoolRequest{Options: of("v4only"), V6: true}, "no range of the IPv6 family"},
		{cnm.RequestPoolRequest{Options: of("podnet"), Pool: "10.0.0.0/8"}, "the configuration has 10.91.0.0/24"},
		{cnm.RequestPoolRequest{Options: of("podnet"), SubPool: "10.91.0.0/25"}, "--ip-range"},
	} {
		c.in.AddressSpace = space
		if _, err := n.c.RequestPool(n.ctx(), &c.in); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", asJSON(c.in), err)
		}
	}
	x := n.ipamNetwork("podnet")
	gateway := map[string]string{cnm.OptionAddressType: cnm.OptionGateway}
	out, err := n.c.RequestAddress(n.ctx(), &cnm.RequestAddressRequest{PoolID: x.pools[0].PoolID, Options: gateway})
	if err != nil || out.Address.String() != "10.91.0.1/24" {
		t.Errorf("gateway: %v %v", out, err)
	}
	for _, in := range []cnm.RequestAddressRequest{
		{PoolID: x.pools[0].PoolID, Address: netip.MustParseAddr("10.91.0.9"), Options: gateway},
		{PoolID: x.pools[0].PoolID, Address: netip.MustParseAddr("10.91.0.9")},
		{PoolID: "nosuch", Options: map[string]string{cnm.OptionMAC: "02:42:00:00:00:01"}},
	} {
		if _, err := n.c.RequestAddress(n.ctx(), &in); err == nil {
			t.Errorf("%s was given", asJSON(in))
		}
	}
	if _, err := x.address(0, "02:42:00:00:00:01", "10.1.1.1"); err == nil {
		t.Error("an address out of the range was given")
	}
}
