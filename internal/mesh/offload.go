// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nl"
)

// tunnelEnd is a peer's end of a tunnel: its link-local address on our VXLAN device.
type tunnelEnd struct {
	device string
	hop    netip.Addr
}

// tunnelEnds returns the peers' ends that answer. These are the ends with a link-local address.
func (s State) tunnelEnds() (list []tunnelEnd) {
	for _, d := range s.Devices {
		for _, t := range d.Tunnels {
			if !d.NoIPv6 {
				list = append(list, tunnelEnd{d.Name, NextHop(t.MAC)})
			}
		}
	}
	return list
}

// offloads tests whether TCP passes tunnels while the checksum is left to the last step. Some
// kernels and network cards corrupt the checksum of packets within UDP. Then echo requests pass,
// but each TCP connection hangs. The peer's kernel answers both; its agent is not needed.
type offloads struct {
	conn   *nl.Conn
	warn   func(error)
	echo   *echo
	tested map[testedEnd]bool // by this process; the kernel keeps an offload that was turned off
}

// testedEnd is an end on one device. A device that is made again has another index, and its offload
// is on again.
type testedEnd struct {
	tunnelEnd
	index int
}

// ErrOffload means that the checksum offload of a device was turned off. A warning wraps it.
var ErrOffload = errors.New("the kernel or the network card of one of the hosts is broken")

// run tests the ends that have not been tested.
func (o *offloads) run(ctx context.Context, ends []tunnelEnd) {
	for _, e := range ends {
		at := testedEnd{tunnelEnd: e}
		link, err := o.conn.Link(e.device)
		if err == nil {
			at.index = link.Attrs().Index
		}
		if o.tested[at] || ctx.Err() != nil {
			continue
		}
		if err == nil {
			o.tested[at], err = o.test(ctx, e, at.index)
		}
		if err != nil && !nl.IsNotFound(err) {
			o.tested[at] = true // otherwise the same error would come each time
			o.warn(fmt.Errorf("test checksum offload of %s: %w", e.device, err))
		}
	}
}

// test tests one end. If the end does not answer, done is false. If TCP passes only without the
// offload, the offload is the reason and stays off. Otherwise a firewall may be the reason.
func (o *offloads) test(ctx context.Context, e tunnelEnd, index int) (done bool, err error) {
	if !o.alive(ctx, e, index) {
		return false, nil
	}
	if tcpAnswers(ctx, e, index) {
		return true, nil
	}
	on, err := o.conn.TxChecksum(e.device)
	if err != nil || !on || !o.alive(ctx, e, index) {
		return !on, err // without the offload, a firewall is the reason
	}
	if err := o.conn.SetTxChecksum(e.device, false); err != nil {
		return false, err
	}
	if tcpAnswers(ctx, e, index) {
		o.warn(fmt.Errorf("checksum offload of %s is turned off: TCP to %s passes only without it, so %w. "+
			"A newer kernel may help; the offload is back when the device is made again, as after a reboot", e.device, e.hop, ErrOffload))
		return true, nil
	}
	return ctx.Err() == nil, o.conn.SetTxChecksum(e.device, true)
}

// alive reports whether the end answers an echo request through the tunnel.
func (o *offloads) alive(ctx context.Context, e tunnelEnd, index int) bool {
	p := &probe{to: e.hop, zone: index, uplink: minMTU, low: smallProbe, high: minMTU}
	for range rounds {
		o.echo.ask(p)
		o.echo.listen(ctx, []*probe{p})
		if p.small {
			return true
		}
	}
	return false
}

// tcpAnswers reports whether the end's kernel answers a connection to a port. The answer is most
// likely a refusal.
func tcpAnswers(ctx context.Context, e tunnelEnd, index int) bool {
	for range rounds {
		if ctx.Err() == nil && connects(e.hop, index) {
			return true
		}
	}
	return false
}

// discard is the port of a service that no host should have (RFC 863).
const discard = 9

func connects(to netip.Addr, index int) bool {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd) //nolint:errcheck // nothing was written
	err = unix.Connect(fd, &unix.SockaddrInet6{Port: discard, ZoneId: uint32(index), Addr: to.As16()})
	if !errors.Is(err, unix.EINPROGRESS) {
		return err == nil || errors.Is(err, unix.ECONNREFUSED)
	}
	for end := time.Now().Add(roundTime); ; {
		left := time.Until(end)
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, int(max(left, 0).Milliseconds()))
		if n > 0 {
			return true // connected or refused: in any case an answer
		}
		if left <= 0 || err != nil && !errors.Is(err, unix.EINTR) {
			return false
		}
	}
}
