// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/daemons/cnm"
	"github.com/patchbay-net/patchbay/daemons/docker/state"
	"github.com/patchbay-net/patchbay/internal/life"
	"github.com/patchbay-net/patchbay/netns"
)

// sweepOnce collects once, as Keep does before Docker has answered. It returns how many endpoints
// it removed.
func (d *Driver) sweepOnce(ctx context.Context) (removed int, err error) {
	c := &collector{d: d, grace: d.opts.Grace}
	err = c.everything(ctx)
	for _, i := range c.found {
		if i.Kind == kindEndpoint && i.Removed {
			removed++
		}
	}
	return removed, err
}

func (n *node) sweep(want int) {
	n.Helper()
	got, err := n.driver.sweepOnce(n.ctx())
	must(n, err)
	if got != want {
		n.Errorf("%d swept, want %d", got, want)
	}
}

// dockerd was killed. Containers ended, and no call came.
func TestSweepAfterDockerd(t *testing.T) {
	both(t, func(t *testing.T, old bool) {
		n := newNode(t, portNet)
		n.old = old
		network := n.network("ports")
		a := n.mustStart(run{network: network, ports: []cnm.PortBinding{tcp(80, 8080, 8080)}})
		b := n.mustStart(run{network: network})
		n.sweep(0)
		a.die()
		n.stop()
		n.boot()
		n.sweep(1)
		if l := n.published(b); len(l) > 0 {
			t.Errorf("published %v", l)
		}
		b.stop(true)
	})
}

// After a reboot the namespaces and links are gone, but addresses and state are still there.
func TestSweepAfterReboot(t *testing.T) {
	n := newNode(t, portNet)
	c := n.mustStart(run{network: n.network("ports"), ports: []cnm.PortBinding{tcp(80, 8080, 8080)}})
	c.die()
	e, err := n.driver.state.Endpoints.Get(c.endpoint)
	must(t, err)
	must(t, netns.Delete(e.Hold))
	e.Boot = "an earlier one"
	must(t, n.driver.save(e))
	if len(addressFiles(t)) != 2 {
		t.Errorf("addresses: %v", addressFiles(t))
	}
	n.sweep(1)
}

// Without free file descriptors, the driver cannot find out whether a sandbox exists. The container
// must not count as dead.
func TestLiveUnsure(t *testing.T) {
	n := newNode(t, bridgeNet)
	c := n.mustStart(run{network: n.network("podnet")})
	e, err := n.driver.state.Endpoints.Get(c.endpoint)
	must(t, err)
	var limit unix.Rlimit
	must(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &limit))
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 0, Max: limit.Max}))
	col := &collector{d: n.driver, grace: time.Hour}
	f := col.facts()
	f.readSandbox(e)
	use := n.driver.inUse(e)
	must(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &limit))
	if !errors.Is(f.unseen, unix.EMFILE) || f.endpoint(e).state != life.Unsure || use.state != life.Unsure {
		t.Errorf("look: %v, in use: %v", f.unseen, use)
	}
	c.stop(true)
}

// The path now leads to another container's namespace.
func TestAnotherSandbox(t *testing.T) {
	n := newNode(t, bridgeNet)
	c := n.mustStart(run{network: n.network("podnet")})
	e, err := n.driver.state.Endpoints.Get(c.endpoint)
	must(t, err)
	at := state.Where{NetNS: c.key, IfName: c.name}
	if same, err := dropDeletedNetNS(e, at); same != at || err != nil {
		t.Errorf("its own: %v %v", same, err)
	}
	e.SandboxID.Ino++ // as if the namespace were newer than ours
	if other, err := dropDeletedNetNS(e, at); other.NetNS != "" || err != nil {
		t.Errorf("another's: %v %v", other, err)
	}
	c.stop(true)
}

// interrupted sets up an endpoint whose driver was killed while it ran the part post.
func (n *node) interrupted(c *container) {
	n.Helper()
	e, err := n.driver.state.Endpoints.Get(c.endpoint)
	must(n, err)
	e.Closed, e.Post, e.PostAt = false, state.Doing, state.Where{NetNS: c.key, IfName: c.name}
	must(n, n.driver.save(e))
}

// The driver was killed during EndpointOperInfo, and Docker ignores this. The container runs. So
// the next driver finishes its network, or removes it.
func TestFinishedBySweep(t *testing.T) {
	n := newNode(t, tunedNet)
	c := n.mustStart(run{network: n.network("tuned"), notGW: true})
	in := conn(t, c.key)
	must(t, in.SetSysctl("net/core/somaxconn", "4096"))
	n.interrupted(c)
	if out := n.driver.Collect(n.ctx(), Collection{Grace: time.Hour}); out.Failed != "" || len(out.Items) > 0 {
		t.Errorf("dry: %s", asJSON(out))
	}
	if got, err := in.Sysctl("net/core/somaxconn"); got != "4096" || err != nil {
		t.Errorf("dry, and somaxconn is %q %v", got, err)
	}
	n.sweep(0)
	if got, err := in.Sysctl("net/core/somaxconn"); got != "777" || err != nil {
		t.Errorf("somaxconn is %q %v", got, err)
	}
	c.stop(true)
}

// The driver was killed in EndpointOperInfo before it wrote anything. Nothing but the running
// container shows this.
func TestLostCallIsFinished(t *testing.T) {
	n := newNode(t, tunedNet)
	n.opts.Grace = time.Hour
	c := n.mustStart(run{network: n.network("tuned"), notGW: true})
	in := conn(t, c.key)
	must(t, in.SetSysctl("net/core/somaxconn", "4096"))
	at := func(place time.Duration) {
		n.stop()
		n.opts.place = place
		n.boot()
	}
	lost := func() {
		e, err := n.driver.state.Endpoints.Get(c.endpoint)
		must(t, err)
		e.Post, e.PostAt = "", state.Where{}
		must(t, n.driver.save(e))
	}
	swept := func(want string) {
		t.Helper()
		n.sweep(0)
		if got, err := in.Sysctl("net/core/somaxconn"); got != want || err != nil {
			t.Errorf("somaxconn is %q %v, want %s", got, err, want)
		}
	}
	const soon, late = time.Hour, time.Nanosecond
	lost()
	at(soon)
	startInit(t, c.key) // the process waits for Docker
	swept("4096")
	at(late)
	swept("4096")
	startNamed(t, c.key, "server")
	swept("777")
	must(t, in.SetSysctl("net/core/somaxconn", "4096"))
	lost()
	at(soon)
	swept("4096") // Docker may still be working on the endpoint
	at(late)
	swept("777")
	c.stop(true)
}

func TestClosedBySweep(t *testing.T) {
	n := newNode(t, brokenNet)
	c := n.mustStart(run{network: n.network("broken"), notGW: true})
	in := conn(t, c.key)
	link, err := in.LinkByName(c.name)
	must(t, err)
	must(t, in.LinkSetUp(link)) // as if the driver had not yet set the link down
	n.interrupted(c)
	if _, err := n.driver.sweepOnce(n.ctx()); err == nil {
		t.Error("swept without an error")
	}
	if link, err = in.LinkByName(c.name); err != nil || link.Attrs().RawFlags&unix.IFF_UP != 0 {
		t.Errorf("the interface is up (%v)", err)
	}
	n.sweep(0) // one sweep is enough
	c.stop(true)
}

// sometimes is a plugin that fails while a file exists.
const sometimes = `#!/bin/sh
case $CNI_COMMAND in
VERSION) echo '{"cniVersion":"1.1.0","supportedVersions":["1.1.0"]}' ;;
ADD) [ -e %[1]s/fails ] && { echo '{"cniVersion":"1.1.0","code":11,"msg":"not now"}'; exit 1; }; echo '{"cniVersion":"1.1.0"}' ;;
esac
exit 0
`

// A link was set down because the chain failed. When the chain succeeds, the link is set up, with
// its lost addresses and routes.
func TestReopened(t *testing.T) {
	for name, first := range map[string]string{"bridge": `{"type":"bridge","bridge":"br-t9","isGateway":true,` + dual + `}`, "ptp": `{"type":"ptp",` + dual + `}`} {
		t.Run(name, func(t *testing.T) { reopened(t, first) })
	}
}

func reopened(t *testing.T, first string) {
	n := newNode(t, `{"cniVersion":"1.1.0","name":"some","plugins":[`+first+`,{"type":"sometimes"}]}`)
	n.stop()
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "sometimes"), fmt.Appendf(nil, sometimes, dir), 0o755))
	n.opts.Plugins = append(n.opts.Plugins, dir)
	n.boot()
	c := n.mustStart(run{network: n.network("some")})
	in := conn(t, c.key)
	look := func() *state.Snapshot {
		link, err := in.LinkByName(c.name)
		must(t, err)
		s, err := snapshot(in, link)
		must(t, err)
		return s
	}
	before := look()
	fails := filepath.Join(dir, "fails")
	writeFile(t, fails, "")
	n.interrupted(c)
	if _, err := n.driver.sweepOnce(n.ctx()); !errorHas(err, "not now") {
		t.Errorf("swept: %v", err)
	}
	e, err := n.driver.state.Endpoints.Get(c.endpoint)
	must(t, err)
	e.Closed = false // as if the driver had been killed when the link was down
	must(t, n.driver.state.Endpoints.Save(e))
	_, err = n.c.EndpointOperInfo(n.ctx(), c.request())
	if s := look(); !errorHas(err, "not now") || len(s.Routes) > 0 {
		t.Errorf("still failed: %v, %s", err, asJSON(s))
	}
	must(t, os.Remove(fails))
	_, err = n.c.EndpointOperInfo(n.ctx(), c.request())
	must(t, err)
	after := look()
	for _, r := range before.Routes {
		if !contains(after.Routes, &r) {
			t.Errorf("missing route %s", asJSON(r))
		}
	}
	if len(after.Routes) != len(before.Routes) || asJSON(after.Addrs) != asJSON(before.Addrs) {
		t.Errorf("before %s\nafter %s", asJSON(before), asJSON(after))
	}
	if e, err := n.driver.state.Endpoints.Get(c.endpoint); err != nil || e.Closed || e.Before != nil {
		t.Errorf("%s %v", asJSON(e), err)
	}
	c.stop(true)
}

// The file of a network was lost. Its endpoint can still be removed.
func TestRemovedByCache(t *testing.T) {
	n := newNode(t, portNet)
	network := n.network("ports")
	c := n.mustStart(run{network: network, ports: []cnm.PortBinding{tcp(80, 8080, 8080)}})
	must(t, n.driver.state.Networks.Drop(network))
	if err := c.leave(); !errorHas(err, "not known to this driver") {
		t.Errorf("leave: %v", err)
	}
	c.unplace()
	must(t, c.delete())
	c.die()
	if all, err := n.driver.state.Endpoints.List(); err != nil || len(all) > 0 {
		t.Errorf("endpoints: %v %v", asJSON(all), err)
	}
}
