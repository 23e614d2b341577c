// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/daemons/cnm"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/netns"
)

// dockerd makes the calls of `docker run` and `docker stop` in their order. It changes the
// interface as libnetwork does.
type dockerd struct {
	*testing.T
	c   *cnm.Client
	old bool // as before Docker 28, make the sandbox after Join
	n   int
}

// container is one endpoint as `docker inspect` shows it.
type container struct {
	d                 *dockerd
	endpoint, network string
	key               string // SandboxKey
	iface             cnm.Interface
	join              *cnm.JoinResponse
	name              string // name of the interface
	src               string
}

// run holds the arguments of a start.
type run struct {
	network string
	iface   cnm.Interface
	ports   []cnm.PortBinding
	options map[string]any
	notGW   bool // another network has the default gateway
	key     string
}

func (d *dockerd) id() string {
	d.n++
	return fmt.Sprintf("%x", sha256.Sum256([]byte(fmt.Sprint(d.Name(), d.n))))
}

func (d *dockerd) createNetwork(options map[string]string, more map[string]any) (string, error) {
	in := &cnm.CreateNetworkRequest{
		NetworkID: d.id(), Options: cnm.Options{},
		IPv4Data: []cnm.IPAMData{{AddressSpace: "null", Pool: netip.MustParsePrefix("0.0.0.0/0")}},
	}
	must(d, in.Options.Set(cnm.OptionGeneric, options))
	for k, v := range more {
		must(d, in.Options.Set(k, v))
	}
	return in.NetworkID, d.c.CreateNetwork(d.Context(), in)
}

func (d *dockerd) network(name string) string {
	id, err := d.createNetwork(map[string]string{"cni.network": name}, nil)
	must(d, err)
	d.Cleanup(func() { d.check(d.c.DeleteNetwork(d.ctx(), &cnm.NetworkRequest{NetworkID: id})) })
	return id
}

func (d *dockerd) check(err error) {
	d.Helper()
	if err != nil {
		d.Error(err)
	}
}

// begin creates the container's endpoint.
func (d *dockerd) begin(r run) (*container, error) {
	c := &container{d: d, endpoint: d.id(), network: r.network, iface: r.iface, key: r.key}
	if c.key == "" {
		c.key = "/var/run/docker/netns/" + c.endpoint[52:]
	}
	in := &cnm.CreateEndpointRequest{NetworkID: r.network, EndpointID: c.endpoint, Interface: &r.iface, Options: cnm.Options{}}
	must(d, in.Options.Set(cnm.OptionPortMap, r.ports))
	for k, v := range r.options {
		must(d, in.Options.Set(k, v))
	}
	out, err := d.c.CreateEndpoint(d.ctx(), in)
	if err != nil {
		return nil, err
	}
	got := out.Interface
	c.iface.Address = either(d, c.iface.Address, got.Address)
	c.iface.AddressIPv6 = either(d, c.iface.AddressIPv6, got.AddressIPv6)
	c.iface.MacAddress = either(d, c.iface.MacAddress, got.MacAddress)
	return c, nil
}

// either returns the driver's answer. It refuses an answer that changes a given value, as Docker
// does.
func either[T comparable](d *dockerd, given, answered T) T {
	d.Helper()
	var zero T
	if given != zero && answered != zero {
		d.Errorf("driver modified %v to %v", given, answered)
	}
	if given == zero {
		return answered
	}
	return given
}

// start does what `docker run` does.
func (d *dockerd) start(r run) (*container, error) {
	if !d.old && r.key == "" {
		r.key = d.sandbox()
	}
	c, err := d.begin(r)
	if err != nil {
		return nil, err
	}
	if err := c.joins(r); err != nil {
		d.check(c.leave())
		d.check(c.leave())
		return nil, errors.Join(err, c.delete())
	}
	return c, nil
}

func (c *container) joins(r run) (err error) {
	d := c.d
	options := cnm.Options{}
	must(d, options.Set(cnm.OptionPortMap, r.ports))
	in := &cnm.JoinRequest{NetworkID: c.network, EndpointID: c.endpoint, SandboxKey: c.key, Options: options}
	if c.join, err = d.c.Join(d.ctx(), in); err != nil {
		return err
	}
	c.src = c.join.InterfaceName.SrcName
	if !d.old {
		c.place(!r.notGW)
	}
	if c.join.Gateway.IsValid() && !r.notGW {
		err := d.c.ProgramExternalConnectivity(d.ctx(), &cnm.ConnectivityRequest{NetworkID: c.network, EndpointID: c.endpoint, Options: options})
		if err != nil {
			return err
		}
	}
	for range 2 {
		if _, err := d.c.EndpointOperInfo(d.ctx(), c.request()); err != nil {
			d.Logf("EndpointOperInfo: %v", err) // Docker ignores the error
		}
	}
	if d.old {
		must(d, netns.Create(c.key))
		d.Cleanup(func() { must(d, netns.Delete(c.key)) })
		c.place(!r.notGW)
	}
	return nil
}

func (c *container) request() *cnm.EndpointRequest {
	return &cnm.EndpointRequest{NetworkID: c.network, EndpointID: c.endpoint}
}

// sandbox makes a container's namespace, as the current Docker does.
func (d *dockerd) sandbox() string {
	key := "/var/run/docker/netns/" + d.id()[52:]
	must(d, netns.Create(key))
	d.Cleanup(func() { must(d, netns.Delete(key)) })
	return key
}

// place does what libnetwork's osl.Namespace.AddInterface and the steps after it do.
func (c *container) place(gateway bool) {
	d := c.d
	host, in := conn(d, ""), conn(d, c.key)
	link, err := host.LinkByName(c.src)
	must(d, err)
	must(d, host.LinkSetDown(link))
	must(d, host.LinkSetNsFd(link, in.NS.Fd()))
	link, err = in.LinkByName(c.src)
	must(d, err)
	c.name = c.freeName(in)
	must(d, in.LinkSetName(link, c.name))
	if link.Attrs().HardwareAddr.String() != c.iface.MacAddress {
		d.Errorf("the interface has %s, the driver's answer was %s", link.Attrs().HardwareAddr, c.iface.MacAddress)
	}
	must(d, in.SetSysctl("net/ipv6/conf/"+c.name+"/disable_ipv6", map[bool]string{true: "0", false: "1"}[c.iface.AddressIPv6.IsValid()]))
	for _, a := range []netip.Prefix{c.iface.Address, c.iface.AddressIPv6} {
		if a.IsValid() {
			must(d, addAddr(in, link, a))
		}
	}
	must(d, in.LinkSetUp(link))
	c.routes(in, link.Attrs().Index)
	if gateway {
		c.gateways(in, link.Attrs().Index)
	}
}

func (c *container) freeName(in *nl.Conn) string {
	if c.join.InterfaceName.DstName != "" {
		return c.join.InterfaceName.DstName
	}
	for i := 0; ; i++ {
		name := fmt.Sprintf("%s%d", c.join.InterfaceName.DstPrefix, i)
		if _, err := in.LinkByName(name); err != nil {
			return name
		}
	}
}

func (c *container) routes(in *nl.Conn, index int) {
	d, j := c.d, c.join
	for _, kind := range []int{cnm.Connected, cnm.NextHop} {
		for _, r := range j.StaticRoutes {
			route := &netlink.Route{LinkIndex: index, Dst: nl.IPNet(r.Destination)}
			if r.RouteType != kind {
				continue
			}
			if kind == cnm.Connected {
				route.Scope = unix.RT_SCOPE_LINK
			} else {
				route.Gw = r.NextHop.AsSlice()
			}
			if err := in.RouteAdd(route); err != nil {
				d.Errorf("static route %v: %v", r, err)
			}
		}
	}
}

func (c *container) gateways(in *nl.Conn, index int) {
	d, j := c.d, c.join
	for _, gw := range []netip.Addr{j.Gateway, j.GatewayIPv6} {
		if !gw.IsValid() {
			continue
		}
		if err := in.RouteAdd(&netlink.Route{LinkIndex: index, Gw: gw.AsSlice()}); err != nil {
			d.Errorf("set gateway %s: %v", gw, err)
		}
	}
}

func (c *container) leave() error { return c.d.c.Leave(c.d.ctx(), c.request()) }

func (c *container) delete() error { return c.d.c.DeleteEndpoint(c.d.ctx(), c.request()) }

// unplace takes the interface back as libnetwork does. It sets the interface down, restores the
// old name, and moves it to the host.
func (c *container) unplace() {
	d := c.d
	in := conn(d, c.key)
	link, err := in.LinkByName(c.name)
	must(d, err)
	must(d, in.LinkSetDown(link))
	must(d, in.LinkSetName(link, c.src))
	host, err := netns.Current()
	must(d, err)
	defer host.Close() //nolint:errcheck // test
	must(d, in.LinkSetNsFd(link, host.Fd()))
}

// stop does what `docker stop` does. After a restart with live-restore, revoke is false.
func (c *container) stop(revoke bool) {
	d := c.d
	if revoke {
		d.check(d.c.RevokeExternalConnectivity(d.ctx(), c.request()))
	}
	d.check(c.leave())
	c.unplace()
	d.check(c.delete())
	c.die()
}

// die ends the sandbox.
func (c *container) die() { must(c.d, netns.Delete(c.key)) }

func conn(t testing.TB, path string) *nl.Conn {
	t.Helper()
	if path == "" {
		c, err := nl.Host("/proc")
		must(t, err)
		t.Cleanup(c.Close)
		return c
	}
	ns, err := netns.Open(path)
	must(t, err)
	c, err := nl.In(ns, "/proc")
	must(t, err)
	t.Cleanup(c.Close)
	return c
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func writeFile(t testing.TB, path, text string) {
	t.Helper()
	must(t, os.MkdirAll(filepath.Dir(path), 0o755))
	must(t, os.WriteFile(path, []byte(text), 0o644))
}
