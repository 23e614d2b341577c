// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/daemons/cnm"
)

// hangs is a CNI plugin that never answers an ADD.
const hangs = `#!/bin/sh
[ "$CNI_COMMAND" = ADD ] && exec sleep 1000
[ "$CNI_COMMAND" = VERSION ] && echo '{"cniVersion":"1.1.0","supportedVersions":["1.1.0"]}'
exit 0
`

// A plugin hangs, in the first part of the chain or in a later one. It is killed in time, and
// nothing is left.
func TestHangingPlugin(t *testing.T) {
	first := `{"cniVersion":"1.1.0","name":"first","plugins":[{"type":"hangs"}]}`
	second := `{"cniVersion":"1.1.0","name":"second","plugins":[{"type":"bridge","bridge":"br-t9",` + dual + `},{"type":"hangs"}]}`
	n := newNode(t, first, second)
	n.stop()
	dir := t.TempDir()
	must(t, os.WriteFile(filepath.Join(dir, "hangs"), []byte(hangs), 0o755))
	n.opts.Plugins = append(n.opts.Plugins, dir)
	n.boot()
	start := time.Now()
	network := n.network("first")
	n.limit(time.Second) // a busy machine may take this long for plugins that answer
	if _, err := n.begin(run{network: network}); err == nil || !strings.Contains(err.Error(), "hangs") {
		t.Errorf("first: %v", err)
	}
	n.limit(0)
	n.old = true // so Join runs the rest of the chain
	c, err := n.begin(run{network: n.network("second")})
	must(t, err)
	n.limit(time.Second)
	if err := c.joins(run{network: c.network}); err == nil {
		t.Error("the second plugin answered")
	}
	n.limit(0)
	must(t, c.leave())
	must(t, c.delete())
	if took := time.Since(start); took > time.Minute { // both limits, if the server had to end the calls
		t.Errorf("it took %v", took)
	}
}

// limit restarts the driver with another limit of calls; 0 is the default.
func (n *node) limit(limit time.Duration) {
	n.Helper()
	n.stop()
	n.opts.Limit = limit
	n.boot()
}

// Calls for different endpoints do not wait for each other.
func TestManyAtOnce(t *testing.T) {
	n := newNode(t, portNet)
	network := n.network("ports")
	const many = 12
	var ready, published sync.WaitGroup
	published.Add(many)
	seen := make(chan netip.Prefix, many)
	hosts := make(chan uint16, many)
	for i := range many {
		d := &dockerd{T: t, c: n.c, n: 1000 * (i + 1)}
		in := &cnm.CreateEndpointRequest{NetworkID: network, EndpointID: d.id(), Interface: &cnm.Interface{}, Options: cnm.Options{}}
		must(t, in.Options.Set(cnm.OptionPortMap, []cnm.PortBinding{tcp(80, 9100, 9199)}))
		ready.Go(func() {
			c := &container{d: d, endpoint: in.EndpointID, network: network}
			err := c.outside(in, seen)
			published.Done()
			published.Wait() // a container that starts later could get a port or address that was freed
			if err == nil {
				err = c.goes(hosts)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	ready.Wait()
	close(seen)
	close(hosts)
	addrs, ports := map[netip.Prefix]bool{}, map[uint16]bool{}
	for a := range seen {
		addrs[a] = true
	}
	for p := range hosts {
		ports[p] = true
	}
	if len(addrs) != many || len(ports) != many {
		t.Errorf("%d addresses, %d ports", len(addrs), len(ports))
	}
}

// outside sets up an endpoint whose sandbox never appears, as before Docker 28.
func (c *container) outside(in *cnm.CreateEndpointRequest, seen chan<- netip.Prefix) error {
	d := c.d
	out, err := d.c.CreateEndpoint(d.ctx(), in)
	if err != nil {
		return err
	}
	seen <- out.Interface.Address
	join := &cnm.JoinRequest{NetworkID: c.network, EndpointID: c.endpoint, SandboxKey: "/run/docker/netns/none-" + c.endpoint[:8], Options: in.Options}
	if _, err := d.c.Join(d.ctx(), join); err != nil {
		return err
	}
	return d.c.ProgramExternalConnectivity(d.ctx(), &cnm.ConnectivityRequest{NetworkID: c.network, EndpointID: c.endpoint, Options: in.Options})
}

// goes reads the published port and ends the endpoint.
func (c *container) goes(hosts chan<- uint16) error {
	info, err := c.d.c.EndpointOperInfo(c.d.ctx(), c.request())
	if err != nil {
		return err
	}
	text := fmt.Sprint(info.Value["ports"])
	var port uint16
	if _, err := fmt.Sscanf(text, "*:%d->", &port); err != nil {
		return fmt.Errorf("ports %q: %w", text, err)
	}
	hosts <- port
	if err := c.leave(); err != nil {
		return err
	}
	return c.delete()
}
