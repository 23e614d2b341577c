// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/vishvananda/netlink"
	vnetns "github.com/vishvananda/netns"

	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/netns"
	"github.com/patchbay-net/patchbay/spec"
)

// stateIn reads the links, addresses, routes and rules inside a namespace.
func stateIn(path string) (s snapshot, err error) {
	err = inside(path, func() error {
		s, err = observe("/nonexistent") // a directory that does not exist; the files of the host are counted elsewhere
		return err
	})
	return s, err
}

func inside(path string, fn func() error) error {
	ns, err := netns.Open(path)
	if err != nil {
		return err
	}
	defer ns.Close() //nolint:errcheck // read only
	return ns.Do(fn)
}

// veth makes a veth pair between the host and the attachment's namespace. It returns the result
// that an interface plugin would print for this pair. Each number leads to different addresses.
func (w *World) veth(a *Container, p *Prev, number int) *spec.Result {
	t := w.t
	t.Helper()
	host := a.ContainerID[:12]
	w.diary.did("ip link add %s type veth peer name %s netns %s; ip link set %s up; ip -n %s link set %s up", host, a.IfName, a.ContainerID, host, a.ContainerID, a.IfName)
	ns, err := vnetns.GetFromPath(a.NetNS)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close() //nolint:errcheck // read only
	attrs := netlink.NewLinkAttrs()
	attrs.Name = host
	link := &netlink.Veth{LinkAttrs: attrs, PeerName: a.IfName, PeerNamespace: netlink.NsFd(ns)}
	if err := netlink.LinkAdd(link); err != nil {
		t.Fatalf("make veth %s: %v", host, err)
	}
	t.Cleanup(func() { _ = netlink.LinkDel(link) }) // fails if the namespace was deleted before
	if err := netlink.LinkSetUp(link); err != nil {
		t.Fatalf("set %s up: %v", host, err)
	}
	r := &spec.Result{Interfaces: []spec.Interface{{Name: host}, {Name: a.IfName, Sandbox: a.NetNS}}}
	if err := inside(a.NetNS, func() error { return configure(r, a, p, number) }); err != nil {
		t.Fatalf("configure %s: %v", a.IfName, err)
	}
	for _, ip := range r.IPs {
		w.diary.did("ip -n %s address add %s dev %s nodad", a.ContainerID, ip.Address, a.IfName)
	}
	if l, err := netlink.LinkByName(host); err == nil {
		describe(&r.Interfaces[0], l)
	}
	return r
}

// need skips the test if this kernel does not support the subject.
func (s *Subject) need(t testing.TB) {
	t.Helper()
	if s.Needs != "" {
		nettest.Need(t, nettest.LinkKind(s.Needs))
	}
}

// host makes what the subject needs on the host. The master is up, has carrier and has no address.
// At the end of the test the master must still exist.
func (w *World) host(t testing.TB) {
	t.Helper()
	s := &w.suite.Subject
	if s.Master != "" {
		w.device(t, s.Master, s.Master, "pb-peer0")
		t.Cleanup(func() {
			if _, err := netlink.LinkByName(s.Master); err != nil {
				t.Errorf("master %s: %v", s.Master, err)
			}
		})
	}
	for _, name := range s.Devices {
		w.device(t, name, name+"p")
	}
}

// device makes a veth pair on the host and sets the links in ends up. One end of the pair is name,
// and the other end is the last of ends. If an earlier script left the device in a namespace, the
// kernel needs some time to delete the device with that namespace.
func (w *World) device(t testing.TB, name string, ends ...string) {
	t.Helper()
	if _, err := netlink.LinkByName(name); err == nil {
		return
	}
	other := ends[len(ends)-1]
	w.diary.did("ip link add %s type veth peer name %s", name, other)
	for _, end := range ends {
		w.diary.did("ip link set %s up", end)
	}
	if old, err := netlink.LinkByName(other); err == nil {
		_ = netlink.LinkDel(old) // fails if the kernel has just deleted the device
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	link := &netlink.Veth{LinkAttrs: attrs, PeerName: other}
	if err := netlink.LinkAdd(link); err != nil {
		t.Fatalf("make device %s: %v", name, err)
	}
	t.Cleanup(func() { _ = netlink.LinkDel(link) }) // fails if a namespace was deleted before
	for _, end := range ends {
		_ = os.WriteFile(filepath.Join("/proc/sys/net/ipv6/conf", end, "disable_ipv6"), []byte("1"), 0) // fails if the kernel has no IPv6
		l, err := netlink.LinkByName(end)
		if err == nil {
			err = netlink.LinkSetUp(l)
		}
		if err != nil {
			t.Fatalf("set %s up: %v", end, err)
		}
	}
}

// configure runs in the container's namespace. It adds addresses and default routes and sets the
// link up.
func configure(r *spec.Result, a *Container, p *Prev, number int) error {
	link, err := netlink.LinkByName(a.IfName)
	if err != nil {
		return err
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return err
	}
	describe(&r.Interfaces[1], link)
	for _, prefix := range p.Addresses {
		for range number {
			prefix = netip.PrefixFrom(prefix.Addr().Next(), prefix.Bits())
		}
		ipnet := &net.IPNet{IP: prefix.Addr().AsSlice(), Mask: net.CIDRMask(prefix.Bits(), prefix.Addr().BitLen())}
		const nodad = 0x2
		if err := netlink.AddrAdd(link, &netlink.Addr{IPNet: ipnet, Flags: nodad}); err != nil {
			return err
		}
		index := 1
		ip := spec.IPConfig{Interface: &index, Address: prefix}
		for _, gw := range p.Gateways {
			if gw.Is4() == prefix.Addr().Is4() {
				ip.Gateway = gw
			}
		}
		r.IPs = append(r.IPs, ip)
	}
	return nil
}

// describe fills in what a result says of a link, so that a plugin that changes the link must change the result.
func describe(i *spec.Interface, link netlink.Link) {
	i.Mac, i.MTU = link.Attrs().HardwareAddr.String(), link.Attrs().MTU
}

// damage changes an attachment so that CHECK must fail. how is a value of Subject.Break.
func (w *World) damage(how string, a *Container) error {
	in := "ip -n " + a.ContainerID
	switch how {
	case "down":
		w.diary.did("%s link set %s down", in, a.IfName)
	case "address":
		w.diary.did("%s address flush dev %s scope global", in, a.IfName)
	default:
		w.diary.did("%s link delete %s", in, a.IfName)
	}
	return inside(a.NetNS, func() error {
		link, err := netlink.LinkByName(a.IfName)
		if err != nil {
			return err
		}
		switch how {
		case "down":
			return netlink.LinkSetDown(link)
		case "address":
			return dropAddresses(link)
		}
		return netlink.LinkDel(link)
	})
}

func dropAddresses(link netlink.Link) error {
	addrs, err := nl.Retry(func() ([]netlink.Addr, error) { return netlink.AddrList(link, netlink.FAMILY_ALL) })
	if err != nil {
		return err
	}
	for _, a := range addrs {
		if a.Scope != int(netlink.SCOPE_LINK) {
			if err := netlink.AddrDel(link, &a); err != nil {
				return err
			}
		}
	}
	return nil
}
