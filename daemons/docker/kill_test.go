// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/daemons/cnm"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/test/draw"
	"github.com/patchbay-net/patchbay/invoke"
	"github.com/patchbay-net/patchbay/netns"
	"github.com/patchbay-net/patchbay/spec"
)

// These are variables in the environment of a driver in its own process.
const (
	childStep    = "PATCHBAY_DOCKER_STEP" // the step at which the driver kills itself
	childPlugins = "PATCHBAY_DOCKER_PLUGINS"
	childConf    = "PATCHBAY_DOCKER_CONF"
	childData    = "PATCHBAY_DOCKER_DATA"
)

// killer counts the steps of a driver and ends the process at one of them.
type killer struct {
	invoke.Invoker
	left int
}

func (k *killer) step() {
	if k.left--; k.left == 0 {
		_ = unix.Kill(os.Getpid(), unix.SIGKILL)
		time.Sleep(time.Hour)
	}
}

// Invoke counts a step before and after each plugin.
func (k *killer) Invoke(ctx context.Context, name string, call *spec.Call) ([]byte, error) {
	k.step()
	out, err := k.Invoker.Invoke(ctx, name, call)
	k.step()
	return out, err
}

// TestChild is the driver that is killed. In the parent process it does nothing.
func TestChild(t *testing.T) {
	at, err := strconv.Atoi(os.Getenv(childStep))
	if err != nil {
		return
	}
	k := &killer{invoker(t), at}
	d, err := New(Options{
		Plugins: []string{os.Getenv(childPlugins)}, ConfDir: os.Getenv(childConf), DataRoot: os.Getenv(childData), Paths: paths.Default(), Invoker: k, step: k.step,
	})
	must(t, err)
	must(t, os.Remove(socket))
	l, err := cnm.ListenUnix(socket, -1)
	must(t, err)
	_ = cnm.Serve(t.Context(), l, &cnm.Handler{Network: d, IPAM: d})
}

// child starts a driver that is killed at a step.
func (n *node) child(step int) *exec.Cmd {
	n.Helper()
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestChild$", "-test.count=1")
	cmd.Env = append(os.Environ(), childStep+"="+strconv.Itoa(step), childPlugins+"="+n.opts.Plugins[0], childConf+"="+n.opts.ConfDir, childData+"="+n.opts.DataRoot)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	before, err := os.Stat(socket)
	if errors.Is(err, os.ErrNotExist) {
		must(n, os.WriteFile(socket, nil, 0o600)) // the child replaces it
		before, err = os.Stat(socket)
	}
	must(n, err)
	must(n, cmd.Start())
	for range 12000 {
		if now, err := os.Stat(socket); err == nil && !os.SameFile(before, now) {
			return cmd
		}
		time.Sleep(5 * time.Millisecond)
	}
	n.Fatal("the child did not start")
	return nil
}

// tooMany is a number of steps that no test here reaches.
const tooMany = 100

// kills calls killedAt with increasing steps at which to kill the driver, until killedAt returns
// false because the driver's work ended before that step. Only the nightly run kills at every step.
// Other runs kill at every few steps; first chooses the step with which they begin.
func kills(t testing.TB, first int, killedAt func(step int) bool) {
	t.Helper()
	every := draw.Number(t, "PATCHBAY_DOCKER_KILL_EVERY", 8, 3)
	step := 1 + first%every
	for ; step < tooMany && killedAt(step); step += every {
	}
	if step >= tooMany {
		t.Error("it never comes to its end")
	}
	t.Logf("it has fewer than %d steps", step)
}

// TestKilled kills the driver at steps of a container's life. Then Docker either continues
// as after a failed call, or has ended with the container. Nothing may be left.
func TestKilled(t *testing.T) {
	first := 0
	for _, old := range []bool{false, true} {
		for _, silent := range []bool{true, false} {
			t.Run(fmt.Sprintf("old=%v silent=%v", old, silent), func(t *testing.T) {
				n := newNode(t, portNet)
				n.old = old
				network := n.network("ports")
				n.stop()
				kills(t, first, func(step int) bool { return n.lifeKilledAt(step, network, silent, nil) })
				n.boot()
			})
			first += 2
		}
	}
}

// TestKilledPacked does what TestKilled does, with a list of one packed plugin.
func TestKilledPacked(t *testing.T) {
	n := newNode(t, packedNet)
	network := n.network("packed")
	n.stop()
	kills(t, 1, func(step int) bool { return n.lifeKilledAt(step, network, true, nil) })
	n.boot()
}

// TestKilledDNS does what TestKilled does, with a resolv.conf that we wrote. The file must become
// Docker's again.
func TestKilledDNS(t *testing.T) {
	for first, silent := range map[int]bool{3: true, 7: false} {
		t.Run(fmt.Sprintf("silent=%v", silent), func(t *testing.T) {
			n := newNode(t, dnsNet)
			n.onDisk()
			network := n.replacing()
			n.stop()
			path := ""
			waits := func(key string) { path = n.contained(key, headResolv, nil) }
			kills(t, first, func(step int) bool {
				killed := n.lifeKilledAt(step, network, silent, waits)
				n.reads(path, headResolv)
				return killed
			})
			n.boot()
		})
	}
}

// lifeKilledAt kills the driver at a step of a life. If the life ended before that step, it
// returns false. waits puts a waiting process into the sandbox.
func (n *node) lifeKilledAt(step int, network string, silent bool, waits func(key string)) (killed bool) {
	n.Helper()
	cmd := n.child(step)
	c := &container{d: n.dockerd, endpoint: n.id(), network: network}
	c.key = "/var/run/docker/netns/" + c.endpoint[52:]
	if !n.old {
		must(n, netns.Create(c.key))
	}
	if waits != nil {
		waits(c.key)
	}
	err := c.life()
	if err == nil || !cnm.Unanswered(err) {
		_ = cmd.Process.Kill()
	}
	_ = cmd.Wait()
	if err != nil && !cnm.Unanswered(err) {
		n.Fatalf("step %d: the driver lives: %v", step, err)
	}
	n.boot()
	defer n.stop()
	if err != nil && !silent {
		n.check(c.leave())
		n.check(c.leave())
		n.check(c.delete())
	}
	must(n, netns.Delete(c.key))
	if _, err := n.driver.sweepOnce(n.ctx()); err != nil {
		n.Errorf("step %d: %v", step, err)
	}
	n.nothing(fmt.Sprintf("step %d (%v)", step, err))
	return err != nil
}

func (n *node) nothing(when string) {
	n.Helper()
	all, err := n.driver.state.Endpoints.List()
	if err != nil || len(all) > 0 {
		n.Errorf("%s: endpoints %s %v", when, asJSON(all), err)
	}
	if files := addressFiles(n); len(files) > 0 {
		n.Errorf("%s: addresses %v", when, files)
	}
	now := n.left()
	for _, kind := range []string{"link", "nft", "route"} {
		if left := now.Of(kind); len(left) > 0 {
			n.Errorf("%s: %s", when, left)
		}
	}
	if list, err := os.ReadDir("/run/patchbay/docker/netns"); err == nil && len(list) > 0 {
		n.Errorf("%s: holding namespaces %v", when, list)
	}
}

// TestKilledIPAM kills the IPAM driver at every step of the life of an address.
func TestKilledIPAM(t *testing.T) {
	n := newNode(t, portNet)
	x := n.ipamNetwork("ports")
	n.asking(x.id).bare("ports")
	n.stop()
	kills(t, 5, func(step int) bool { return n.addressKilledAt(step, x) })
	n.boot()
}

func (n *node) addressKilledAt(step int, x *ipamNet) (killed bool) {
	n.Helper()
	cmd := n.child(step)
	err := x.life(fmt.Sprintf("02:42:00:00:00:%02x", step))
	if err == nil || !cnm.Unanswered(err) {
		_ = cmd.Process.Kill()
	}
	_ = cmd.Wait()
	if err != nil && !cnm.Unanswered(err) {
		n.Fatalf("step %d: the driver lives: %v", step, err)
	}
	n.boot()
	defer n.stop()
	if out := n.driver.Collect(n.ctx(), Collection{Apply: true}); out.Failed != "" || out.NotAsked != "" {
		n.Errorf("step %d: %s", step, asJSON(out))
	}
	n.nothing(fmt.Sprintf("step %d (%v)", step, err))
	if leases, err := n.driver.state.Leases.List(); err != nil || len(leases) > 0 {
		n.Errorf("step %d: leases %s %v", step, asJSON(leases), err)
	}
	return err != nil
}

// life requests, uses and releases an address. Any call may fail.
func (x *ipamNet) life(mac string) error {
	d := x.n
	v4, err := x.address(0, mac, "")
	if err != nil {
		return err
	}
	v6, err := x.address(1, mac, "fd91::77")
	if err != nil {
		return err
	}
	c := &container{d: d.dockerd, endpoint: d.id(), network: x.id}
	in := &cnm.CreateEndpointRequest{NetworkID: x.id, EndpointID: c.endpoint, Interface: &cnm.Interface{Address: v4, AddressIPv6: v6, MacAddress: mac}}
	if _, err := d.c.CreateEndpoint(d.ctx(), in); err != nil {
		return err
	}
	if err := c.delete(); err != nil {
		return err
	}
	for i, a := range []netip.Prefix{v4, v6} {
		if err := d.c.ReleaseAddress(d.ctx(), &cnm.ReleaseAddressRequest{PoolID: x.pools[i].PoolID, Address: a.Addr()}); err != nil {
			return err
		}
	}
	return nil
}

// life starts and stops a container. Any call may fail.
func (c *container) life() error {
	r := run{network: c.network, ports: []cnm.PortBinding{tcp(80, 8080, 8080)}}
	in := &cnm.CreateEndpointRequest{NetworkID: c.network, EndpointID: c.endpoint, Interface: &cnm.Interface{}, Options: cnm.Options{}}
	must(c.d, in.Options.Set(cnm.OptionPortMap, r.ports))
	out, err := c.d.c.CreateEndpoint(c.d.ctx(), in)
	if err != nil {
		return err
	}
	c.iface = *out.Interface
	if err := c.joins(r); err != nil {
		return err
	}
	if err := c.leave(); err != nil {
		return err
	}
	c.unplace()
	return c.delete()
}
