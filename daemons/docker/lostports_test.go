// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/daemons/cnm"
	"github.com/patchbay-net/patchbay/daemons/docker/state"
	"github.com/patchbay-net/patchbay/internal/test/nettest/leak"
)

// open checks that an endpoint has published its port, in the state and in the kernel.
func (n *node) open(when string, c *container) {
	n.Helper()
	if got := n.published(c); len(got) != 1 || len(addressesOfPorts(n)) == 0 {
		n.Errorf("%s: published %v, in the kernel %v", when, got, addressesOfPorts(n))
	}
}

// addressesOfPorts returns the published ports in the kernel.
func addressesOfPorts(n *node) leak.State {
	n.Helper()
	return n.left().Of("nft element inet patchbay ports4")
}

// Another network becomes the gateway, and the driver is killed at each step while it unpublishes
// the ports. After its restart it publishes them again.
func TestRevokeKilled(t *testing.T) {
	n := newNode(t, portNet)
	var file string
	var kept [][]byte // the file before and after each write, from the time when the ports are unpublished
	n.stop()
	n.opts.step = func() {
		if data, err := os.ReadFile(file); err == nil && len(addressesOfPorts(n)) == 0 {
			kept = append(kept, data)
		}
	}
	n.boot()
	c := n.mustStart(run{network: n.network("ports"), ports: []cnm.PortBinding{tcp(80, 8080, 8080)}})
	n.open("started", c)
	file = filepath.Join(n.driver.state.Path(), "endpoints", c.endpoint)
	must(t, n.c.RevokeExternalConnectivity(n.ctx(), c.request()))
	if got := addressesOfPorts(n); len(got) > 0 {
		t.Errorf("revoked: %v", got)
	}
	file = ""
	if len(kept) == 0 {
		t.Error("nothing was written")
	}
	for _, data := range kept {
		n.stop()
		writeFile(t, filepath.Join(n.driver.state.Path(), "endpoints", c.endpoint), string(data))
		n.boot()
		must(t, n.c.ProgramExternalConnectivity(n.ctx(), &cnm.ConnectivityRequest{NetworkID: c.network, EndpointID: c.endpoint}))
		n.open("programmed", c)
		must(t, n.c.RevokeExternalConnectivity(n.ctx(), c.request()))
	}
	c.stop(true)
}

// A call that publishes or unpublishes ports of a running container was lost or interrupted.
// Docker does not repeat the call.
func TestLostPortsArePublished(t *testing.T) {
	n := newNode(t, portNet)
	n.opts.Grace = time.Hour
	n.stop()
	n.opts.place = time.Nanosecond
	n.boot()
	c := n.mustStart(run{network: n.network("ports"), ports: []cnm.PortBinding{tcp(80, 8080, 8080)}})
	lost := func(step state.Step) {
		t.Helper()
		e, err := n.driver.state.Endpoints.Get(c.endpoint)
		must(t, err)
		must(t, n.c.RevokeExternalConnectivity(n.ctx(), c.request()))
		if e.Ports = step; step != "" {
			must(t, n.driver.save(e))
		}
		n.sweep(0)
	}
	lost("")
	if got := n.published(c); len(got) > 0 {
		t.Errorf("published %v though no process runs", got)
	}
	startNamed(t, c.key, "server")
	lost("")
	n.open("lost", c)
	lost(state.Doing)
	n.open("cut short", c)
	c.noDefault()
	for _, step := range []state.Step{state.Doing, ""} {
		lost(step)
		if got := n.published(c); len(got) > 0 || len(addressesOfPorts(n)) > 0 {
			t.Errorf("%q: published %v though another network is the gateway", step, got)
		}
	}
	c.stop(true)
}
