// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// answers imitates Docker's API.
type answers struct {
	dir   string // Docker's data root
	nets  []engineNetwork
	ends  map[string]map[string]engineEndpoint
	err   error
	asked func() // called at each request
}

func (a *answers) root(context.Context) (string, error) { a.asked(); return a.dir, nil }

func (a *answers) networks(context.Context) ([]engineNetwork, error) {
	a.asked()
	return a.nets, a.err
}

func (a *answers) endpoints(_ context.Context, id string) (map[string]engineEndpoint, error) {
	a.asked()
	return a.ends[id], a.err
}

// asking gives the node a Docker that knows one network.
func (n *node) asking(network string) *answers {
	n.Helper()
	a := &answers{dir: n.TempDir(), ends: map[string]map[string]engineEndpoint{network: {}}}
	a.nets = []engineNetwork{{ID: "bridge"}, {ID: network}}
	n.stop()
	n.opts.DataRoot, n.opts.engine, n.opts.doubt = a.dir, a, time.Nanosecond
	n.boot()
	a.asked = func() {
		n.Helper()
		if held := len(n.driver.locks.all); held > 0 { // Docker may be waiting for the call that holds this lock
			n.Errorf("Docker is asked with %d locks held", held)
		}
	}
	return a
}

// collect does what `patchbayd docker gc` does.
func (n *node) collect(dry bool, want ...string) *Collected {
	n.Helper()
	out := n.driver.Collect(n.ctx(), Collection{Apply: !dry})
	if out.Failed != "" {
		n.Error(out.Failed)
	}
	var got []string
	for _, i := range out.Items {
		got = append(got, i.Kind+": "+i.Why)
		if i.Removed == dry || i.Error != "" {
			n.Errorf("%+v", i)
		}
	}
	if asJSON(got) != asJSON(want) {
		n.Errorf("collected %s, want %s", asJSON(got), asJSON(want))
	}
	return out
}

const forgot = "Docker no longer has it"

// The deletion of a network was lost while the driver was down.
func TestForgottenNetwork(t *testing.T) {
	n := newNode(t, portNet)
	x := n.ipamNetwork("ports")
	gone := n.network("ports")
	a := n.asking(gone)
	a.nets = append(a.nets, engineNetwork{ID: x.id})
	a.nets[2].IPAM.Options = map[string]string{optNetwork: "ports"}
	c := n.mustStart(run{network: gone})
	n.collect(false)    // all objects exist
	a.nets = a.nets[:1] // Docker lists no endpoint of ours, though a container runs
	if out := n.driver.Collect(n.ctx(), Collection{Apply: true, Grace: time.Hour}); len(out.Items) > 0 || out.Failed != "" {
		t.Errorf("young, and collected: %s", asJSON(out))
	}
	n.collect(true, kindNetwork+": "+forgot, kindPool+": no network of Docker uses it", kindPool+": no network of Docker uses it")
	n.collect(false, kindNetwork+": "+forgot, kindPool+": no network of Docker uses it", kindPool+": no network of Docker uses it")
	if nets, err := n.driver.state.Networks.List(); err != nil || len(nets) != 1 || nets[0].ID != gone {
		t.Errorf("networks %s %v", asJSON(nets), err)
	}
	c.die()
	n.collect(false, kindEndpoint+": its sandbox is gone", kindNetwork+": "+forgot)
	if nets, err := n.driver.state.Networks.List(); err != nil || len(nets) != 0 {
		t.Errorf("networks %s %v", asJSON(nets), err)
	}
}

// An answer from another program than our Docker removes nothing.
func TestNotAsked(t *testing.T) {
	n := newNode(t, bridgeNet)
	a := n.asking(n.network("podnet"))
	a.nets = a.nets[:1]
	a.err = errors.New("it boots")
	if out := n.collect(false); out.NotAsked == "" {
		t.Error("an error was an answer")
	}
	a.err, a.dir = nil, "/another/root"
	if out := n.collect(false); out.NotAsked == "" {
		t.Error("another Docker was asked")
	}
	a.dir = n.opts.DataRoot
	n.collect(false, kindNetwork+": "+forgot)
}

// The container was disconnected while the driver was down. It still runs, and its interface is
// back on the host.
func TestForgottenEndpoint(t *testing.T) {
	n := newNode(t, bridgeNet)
	network := n.network("podnet")
	a := n.asking(network)
	c, d := n.mustStart(run{network: network}), n.mustStart(run{network: network})
	n.collect(false) // the interfaces are in their sandboxes, whatever Docker lists
	c.unplace()
	a.ends[network] = map[string]engineEndpoint{c.endpoint: {}}
	n.collect(false)
	a.ends[network] = map[string]engineEndpoint{d.endpoint: {}}
	n.collect(false, kindEndpoint+": "+forgot)
	if _, err := conn(t, d.key).LinkByName(d.name); err != nil {
		t.Errorf("of the other one: %v", err)
	}
	c.die()
	d.stop(true)
}

// bare adds, as Docker lists it, a network of another driver with our IPAM driver. Our driver sees
// only the network's addresses.
func (a *answers) bare(network string) {
	other := engineNetwork{ID: "other", Driver: "macvlan"}
	other.IPAM.Options = map[string]string{optNetwork: network}
	a.nets = append(a.nets, other)
	a.ends["other"] = map[string]engineEndpoint{}
}

const unusedLease = kindAddresses + ": no container of Docker has them"

// A container on another driver's network has an address from our IPAM driver, but no endpoint of
// our network driver. The address is released only when Docker no longer has it.
func TestAddressOfAnotherDriver(t *testing.T) {
	n := newNode(t, bridgeNet)
	x := n.ipamNetwork("podnet")
	const mac = "02:42:00:00:00:01"
	v4, err := x.address(0, mac, "")
	must(t, err)
	n.sweep(0)
	if files := addressFiles(t); len(files) != 2 {
		t.Fatalf("without an answer of Docker: %v", files)
	}
	a := n.asking(x.id)
	a.bare("podnet")
	a.err = errors.New("it boots")
	n.collect(false)
	a.err = nil
	for _, e := range []engineEndpoint{{mac: strings.ToUpper(mac)}, {addrs: []netip.Addr{v4.Addr()}}} {
		a.ends["other"] = map[string]engineEndpoint{"e": e}
		n.collect(false)
	}
	a.ends["other"] = map[string]engineEndpoint{"e": {mac: "02:42:00:00:00:02", addrs: []netip.Addr{v4.Addr().Next()}}}
	if out := n.driver.Collect(n.ctx(), Collection{Apply: true, Grace: time.Hour}); len(out.Items) > 0 || out.Failed != "" {
		t.Errorf("young, and collected: %s", asJSON(out))
	}
	n.collect(false, unusedLease)
	n.nothing("then")
}

// After a reboot the driver need not ask Docker, because no container has an address then.
func TestAddressOfAnotherDriverAfterReboot(t *testing.T) {
	n := newNode(t, bridgeNet)
	x := n.ipamNetwork("podnet")
	const mac = "02:42:00:00:00:01"
	_, err := x.address(0, mac, "")
	must(t, err)
	l, err := n.driver.state.Leases.Get(leaseID("podnet", mac))
	must(t, err)
	l.Boot = "" // as from a driver that wrote no boot id; the container may run
	must(t, n.driver.state.Leases.Save(l))
	n.sweep(0)
	if files := addressFiles(t); len(files) != 2 {
		t.Errorf("of no boot: %v", files)
	}
	l.Boot = "an earlier one"
	must(t, n.driver.state.Leases.Save(l))
	n.sweep(0)
	n.nothing("after a reboot")
}
