// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package wire builds hosts for tests of what leaves a host: each has a namespace of its own, and devices to the others.
// A test reads the packets there. Use it below nettest.Main.
package wire

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/netns"
)

// Uplink is the device at which packets leave a host.
const Uplink = "up0"

const (
	dialTime = 2 * time.Second  // limits a connection that may be refused
	patience = 20 * time.Second // limits one that exists
)

// Host is a host.
type Host struct {
	Conn   *nl.Conn
	Number int

	t testing.TB
}

func (h *Host) must(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

// New makes a host. Its namespace ends with the test.
func New(t testing.TB, number int) *Host {
	t.Helper()
	h := &Host{Number: number, t: t}
	ns, err := netns.Open(nettest.NewNS(t, fmt.Sprint("wire", number)))
	h.must(err)
	h.Conn, err = nl.In(ns, "/proc")
	h.must(err)
	t.Cleanup(h.Conn.Close)
	return h
}

// Give sets a link up and gives it addresses, which can be used at once.
func (h *Host) Give(link string, addrs ...string) {
	h.t.Helper()
	l, err := h.Conn.Link(link)
	h.must(err)
	h.must(h.Conn.LinkSetUp(l))
	for _, text := range addrs {
		a, err := netlink.ParseAddr(text)
		h.must(err)
		if a.IP.To4() == nil {
			a.Flags = unix.IFA_F_NODAD
		}
		h.must(h.Conn.AddrAdd(l, a))
	}
}

// Cable joins two hosts by a device with this name in each. In each subnet, a host has the address with its number.
func Cable(a, b *Host, link string, subnets ...string) {
	a.t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = link
	a.must(a.Conn.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: link, PeerNamespace: netlink.NsFd(b.Conn.NS.Fd())}))
	for _, h := range []*Host{a, b} {
		h.Give(link)
		for _, text := range subnets {
			s := netip.MustParsePrefix(text)
			h.Give(link, netip.PrefixFrom(numbered(s, h.Number), s.Bits()).String())
		}
	}
}

// Uplinks joins two hosts by Uplink, and gives each a default route to the other in each subnet.
func Uplinks(a, b *Host, subnets ...string) {
	a.t.Helper()
	Cable(a, b, Uplink, subnets...)
	for h, other := range map[*Host]*Host{a: b, b: a} {
		for _, text := range subnets {
			via, all := numbered(netip.MustParsePrefix(text), other.Number), netip.PrefixFrom(netip.IPv4Unspecified(), 0)
			if via.Is6() {
				all = netip.PrefixFrom(netip.IPv6Unspecified(), 0)
			}
			h.must(h.Conn.RouteAdd(&netlink.Route{Dst: nl.IPNet(all), Gw: via.AsSlice()}))
		}
	}
}

// numbered returns the address of a subnet with a number.
func numbered(s netip.Prefix, number int) netip.Addr {
	raw := s.Masked().Addr().AsSlice()
	raw[len(raw)-1] = byte(number)
	a, _ := netip.AddrFromSlice(raw)
	return a
}

// Capture reads the IP packets on the host's uplink until the caller calls the result.
func (h *Host) Capture() func() [][]byte {
	h.t.Helper()
	var fd int
	h.must(h.Conn.Do(func() (err error) {
		all := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL))
		if fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, int(all)); err != nil {
			return err
		}
		link, err := h.Conn.Link(Uplink)
		if err != nil {
			return err
		}
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: link.Attrs().Index})
	}))
	return func() (list [][]byte) {
		defer unix.Close(fd) //nolint:errcheck // a test
		for {
			buf := make([]byte, 1<<16)
			size, _, err := unix.Recvfrom(fd, buf, unix.MSG_DONTWAIT)
			if err != nil {
				return list
			}
			list = append(list, buf[:size])
		}
	}
}

// Readable counts the packets that contain one of the texts.
func Readable(packets [][]byte, texts ...[]byte) (n int) {
	for _, p := range packets {
		if slices.ContainsFunc(texts, func(x []byte) bool { return bytes.Contains(p, x) }) {
			n++
		}
	}
	return n
}

// Send sends a text over TCP from an address of this host to one of another host. An address that is not valid means
// that the kernel chooses.
func (h *Host) Send(from netip.Addr, to *Host, at netip.Addr, text string) error {
	var l net.Listener
	var c net.Conn
	if err := to.Conn.Do(func() (err error) {
		config := net.ListenConfig{Control: freeBind}
		l, err = config.Listen(context.Background(), "tcp", net.JoinHostPort(at.String(), "0"))
		return err
	}); err != nil {
		return err
	}
	defer l.Close() //nolint:errcheck // a test
	if err := h.Conn.Do(func() (err error) {
		d := net.Dialer{Timeout: dialTime, FallbackDelay: -1}
		if from.IsValid() {
			d.LocalAddr = &net.TCPAddr{IP: from.AsSlice()}
		}
		c, err = d.Dial("tcp", l.Addr().String())
		return err
	}); err != nil {
		return err
	}
	defer c.Close() //nolint:errcheck // a test
	far, err := l.Accept()
	if err != nil {
		return err
	}
	defer far.Close() //nolint:errcheck // a test
	return carry(c, far, text)
}

// carry sends a text from one end of a connection to the other.
func carry(c, far net.Conn, text string) error {
	end := time.Now().Add(patience)
	if err := errors.Join(c.SetDeadline(end), far.SetDeadline(end)); err != nil {
		return err
	}
	if _, err := io.WriteString(c, text); err != nil {
		return err
	}
	got := make([]byte, len(text))
	if _, err := io.ReadFull(far, got); err != nil || string(got) != text {
		return fmt.Errorf("got %q: %w", got, err)
	}
	return nil
}

// freeBind lets a program listen at an address that the host does not have.
func freeBind(network, _ string, c syscall.RawConn) (err error) {
	level, option := unix.SOL_IP, unix.IP_FREEBIND
	if network == "tcp6" {
		level, option = unix.SOL_IPV6, unix.IPV6_FREEBIND
	}
	return errors.Join(c.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), level, option, 1) }), err)
}
