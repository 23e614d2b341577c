// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/daemons/cnm"
	"github.com/patchbay-net/patchbay/daemons/docker/state"
	"github.com/patchbay-net/patchbay/internal/test/draw"
	"github.com/patchbay-net/patchbay/netns"
)

// leaseStart does what `docker run --ip --mac-address` does, with a port.
func (x *ipamNet) leaseStart(mac, ip string, ports ...cnm.PortBinding) (*container, error) {
	v4, err := x.address(0, mac, ip)
	if err != nil {
		return nil, err
	}
	return x.n.start(run{network: x.id, iface: cnm.Interface{Address: v4, MacAddress: mac}, ports: ports})
}

// dockerd was killed with its containers and starts them again before the next collection. They
// get their ports and addresses.
func TestEvictDead(t *testing.T) {
	both(t, func(t *testing.T, old bool) {
		n := newNode(t, portNet)
		n.old = old
		x := n.ipamNetwork("ports")
		before, err := x.leaseStart("02:42:00:00:00:01", "10.91.0.77", tcp(80, 8080, 8080))
		must(t, err)
		if old {
			n.sweep(0) // adopts the sandbox
		}
		before.die()
		after, err := x.leaseStart("02:42:00:00:00:02", "10.91.0.77", tcp(80, 8080, 8080))
		must(t, err)
		n.sweep(0)
		after.stop(true)
		x.release(0, after.iface.Address)
	})
}

// After a reboot, Docker requests addresses before the first collection. The IPAM plugin may have
// given the old addresses to other containers. So the driver asks the plugin again, and no
// address is given twice.
func TestRebootGivesNothingTwice(t *testing.T) {
	for name, boot := range map[string]string{"a lease of the boot before": "an earlier one", "by a driver that wrote no boot": ""} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t, portNet)
			x := n.ipamNetwork("ports")
			const mac, ip = "02:42:00:00:00:01", "10.91.0.77"
			before, err := x.leaseStart(mac, ip)
			must(t, err)
			n.rebooted(before, leaseID("ports", mac), boot)
			after, err := x.leaseStart(mac, ip)
			must(t, err)
			if other, err := x.leaseStart("02:42:00:00:00:02", ip); err == nil {
				t.Errorf("two have %s", ip)
				other.stop(true)
			}
			after.stop(true)
			x.release(0, after.iface.Address)
		})
	}
}

// Docker had requested an address but created no endpoint when the node crashed. After the reboot, another container
// gets the address before the first collection.
func TestRebootFreesAddress(t *testing.T) {
	n := newNode(t, portNet)
	x := n.ipamNetwork("ports")
	const mac, ip = "02:42:00:00:00:01", "10.91.0.77"
	_, err := x.address(0, mac, ip)
	must(t, err)
	asked := func(mac string) error {
		c, err := x.leaseStart(mac, ip)
		if err == nil {
			c.stop(true)
			x.release(0, c.iface.Address)
		}
		return err
	}
	if err := asked("02:42:00:00:00:02"); err == nil {
		t.Errorf("two have %s", ip)
	}
	l, err := n.driver.state.Leases.Get(leaseID("ports", mac))
	must(t, err)
	l.Boot = "an earlier one"
	must(t, n.driver.state.Leases.Save(l))
	must(t, asked("02:42:00:00:00:02"))
}

// rebooted removes those parts of a container that a reboot removes. The files of the state, with the boot id of the
// lease, and the reservations remain.
func (n *node) rebooted(c *container, lease, boot string) {
	n.Helper()
	c.die()
	e, err := n.driver.state.Endpoints.Get(c.endpoint)
	must(n, err)
	must(n, netns.Delete(e.Hold))
	e.Boot = "an earlier one"
	must(n, n.driver.save(e))
	l, err := n.driver.state.Leases.Get(lease)
	must(n, err)
	l.Boot = boot
	must(n, n.driver.state.Leases.Save(l))
	must(n, netns.Delete(n.driver.standIn()))
	for _, dir := range []string{"attachments", "ipam"} { // the files by which host-local would know its own addresses
		must(n, os.RemoveAll(filepath.Join(n.opts.Paths.Run, dir)))
	}
	for _, file := range addressFiles(n) {
		must(n, os.Chtimes(file, time.Unix(1, 0), time.Unix(1, 0)))
	}
}

// A dockerd before Docker 28 and the driver were killed between Join and the container's start. The restarted dockerd
// keeps a file at the sandbox's path for a minute.
func TestEvictInterrupted(t *testing.T) {
	n := newNode(t, portNet)
	n.old = true
	r := run{network: n.network("ports"), ports: []cnm.PortBinding{tcp(80, 8080, 8080)}}
	c, err := n.begin(r)
	must(t, err)
	options := cnm.Options{}
	must(t, options.Set(cnm.OptionPortMap, r.ports))
	_, err = n.c.Join(n.ctx(), &cnm.JoinRequest{NetworkID: c.network, EndpointID: c.endpoint, SandboxKey: c.key, Options: options})
	must(t, err)
	must(t, n.c.ProgramExternalConnectivity(n.ctx(), &cnm.ConnectivityRequest{NetworkID: c.network, EndpointID: c.endpoint, Options: options}))
	writeFile(t, c.key, "")
	defer os.Remove(c.key)
	n.rest()
	after, err := n.start(r)
	must(t, err)
	after.stop(true)
	if _, err := n.driver.state.Endpoints.Get(c.endpoint); !errors.Is(err, state.ErrUnknown) {
		t.Errorf("the endpoint that was cut short: %v", err)
	}
}

// rest restarts the driver, with endpoints that last changed long ago.
func (n *node) rest() {
	n.Helper()
	n.stop()
	files, err := filepath.Glob("/var/lib/patchbay/docker/endpoints/*")
	must(n, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		must(n, err)
		writeFile(n, file, regexp.MustCompile(`"changed":\s*"[^"]*"`).ReplaceAllString(string(text), `"changed":"2026-01-01T00:00:00Z"`))
	}
	n.boot()
}

// between brings a container to a phase between two of Docker's calls. At this point dockerd, or
// dockerd and the driver, may be killed.
func between(n *node, c *container, phase state.Phase) {
	n.Helper()
	if phase == state.Created {
		return
	}
	must(n, c.joins(run{notGW: true}))
	must(n, c.leave())
	if phase != state.Left {
		e, err := n.driver.state.Endpoints.Get(c.endpoint)
		must(n, err)
		e.Phase = phase
		must(n, n.driver.save(e))
	}
}

// An endpoint waits for a call that never comes. It keeps its MAC address and --ip for ten
// seconds, not for the whole grace time.
func TestEvictBetweenCalls(t *testing.T) {
	macs := map[string]string{"MAC": "02:42:00:00:00:01", "IP": "02:42:00:00:00:02"}
	for i, phase := range []state.Phase{state.Created, state.Joining, state.Leaving, state.Left} {
		for name, mac := range macs {
			if !draw.All(t) && (name == "MAC") != (i%2 == 0) {
				continue
			}
			t.Run(string(phase)+" "+name, func(t *testing.T) {
				n := newNode(t, bridgeNet)
				x := n.ipamNetwork("podnet")
				before, err := n.leaseBegin(x)
				must(t, err)
				between(n, before, phase)
				n.rest()
				after, err := x.leaseStart(mac, "10.91.0.77")
				must(t, err)
				if _, err := n.driver.state.Endpoints.Get(before.endpoint); !errors.Is(err, state.ErrUnknown) {
					t.Errorf("the endpoint before: %v", err)
				}
				after.stop(true)
				x.release(0, after.iface.Address)
			})
		}
	}
}

// leaseBegin does what leaseStart does before the container joins.
func (n *node) leaseBegin(x *ipamNet) (*container, error) {
	v4, err := x.address(0, "02:42:00:00:00:01", "10.91.0.77")
	must(n, err)
	return n.begin(run{network: x.id, iface: cnm.Interface{Address: v4, MacAddress: "02:42:00:00:00:01"}, key: n.sandbox()})
}

// A slow endpoint is kept, and the call that wants its address waits for it.
func TestBetweenCallsIsWaitedFor(t *testing.T) {
	n := newNode(t, bridgeNet)
	x := n.ipamNetwork("podnet")
	slow, err := n.leaseBegin(x)
	must(t, err)
	other := make(chan error)
	go func() {
		_, err := x.address(0, "02:42:00:00:00:01", "")
		other <- err
	}()
	select {
	case err := <-other:
		t.Errorf("it did not wait: %v", err)
	case <-time.After(500 * time.Millisecond):
		must(t, slow.joins(run{notGW: true}))
		if err := <-other; !errorHas(err, "choose another --mac-address") {
			t.Error(err)
		}
	}
	slow.stop(true)
	x.release(0, slow.iface.Address)
}

// Running containers lose nothing, and no two ever have the same address.
func TestLivingIsKept(t *testing.T) {
	n := newNode(t, portNet)
	x := n.ipamNetwork("ports")
	const mac = "02:42:00:00:00:01"
	a, err := x.leaseStart(mac, "10.91.0.77")
	must(t, err)
	if _, err := x.leaseStart(mac, ""); !errorHas(err, "choose another --mac-address") {
		t.Errorf("the same MAC address: %v", err)
	}
	if _, err := x.leaseStart("02:42:00:00:00:02", "10.91.0.77"); err == nil {
		t.Error("the same address was given")
	}
	a.stop(true)
	x.release(0, a.iface.Address)
}

// Two containers have the same --mac-address. Each requests an address before the other has its
// endpoint.
func TestOneAddressForOne(t *testing.T) {
	n := newNode(t, bridgeNet)
	x := n.ipamNetwork("podnet")
	const mac = "02:42:00:00:00:01"
	v4, err := x.address(0, mac, "")
	must(t, err)
	again, err := x.address(0, mac, "")
	must(t, err)
	r := run{network: x.id, iface: cnm.Interface{Address: v4, MacAddress: mac}}
	a := n.mustStart(r)
	r.iface.Address = again
	if _, err := n.start(r); !errorHas(err, "choose another --mac-address") {
		t.Errorf("the second: %v", err)
	}
	x.release(0, again)
	if files := addressFiles(t); len(files) != 2 {
		t.Errorf("of the first: %v", files)
	}
	a.stop(true)
	if files := addressFiles(t); len(files) != 0 {
		t.Errorf("after both: %v", files)
	}
}

// Docker releases an address although its endpoint could not be removed.
func TestReleaseWaitsForEndpoint(t *testing.T) {
	n := newNode(t, bridgeNet)
	x := n.ipamNetwork("podnet")
	c, err := x.leaseStart("02:42:00:00:00:01", "")
	must(t, err)
	must(t, c.leave())
	c.unplace()
	x.release(0, c.iface.Address)
	if files := addressFiles(t); len(files) != 2 {
		t.Errorf("while the endpoint exists: %v", files)
	}
	must(t, c.delete())
	if files := addressFiles(t); len(files) != 0 {
		t.Errorf("after it: %v", files)
	}
	c.die()
}

// stubborn is an IPAM plugin that always gives its own address.
const stubborn = `#!/bin/sh
case $CNI_COMMAND in
VERSION) echo '{"cniVersion":"1.1.0","supportedVersions":["1.0.0","1.1.0"]}' ;;
ADD) touch /run/stubborn; echo '{"cniVersion":"1.1.0","ips":[{"address":"10.99.0.9/24"}]}' ;;
DEL) rm -f /run/stubborn ;;
esac
`

func TestOtherAddressIsGivenBack(t *testing.T) {
	n := newNode(t, `{"cniVersion":"1.1.0","name":"odd","plugins":[{"type":"bridge","bridge":"br-t9","ipam":{"type":"stubborn"}}]}`)
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "stubborn"), []byte(stubborn), 0o755))
	n.stop()
	n.opts.Plugins = append(n.opts.Plugins, dir)
	n.boot()
	p, err := n.c.RequestPool(n.ctx(), &cnm.RequestPoolRequest{AddressSpace: space, Options: map[string]string{optNetwork: "odd"}})
	must(t, err)
	_, err = n.c.RequestAddress(n.ctx(), &cnm.RequestAddressRequest{PoolID: p.PoolID, Address: netip.MustParseAddr("10.99.0.77"), Options: map[string]string{cnm.OptionMAC: "02:42:00:00:00:01"}})
	if !errorHas(err, "gave no such address") {
		t.Error(err)
	}
	if _, err := os.Stat("/run/stubborn"); !os.IsNotExist(err) {
		t.Errorf("the plugin still has it: %v", err)
	}
	must(t, n.c.ReleasePool(n.ctx(), &cnm.ReleasePoolRequest{PoolID: p.PoolID}))
}

// noDefault removes the default routes, as libnetwork does when another network becomes
// the gateway.
func (c *container) noDefault() {
	in := conn(c.d, c.key)
	link, err := in.LinkByName(c.name)
	must(c.d, err)
	all, err := in.LinkRoutes(link.Attrs().Index, unix.RT_TABLE_MAIN)
	must(c.d, err)
	for i := range all {
		if r, _ := fromKernel(&all[i]); r.Dst.Bits() == 0 {
			must(c.d, in.RouteDel(&all[i]))
		}
	}
}

// After a restart with live-restore, another network becomes the gateway. Docker sends no Revoke
// for the old one.
func TestPortsFollowTheGateway(t *testing.T) {
	second := strings.NewReplacer("ports", "other", "br-t5", "br-t6", "10.91", "10.92", "fd91", "fd92").Replace(portNet)
	n := newNode(t, portNet, second)
	a := n.mustStart(run{network: n.network("ports"), ports: []cnm.PortBinding{tcp(80, 8080, 8080)}})
	b := n.mustStart(run{network: n.network("other"), key: a.key, notGW: true})
	program := &cnm.ConnectivityRequest{NetworkID: b.network, EndpointID: b.endpoint, Options: cnm.Options{}}
	must(t, program.Options.Set(cnm.OptionPortMap, []cnm.PortBinding{tcp(80, 8080, 8080)}))
	if err := n.c.ProgramExternalConnectivity(n.ctx(), program); !errorHas(err, "another container's") {
		t.Errorf("while the first is the gateway: %v", err)
	}
	a.noDefault()
	must(t, n.c.ProgramExternalConnectivity(n.ctx(), program))
	if len(n.published(a)) > 0 || len(n.published(b)) != 1 {
		t.Errorf("published %v and %v", n.published(a), n.published(b))
	}
	must(t, netns.Delete(a.key))
	n.sweep(2)
}

// One network is the container's gateway for IPv4, and another network is its gateway for IPv6.
func TestPortsOfTwoFamilies(t *testing.T) {
	conf := func(name, bridge, subnet, dst string) string {
		return `{"cniVersion":"1.1.0","name":"` + name + `","plugins":[{"type":"bridge","bridge":"` + bridge + `","isGateway":true,"ipam":{"type":"host-local","ranges":[[{"subnet":"` + subnet + `"}]],"routes":[{"dst":"` + dst + `"}]}}]}`
	}
	n := newNode(t, conf("four", "br-t6", "10.96.0.0/24", "0.0.0.0/0"), conf("six", "br-t7", "fd97::/64", "::/0"))
	ports := []cnm.PortBinding{tcp(80, 8080, 8080)}
	a := n.mustStart(run{network: n.network("four"), ports: ports})
	b := n.mustStart(run{network: n.network("six"), key: a.key})
	program := &cnm.ConnectivityRequest{NetworkID: b.network, EndpointID: b.endpoint, Options: cnm.Options{}}
	must(t, program.Options.Set(cnm.OptionPortMap, ports))
	must(t, n.c.ProgramExternalConnectivity(n.ctx(), program))
	if len(n.published(a)) != 1 || len(n.published(b)) != 1 {
		t.Errorf("published %v and %v", n.published(a), n.published(b))
	}
	must(t, b.leave())
	b.unplace()
	must(t, b.delete())
	a.stop(true)
}
