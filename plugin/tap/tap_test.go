// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package tap

import (
	"encoding/json"
	"net"
	"os"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/test/endpointtest"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/hostlocal"
	"github.com/patchbay-net/patchbay/plugin/plugintest"
	"github.com/patchbay-net/patchbay/plugin/static"
	"github.com/patchbay-net/patchbay/spec"
)

func TestMain(m *testing.M) { plugintest.Main(m, &Plugin, &hostlocal.Plugin) }

func TestContract(t *testing.T) {
	nettest.Need(t, nettest.Tun())
	full := plugintest.Subject(t, "tap")
	layer2 := full
	layer2.Name, layer2.L2, layer2.Refused = "layer2", true, nil
	layer2.Conf = map[string]json.RawMessage{"type": json.RawMessage(`"tap"`), "mtu": json.RawMessage("1300")}
	for _, s := range []plugintest.Case{{Subject: full}, {Subject: layer2}} {
		s.Delegates = []*plugin.Plugin{&hostlocal.Plugin}
		plugintest.Run(t, &Plugin, s)
	}
}

// DEL and GC leave nothing, even after a kill -9 at any moment.
func TestAlone(t *testing.T) {
	nettest.Need(t, nettest.Tun())
	endpointtest.Child{Plugins: []*plugin.Plugin{&Plugin, &hostlocal.Plugin, &static.Plugin}, Conf: `"mtu": 1400, `}.RunAlone(t)
}

func newWorld(t *testing.T) *endpointtest.World {
	nettest.Need(t, nettest.Tun())
	return endpointtest.New(t, &Plugin, &hostlocal.Plugin, &static.Plugin)
}

const mac = "02:11:22:33:44:55"

// TestEveryPath sets MAC, MTU, owner, group and queues in every combination, and the tap has them
// all. The reference makes the tap in three ways; one of them loses MAC and MTU.
func TestEveryPath(t *testing.T) {
	w := newWorld(t)
	for name, conf := range map[string]string{
		"none":  `"mtu": 1400, "mac": "` + mac + `"`,
		"user":  `"mtu": 1400, "mac": "` + mac + `", "owner": 12`,
		"both":  `"mtu": 1400, "mac": "` + mac + `", "owner": 12, "group": 34`,
		"multi": `"mtu": 1400, "mac": "` + mac + `", "group": 34, "multiQueue": true`,
	} {
		for _, ipam := range []string{"", ", " + endpointtest.Static("10.9.0.5/24 10.9.0.1")} {
			p := w.Pod(name+map[bool]string{true: "2", false: "3"}[ipam == ""], conf+ipam).Add()
			tap := p.Link("eth0").(*netlink.Tuntap)
			want := map[string][3]uint32{"none": {^uint32(0), ^uint32(0)}, "user": {12, ^uint32(0)}, "both": {12, 34}, "multi": {^uint32(0), 34, 1}}[name]
			if got := [3]uint32{id(tap.Owner), id(tap.Group), uint32(tap.Flags&netlink.TUNTAP_MULTI_QUEUE) >> 8}; got != want {
				t.Errorf("%s: owner, group, queues %v, want %v", name, got, want)
			}
			if tap.NonPersist || tap.MTU != 1400 || tap.HardwareAddr.String() != mac || tap.LinkAttrs.Flags&net.FlagUp == 0 {
				t.Errorf("%s: %+v", name, tap)
			}
			if i := p.Result.Interfaces[0]; i.Mac != mac || i.MTU != 1400 || i.Name != "eth0" || i.Sandbox != p.Path {
				t.Errorf("%s: result has %+v", name, i)
			}
			endpointtest.Must(t, p.Do(spec.Check))
		}
	}
}

// id is the library's form of an id that is not set.
func id(n uint32) uint32 {
	if n == 0 {
		return ^uint32(0)
	}
	return n
}

// TestMAC checks which of several MACs wins. Without any, a repeated ADD gets the same MAC.
func TestMAC(t *testing.T) {
	w := newWorld(t)
	p := w.Pod("a", `"mac": "02:00:00:00:00:01"`)
	p.Call.Args = "IgnoreUnknown=1;MAC=02:00:00:00:00:02"
	endpointtest.Must(t, p.Do(spec.Add))
	w.Want("CNI_ARGS", p.Result.Interfaces[0].Mac, "02:00:00:00:00:02")
	endpointtest.Must(t, p.Do(spec.Del))
	p.Conf += `, "runtimeConfig": {"mac": "02:00:00:00:00:03"}`
	endpointtest.Must(t, p.Do(spec.Add))
	w.Want("runtimeConfig", p.Result.Interfaces[0].Mac, "02:00:00:00:00:03")
	endpointtest.Must(t, p.Do(spec.Del))
	q := w.Pod("b", `"args": {"cni": {"anything": 1}}`).Add()
	first := q.Result.Interfaces[0].Mac
	endpointtest.Must(t, q.Do(spec.Del))
	endpointtest.Must(t, q.Do(spec.Add))
	w.Want("tried again", q.Result.Interfaces[0].Mac, first)
}

// A program opens the tap and receives the frames.
func TestOpen(t *testing.T) {
	w := newWorld(t)
	p := w.Pod("a", endpointtest.Static("10.9.0.5/24 10.9.0.1")).Add()
	var f *os.File
	endpointtest.Must(t, p.Space.Do(func() (err error) {
		f, err = openTap("eth0")
		return err
	}))
	defer f.Close() //nolint:errcheck // test
	endpointtest.Must(t, p.Space.Do(func() error {
		c, err := net.Dial("udp", "10.9.0.9:9")
		if err != nil {
			return err
		}
		defer c.Close() //nolint:errcheck // test
		_, err = c.Write([]byte("x"))
		return err
	}))
	endpointtest.Must(t, f.SetReadDeadline(time.Now().Add(time.Minute)))
	for buf := make([]byte, 2000); ; {
		n, err := f.Read(buf)
		endpointtest.Must(t, err)
		if n >= 42 && buf[12] == 8 && buf[13] == 6 && net.IP(buf[38:42]).String() == "10.9.0.9" {
			return // the ARP request for the neighbour
		}
	}
}

func openTap(name string) (*os.File, error) {
	fd, err := unix.Open("/dev/net/tun", unix.O_RDWR|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	req, err := unix.NewIfreq(name)
	if err != nil {
		return nil, err
	}
	req.SetUint16(unix.IFF_TAP | unix.IFF_NO_PI)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, req); err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

func TestBridge(t *testing.T) {
	w := newWorld(t)
	p := w.Pod("a", `"bridge": "br0"`)
	p.Refused("failed to get bridge br0")
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "br0"
	endpointtest.Must(t, p.Conn().LinkAdd(&netlink.Bridge{LinkAttrs: attrs}))
	p.Add()
	if got, want := p.Link("eth0").Attrs().MasterIndex, p.Link("br0").Attrs().Index; got != want {
		t.Errorf("master is %d, want %d", got, want)
	}
	endpointtest.Must(t, p.Do(spec.Check))
	endpointtest.Must(t, p.Conn().LinkSetNoMaster(p.Link("eth0")))
	w.Fails(p.Do(spec.Check), "tap eth0 is not a port of bridge br0")
	other := w.Pod("b", `"bridge": "lo"`)
	other.Refused("failed to set tap eth0 as a port of bridge lo")
	if _, err := other.Conn().Link("eth0"); !nl.IsNotFound(err) {
		t.Error("the tap stays after a failed ADD:", err)
	}
}

func TestCheck(t *testing.T) {
	nettest.Need(t, nettest.Tun())
	conf := `"mtu": 1400, "owner": 5, ` + endpointtest.Static("10.9.0.5/24 10.9.0.1") + `, "x": 0`
	for text, damage := range map[string]func(p *endpointtest.Pod) error{
		"has MTU 1300 instead of 1400": func(p *endpointtest.Pod) error { return p.Conn().LinkSetMTU(p.Link("eth0"), 1300) },
		"doesn't match container Mac": func(p *endpointtest.Pod) error {
			return p.Conn().LinkSetHardwareAddr(p.Link("eth0"), net.HardwareAddr{2, 0, 0, 0, 0, 9})
		},
		"Interface eth0 is down":           func(p *endpointtest.Pod) error { return p.Conn().LinkSetDown(p.Link("eth0")) },
		"Failed to match addr 10.9.0.5/24": func(p *endpointtest.Pod) error { return p.Conn().AddrDel(p.Link("eth0"), address(t, "10.9.0.5/24")) },
		"owner 5 instead of 6":             func(p *endpointtest.Pod) error { p.Conf += `, "owner": 6`; return nil },
		"multiple queues of tap eth0":      func(p *endpointtest.Pod) error { p.Conf += `, "multiQueue": true`; return nil },
		"prevResult: eth0 not found":       func(p *endpointtest.Pod) error { return p.Conn().LinkDel(p.Link("eth0")) },
		"doesn't match configured netns":   func(p *endpointtest.Pod) error { p.Result.Interfaces[0].Sandbox = "/run/netns/client"; return nil },
		"Container interface eth0 not of type tap": func(p *endpointtest.Pod) error {
			attrs := netlink.NewLinkAttrs()
			attrs.Name, attrs.HardwareAddr = "eth0", p.Link("eth0").Attrs().HardwareAddr
			if err := p.Conn().LinkDel(p.Link("eth0")); err != nil {
				return err
			}
			return p.Conn().LinkAdd(&netlink.Bridge{LinkAttrs: attrs})
		},
	} {
		t.Run(text, func(t *testing.T) {
			w := newWorld(t)
			p := w.Pod("a", conf).Add()
			endpointtest.Must(t, p.Do(spec.Check))
			endpointtest.Must(t, damage(p))
			w.Fails(p.Do(spec.Check), text)
		})
	}
	w := newWorld(t)
	w.Fails(w.Pod("b", conf).Do(spec.Check), "Required prevResult missing")
}

func address(t *testing.T, s string) *netlink.Addr {
	t.Helper()
	a, err := netlink.ParseAddr(s)
	endpointtest.Must(t, err)
	return a
}
