// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hostdevice

import (
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/test/endpointtest"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/hostlocal"
	"github.com/patchbay-net/patchbay/plugin/static"
	"github.com/patchbay-net/patchbay/spec"
)

// world is a node with devices.
type world struct {
	*endpointtest.World
	was map[string]string // the devices' original properties
}

const (
	mac0 = "02:00:00:00:08:01"
	mac1 = "02:00:00:00:08:02"
)

func newWorld(t *testing.T, more ...*plugin.Plugin) *world {
	plugins := append([]*plugin.Plugin{&Plugin, &hostlocal.Plugin, &static.Plugin}, more...)
	w := &world{endpointtest.New(t, plugins...), map[string]string{}}
	w.device("hd0", mac0)
	return w
}

// device makes a device of the host with every property that it could lose.
func (w *world) device(name, mac string) {
	w.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.HardwareAddr = name, 1400, mustMAC(mac)
	endpointtest.Must(w, w.HostConn().LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: name + "p"}))
	w.Cleanup(func() { w.Host.Delete(name + "p") })
	endpointtest.Must(w, w.HostConn().LinkSetAlias(w.HostLink(name), "to rack 7"))
	w.Host.Up(name + "p")
	n := string(rune(mac[len(mac)-1]))
	w.Host.Address(name, "10.8."+n+".1/24", "fd08:"+n+"::1/64")
	w.Host.Route("10.8"+n+".0.0/16", "10.8."+n+".2")
	w.Host.Route("fd8"+n+"::/32", "fd08:"+n+"::2")
	w.was[name] = w.facts(name)
}

func mustMAC(s string) net.HardwareAddr {
	mac, err := net.ParseMAC(s)
	if err != nil {
		panic(err)
	}
	return mac
}

// facts returns the properties of a device as text, without its index.
func (w *world) facts(name string) string {
	w.Helper()
	d, err := describe(w.HostConn(), "/sys", w.HostLink(name))
	endpointtest.Must(w, err)
	d.Index = 0
	text, err := json.MarshalIndent(d, "", " ")
	endpointtest.Must(w, err)
	return string(text)
}

// isHome expects a device to be unchanged.
func (w *world) isHome(when, name string) {
	w.Helper()
	if _, err := w.HostConn().Link(name); err != nil {
		w.Fatalf("%s: %v", when, err)
	}
	if d := cmp.Diff(w.was[name], w.facts(name)); d != "" {
		w.Errorf("%s: %s came home changed:\n%s", when, name, d)
	}
	if left := records(w.T); len(left) > 0 {
		w.Errorf("%s: records left: %q", when, left)
	}
}

func records(t *testing.T) []string {
	t.Helper()
	left, err := filepath.Glob("/run/patchbay/attachments/*/*")
	endpointtest.Must(t, err)
	return left
}

// pod is a container that gets hd0.
func (w *world) pod(name string) *endpointtest.Pod {
	w.Helper()
	return w.Pod(name, `"device": "hd0", `+endpointtest.Static("10.9.0.5/24 10.9.0.1", "fd09::5/64"))
}

// collect is a GC of everything.
func collect(p *endpointtest.Pod) error {
	conf := p.Conf
	defer func() { p.Conf = conf }()
	p.Conf += `, "cni.dev/valid-attachments": []`
	return p.Do(spec.GC)
}

// giveBack ends the namespace, and does by hand what the kernel then does with a real device. The
// test's device is virtual, so the kernel would delete it.
func (w *world) giveBack(p *endpointtest.Pod, as string) {
	w.Helper()
	host, err := os.Open("/proc/thread-self/ns/net")
	endpointtest.Must(w, err)
	defer host.Close() //nolint:errcheck // test
	endpointtest.Must(w, p.Conn().SetLink(p.Link("eth0").Attrs().Index, nl.LinkChange{NetNS: int(host.Fd()), Name: as}))
	endpointtest.Must(w, unix.Unmount(p.Path, unix.MNT_DETACH))
	endpointtest.Must(w, os.Remove(p.Path))
}
