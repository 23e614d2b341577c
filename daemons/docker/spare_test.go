// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/daemons/cnm"
)

// moves has a container that runs on one network with a published port. Docker prefers the other
// network as the gateway.
type moves struct {
	*node
	a     *container
	to    string // the other network
	ports []cnm.PortBinding
}

func newMoves(t *testing.T) *moves {
	t.Helper()
	other := strings.NewReplacer("ports", "other", "br-t5", "br-t6", "10.91", "10.92", "fd91", "fd92").Replace(portNet)
	m := &moves{node: newNode(t, portNet, other), ports: []cnm.PortBinding{tcp(80, 8080, 8080)}}
	m.stop()
	m.opts.place = time.Nanosecond
	m.boot()
	m.a = m.mustStart(run{network: m.network("ports"), ports: m.ports})
	m.to = m.network("other")
	startNamed(t, m.a.key, "server")
	return m
}

// joins does what `docker network connect` does until the interface has the gateway.
func (m *moves) joins() *container {
	m.Helper()
	b, err := m.begin(run{network: m.to, key: m.a.key, ports: m.ports})
	must(m, err)
	b.join, err = m.c.Join(m.ctx(), &cnm.JoinRequest{NetworkID: b.network, EndpointID: b.endpoint, SandboxKey: b.key})
	must(m, err)
	b.src = b.join.InterfaceName.SrcName
	b.place(false)
	m.a.unset()
	in := conn(m, b.key)
	link, err := in.LinkByName(b.name)
	must(m, err)
	b.gateways(in, link.Attrs().Index)
	return b
}

// unset removes the gateways that Docker has set for a container.
func (c *container) unset() {
	in := conn(c.d, c.key)
	link, err := in.LinkByName(c.name)
	must(c.d, err)
	all, err := in.LinkRoutes(link.Attrs().Index, unix.RT_TABLE_MAIN)
	must(c.d, err)
	for i := range all {
		if r, _ := fromKernel(&all[i]); r.Dst.Bits() == 0 && r.Metric != spareMetric {
			must(c.d, in.RouteDel(&all[i]))
		}
	}
}

// serves checks that a container has its gateways and its port.
func (m *moves) serves(when string, c *container) {
	m.Helper()
	in := conn(m, c.key)
	link, err := in.LinkByName(c.name)
	must(m, err)
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		if at, err := in.DefaultLink(family, true); err != nil || at != link.Attrs().Index {
			m.Errorf("%s: of family %d the default route is by link %d, not %d: %v", when, family, at, link.Attrs().Index, err)
		}
	}
	m.open(when, c)
}

func (m *moves) revoke(c *container) {
	m.Helper()
	must(m, m.c.RevokeExternalConnectivity(m.ctx(), c.request()))
}

func (m *moves) program(c *container) {
	m.Helper()
	in := &cnm.ConnectivityRequest{NetworkID: c.network, EndpointID: c.endpoint, Options: cnm.Options{}}
	must(m, in.Options.Set(cnm.OptionPortMap, m.ports))
	must(m, m.c.ProgramExternalConnectivity(m.ctx(), in))
}

// Docker gives up connecting after it has moved the gateway, and moves nothing back. That
// happens, for example, if the driver is killed in ProgramExternalConnectivity. Later Docker
// continues from the state that it assumes.
func TestConnectGivenUp(t *testing.T) {
	m := newMoves(t)
	for range 2 {
		b := m.joins()
		m.revoke(m.a)
		must(t, b.leave())
		must(t, b.delete())
		m.sweep(0)
		m.serves("given up", m.a)
	}
	b := m.joins()
	m.revoke(m.a)
	m.program(b)
	m.serves("connected", b)
	m.sweep(0)
	m.serves("connected and swept", b)
	m.revoke(b)
	must(t, b.leave())
	b.unplace()
	in := conn(t, m.a.key)
	link, err := in.LinkByName(m.a.name)
	must(t, err)
	m.a.gateways(in, link.Attrs().Index)
	m.program(m.a)
	must(t, b.delete())
	m.serves("disconnected", m.a)
	m.a.stop(true)
}

// While Docker gives up, the driver is killed at each step. Docker continues.
func TestGivingUpKilled(t *testing.T) {
	m := newMoves(t)
	kills(t, 1, func(step int) bool {
		killed := m.killedAt(step)
		m.serves(fmt.Sprintf("killed in step %d: %v", step, killed), m.a)
		return killed
	})
	m.a.stop(true)
}

// killedAt kills the driver at a step. If Docker has finished before that step, killedAt returns
// false.
func (m *moves) killedAt(step int) (killed bool) {
	m.Helper()
	b := m.joins()
	m.stop()
	cmd := m.child(step)
	for _, call := range []func() error{
		func() error { return m.c.RevokeExternalConnectivity(m.ctx(), m.a.request()) }, b.leave, b.delete,
	} {
		if err := call(); !killed && cnm.Unanswered(err) { // a request that Docker repeats is empty
			killed = true
			_ = cmd.Wait()
			m.boot()
		} else {
			must(m, err)
		}
	}
	if !killed {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		m.boot()
	}
	for range 2 {
		_, err := m.driver.sweepOnce(m.ctx())
		must(m, err)
	}
	return killed
}
