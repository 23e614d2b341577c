// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/daemons/cnm"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/test/nettest/leak"
	"github.com/patchbay-net/patchbay/netns"
	"github.com/patchbay-net/patchbay/plugin/all"
	"github.com/patchbay-net/patchbay/plugin/plugintest"
)

func TestMain(m *testing.M) {
	if os.Getenv(childStep) != "" && filepath.Base(os.Args[0]) == "exe" { // in the namespaces of its parent
		os.Exit(m.Run())
	}
	plugintest.Main(m, all.Plugins()...)
}

// node is a host with our driver, and a dockerd that uses it.
type node struct {
	*dockerd
	driver *Driver
	opts   Options
	stop   func() // ends the server
	before leak.State
}

// newNode starts a driver with configurations, each in a file. The end of the test checks that
// nothing is left.
func newNode(t *testing.T, confs ...string) *node {
	t.Helper()
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	confDir := t.TempDir()
	for i, conf := range confs {
		writeFile(t, filepath.Join(confDir, fmt.Sprintf("%d.conflist", i)), conf)
	}
	n := &node{opts: Options{Plugins: []string{plugins(t)}, Invoker: invoker(t), ConfDir: confDir, Paths: paths.Default(), Grace: time.Nanosecond, Log: t.Logf}}
	n.dockerd = &dockerd{T: t}
	n.before = leak.Must(t)
	t.Cleanup(n.clean)
	t.Cleanup(func() { n.stop() })
	n.boot()
	return n
}

const socket = "/run/docker/plugins/patchbay.sock"

// boot starts the driver, as after a restart.
func (n *node) boot() {
	n.Helper()
	var err error
	n.driver, err = New(n.opts)
	must(n, err)
	l, err := cnm.ListenUnix(socket, -1)
	must(n, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = cnm.Serve(ctx, l, &cnm.Handler{Network: n.driver, IPAM: n.driver, Timeout: time.Minute, Log: func(c cnm.Call) { n.Logf("%s %v %v", c.Method, c.Took, c.Err) }})
	}()
	n.stop = func() { cancel(); <-done }
	at, err := cnm.DefaultDirs().Find("patchbay")
	must(n, err)
	n.c, err = cnm.NewClient(at, cnm.ClientOptions{Timeout: time.Minute})
	must(n, err)
}

// ctx returns a context that outlives the test, for calls from Cleanup.
func (d *dockerd) ctx() context.Context { return context.Background() }

// left returns the objects that did not exist at the start.
func (n *node) left() leak.State {
	n.Helper()
	return leak.Must(n).Beyond(n.before).Without(leak.Standing).Without(func(line string) bool {
		for _, dir := range []string{"/run/docker", "/var/lib/cni/networks", "/var/lib/patchbay/docker/"} {
			if strings.HasPrefix(line, "file "+dir) {
				return dir != "/var/lib/patchbay/docker/" || strings.HasSuffix(line, "/")
			}
		}
		return strings.Contains(line, " br-t")
	})
}

func (n *node) clean() {
	n.Helper()
	if left := n.left(); len(left) > 0 {
		n.Errorf("left behind:\n%s", left)
	}
	if files := addressFiles(n); len(files) > 0 {
		n.Errorf("addresses left: %v", files)
	}
	c := conn(n, "")
	links, err := c.LinkList()
	must(n, err)
	for _, l := range links {
		if strings.HasPrefix(l.Attrs().Name, "br-t") {
			must(n, c.LinkDel(l))
		}
	}
	must(n, os.RemoveAll("/var/lib/cni"))
	must(n, os.RemoveAll("/var/lib/patchbay"))
}

// addressFiles returns the reservations of host-local.
func addressFiles(t testing.TB) (out []string) {
	files, err := filepath.Glob("/var/lib/cni/networks/*/*")
	must(t, err)
	for _, f := range files {
		if _, err := netip.ParseAddr(filepath.Base(f)); err == nil {
			out = append(out, f)
		}
	}
	return out
}

// mustStart starts a container and fails the test if that fails.
func (n *node) mustStart(r run) *container {
	n.Helper()
	c, err := n.start(r)
	must(n, err)
	return c
}

// reaches connects from one container to an address of another by TCP.
func (c *container) reaches(to *container, addr netip.Addr) error {
	c.d.Helper()
	l := listen(c.d, to.key, addr)
	defer l.Close() //nolint:errcheck // test
	return dial(c.d, c.key, l.Addr().String())
}

func listen(t testing.TB, nsPath string, addr netip.Addr) (l net.Listener) {
	t.Helper()
	within(t, nsPath, func() (err error) {
		l, err = net.Listen("tcp", netip.AddrPortFrom(addr, 0).String())
		return err
	})
	return l
}

func dial(t testing.TB, nsPath, to string) (out error) {
	t.Helper()
	within(t, nsPath, func() error {
		conn, err := net.DialTimeout("tcp", to, 30*time.Second)
		if out = err; err == nil {
			return conn.Close()
		}
		return nil
	})
	return out
}

func within(t testing.TB, nsPath string, fn func() error) {
	t.Helper()
	ns, err := netns.Open(nsPath)
	must(t, err)
	defer ns.Close() //nolint:errcheck // read only
	must(t, ns.Do(fn))
}

// parent makes a parent link for macvlan: a veth whose other end is up.
func (n *node) parent(name string) {
	c := conn(n, "")
	must(n, c.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name + "p"}))
	for _, end := range []string{name, name + "p"} {
		l, err := c.LinkByName(end)
		must(n, err)
		must(n, c.LinkSetUp(l))
	}
	n.Cleanup(func() {
		l, err := c.LinkByName(name)
		if nl.IsNotFound(err) { // the kernel deleted it with the namespace of its other end
			return
		}
		must(n, err)
		if err := c.LinkDel(l); !nl.IsNotFound(err) {
			must(n, err)
		}
	})
}

func asJSON(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		return err.Error()
	}
	return string(data)
}
