// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hostdevice

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/test/endpointtest"
	"github.com/patchbay-net/patchbay/internal/test/reftest"
	"github.com/patchbay-net/patchbay/invoke"
	"github.com/patchbay-net/patchbay/spec"
)

// CHECK reports each change.
func TestCheck(t *testing.T) {
	index := func(p *endpointtest.Pod) int { return p.Link("eth0").Attrs().Index }
	for text, damage := range map[string]func(p *endpointtest.Pod) error{
		"doesn't match container Mac": func(p *endpointtest.Pod) error {
			return p.Conn().SetLink(index(p), nl.LinkChange{MAC: mustMAC("02:00:00:00:00:99")})
		},
		"Interface eth0 is down":          func(p *endpointtest.Pod) error { return p.Conn().SetLink(index(p), nl.LinkChange{Down: true}) },
		"Failed to match addr fd09::5/64": func(p *endpointtest.Pod) error { return p.Conn().AddrDel(p.Link("eth0"), address("fd09::5/64")) },
		"prevResult: eth0 not found":      func(p *endpointtest.Pod) error { return p.Conn().LinkDel(p.Link("eth0")) },
		"eth0 is not device hd0 of the host": func(p *endpointtest.Pod) error {
			mac := p.Link("eth0").Attrs().HardwareAddr
			if err := p.Conn().LinkDel(p.Link("eth0")); err != nil {
				return err
			}
			impostor := &netlink.Bridge{LinkAttrs: attrs("eth0")}
			impostor.HardwareAddr = mac
			return p.Conn().LinkAdd(impostor)
		},
		"doesn't match configured netns": func(p *endpointtest.Pod) error {
			p.Result.Interfaces[0].Sandbox = "/run/netns/client"
			return nil
		},
	} {
		t.Run(text, func(t *testing.T) {
			w := newWorld(t)
			p := w.pod("a").Add()
			endpointtest.Must(t, p.Do(spec.Check))
			endpointtest.Must(t, damage(p))
			w.Fails(p.Do(spec.Check), text)
		})
	}
	w := newWorld(t)
	w.Fails(w.pod("b").Do(spec.Check), "Required prevResult missing")
}

func address(s string) *netlink.Addr {
	a, err := netlink.ParseAddr(s)
	if err != nil {
		panic(err)
	}
	return a
}

// A container ended without a DEL. The next ADD finds the device, by its name and by its address.
// In the end the device comes back with its original properties.
func TestNextADDHeals(t *testing.T) {
	w := newWorld(t)
	for n, conf := range []string{`"device": "hd0"`, `"hwaddr": "` + mac0 + `"`} {
		first := w.Pod(fmt.Sprint("first", n), conf)
		endpointtest.Must(t, first.Do(spec.Add))
		w.giveBack(first, "eth0")
		second := w.Pod(fmt.Sprint("second", n), conf)
		endpointtest.Must(t, second.Do(spec.Add))
		endpointtest.Must(t, second.Do(spec.Check))
		endpointtest.Must(t, first.Do(spec.Del)) // a late DEL
		endpointtest.Must(t, second.Do(spec.Check))
		endpointtest.Must(t, second.Do(spec.Del))
		w.isHome(conf, "hd0")
	}
}

// An ADD fails. Its DEL does not move another attachment's device.
func TestRefusedTakesNothing(t *testing.T) {
	w := newWorld(t)
	w.device("hd1", mac1)
	p := w.pod("a").Add()
	other := w.Pod("b", `"device": "hd1"`)
	other.Call.NetNS, other.Call.ContainerID = p.Path, "a"
	other.Conf = strings.Replace(other.Conf, `"net"`, `"othernet"`, 1)
	other.Refused(`failed to move link: the container has an interface "eth0"`)
	endpointtest.Must(t, other.Do(spec.Del))
	endpointtest.Must(t, p.Do(spec.Check))
	p.Refused("device hd0 of this attachment is in " + p.Path)
	endpointtest.Must(t, p.Do(spec.Check))
}

// A second ADD of an attachment uses another namespace and another device. It does not forget the
// first device, and DEL finds the device wherever it is.
func TestOtherNamespace(t *testing.T) {
	w := newWorld(t)
	w.device("hd1", mac1)
	p := w.pod("a")
	endpointtest.Must(t, p.Do(spec.Add))
	other := w.Pod("b", `"device": "hd1"`)
	other.Call.ContainerID = p.Call.ContainerID
	other.Refused("device hd0 of this attachment is in " + p.Path)
	endpointtest.Must(t, p.Do(spec.Check))
	endpointtest.Must(t, other.Do(spec.Del))
	w.isHome("DEL by another namespace", "hd0")
	w.isHome("", "hd1")

	endpointtest.Must(t, p.Do(spec.Add))
	w.giveBack(p, "eth0")
	endpointtest.Must(t, other.Do(spec.Add)) // a new sandbox, and another device
	endpointtest.Must(t, other.Do(spec.Del))
	w.isHome("the next ADD", "hd0")
	w.isHome("", "hd1")
}

// The record is lost. CHECK works, and DEL still returns the device with its original name and
// address.
func TestRecordLost(t *testing.T) {
	w := newWorld(t)
	p := w.pod("a")
	endpointtest.Must(t, p.Do(spec.Add))
	w.LoseRecords()
	endpointtest.Must(t, p.Do(spec.Check))
	endpointtest.Must(t, p.Do(spec.Del))
	if link := w.HostLink("hd0"); link.Attrs().HardwareAddr.String() != mac0 || link.Attrs().Alias != "" {
		t.Errorf("%+v", link.Attrs())
	}
}

// The result has IPAM's DNS, unless the configuration has its own.
func TestDNS(t *testing.T) {
	w := newWorld(t)
	conf := `"device": "hd0", "ipam": {"type": "static", "addresses": [{"address": "10.9.0.5/24"}], "dns": {"nameservers": ["10.9.0.1"]}}`
	p := w.Pod("a", conf).Add()
	w.Want("IPAM's", strings.Join(p.Result.DNS.Nameservers, " "), "10.9.0.1")
	endpointtest.Must(t, p.Do(spec.Del))
	p = w.Pod("b", conf+`, "dns": {"domain": "x"}`).Add()
	w.Want("the configuration's", strings.Join(p.Result.DNS.Nameservers, " ")+p.Result.DNS.Domain, "x")
}

// reference calls the reference plugin.
func reference(t *testing.T, p *endpointtest.Pod, verb spec.Verb) error {
	t.Helper()
	dir := reftest.Plugins(t)
	call := p.Call
	call.Verb, call.Path, call.Config = verb, []string{dir}, []byte("{"+p.Conf+"}")
	out, err := (&invoke.Exec{}).Run(t.Context(), filepath.Join(dir, name), &call)
	if err == nil && verb == spec.Add {
		p.Result, err = spec.ParseResult(out, "1.1.0")
	}
	return err
}

// The reference moved a device, and we return it, with the result that the reference would give.
// The reference returns our device, and GC restores the properties that the reference does not
// know.
func TestSwap(t *testing.T) {
	for how, letGo := range map[string]func(w *world, p *endpointtest.Pod) error{
		"DEL":       func(_ *world, p *endpointtest.Pod) error { return p.Do(spec.Del) },
		"no result": func(_ *world, p *endpointtest.Pod) error { p.Result = nil; return p.Do(spec.Del) },
		"again":     func(_ *world, p *endpointtest.Pod) error { _ = p.Do(spec.Del); return p.Do(spec.Del) },
		"namespace": func(w *world, p *endpointtest.Pod) error { w.giveBack(p, "eth0"); return p.Do(spec.Del) },
	} {
		t.Run(how, func(t *testing.T) {
			w := newWorld(t)
			p := w.pod("a")
			endpointtest.Must(t, reference(t, p, spec.Add))
			endpointtest.Must(t, p.Do(spec.Check))
			endpointtest.Must(t, letGo(w, p))
			if how == "namespace" {
				w.HostLink("eth0") // the kernel never returns a virtual device
				w.Host.Delete("eth0")
				return
			}
			if link := w.HostLink("hd0"); link.Attrs().Alias != "" || link.Attrs().HardwareAddr.String() != mac0 {
				t.Errorf("%+v", link.Attrs())
			}
		})
	}
	w := newWorld(t)
	p := w.pod("a")
	endpointtest.Must(t, p.Do(spec.Add))
	endpointtest.Must(t, reference(t, p, spec.Del))
	w.HostLink("hd0")
	endpointtest.Must(t, collect(p))
	if left := records(t); len(left) > 0 {
		t.Error(left)
	}
}
