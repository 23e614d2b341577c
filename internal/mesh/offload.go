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

// untested is an end to test, and the echo requests that go there first.
type untested struct {
	testedEnd
	probe *probe
}

// run tests the ends that have not been tested. All are asked for an answer at once, so many ends
// that are silent take no longer than one.
func (o *offloads) run(ctx context.Context, ends []tunnelEnd) {
	list := o.untested(ends)
	o.ask(ctx, list...)
	for _, u := range list {
		if ctx.Err() != nil {
			return
		}
		if !u.probe.small {
			continue
		}
		done, err := o.test(ctx, u)
		o.note(u.testedEnd, done, err)
	}
}

func (o *offloads) untested(ends []tunnelEnd) (list []untested) {
	for _, e := range ends {
		at := testedEnd{tunnelEnd: e}
		link, err := o.conn.Link(e.device)
		if err == nil {
			at.index = link.Attrs().Index
		}
		switch {
		case o.tested[at]:
		case err != nil:
			o.note(at, false, err)
		default:
			list = append(list, untested{at, &probe{to: e.hop, zone: at.index, uplink: minMTU, low: smallProbe, high: minMTU}})
		}
	}
	return list
}

// note keeps the result for an end. An error counts as a result, otherwise each test would report
// it again.
func (o *offloads) note(at testedEnd, done bool, err error) {
	o.tested[at] = done
	if err != nil && !nl.IsNotFound(err) {
		o.tested[at] = true
		o.warn(fmt.Errorf("test checksum offload of %s: %w", at.device, err))
	}
}

// test looks for the reason why TCP fails to an end that answers echo requests. If TCP passes only without the offload, the offload is the
// reason and stays off. Otherwise a firewall may be the reason. If the end no longer answers, done
// is false.
func (o *offloads) test(ctx context.Context, u untested) (done bool, err error) {
	if o.tcpAnswers(ctx, u) {
		return true, nil
	}
	on, err := o.conn.TxChecksum(u.device)
	if err != nil || !on {
		return !on, err // without the offload, a firewall is the reason
	}
	if o.ask(ctx, u); !u.probe.small {
		return false, nil
	}
	if err := o.conn.SetTxChecksum(u.device, false); err != nil {
		return false, err
	}
	if o.tcpAnswers(ctx, u) {
		o.warn(fmt.Errorf("checksum offload of %s is turned off: TCP to %s passes only without it, so %w. "+
			"A newer kernel may help; the offload is back when the device is made again, as after a reboot", u.device, u.hop, ErrOffload))
		return true, nil
	}
	return ctx.Err() == nil, o.conn.SetTxChecksum(u.device, true)
}

// ask sends echo requests through the tunnels until each end has answered, three times at most.
// Then the field small of an end's probe says whether the end answered.
func (o *offloads) ask(ctx context.Context, list ...untested) {
	var silent []*probe
	for _, u := range list {
		silent = append(silent, u.probe)
	}
	o.echo.askAll(ctx, silent)
}

// tcpAnswers reports whether the end's kernel answers a connection to a port. The answer is most
// likely a refusal.
func (o *offloads) tcpAnswers(ctx context.Context, u untested) bool {
	for range rounds {
		if ctx.Err() == nil && connects(u.hop, u.index, o.echo.waits.round) {
			return true
		}
	}
	return false
}

// discard is the port of a service that no host should have (RFC 863).
const discard = 9

func connects(to netip.Addr, index int, within time.Duration) bool {
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd) //nolint:errcheck // nothing was written
	err = unix.Connect(fd, &unix.SockaddrInet6{Port: discard, ZoneId: uint32(index), Addr: to.As16()})
	if !errors.Is(err, unix.EINPROGRESS) {
		return err == nil || errors.Is(err, unix.ECONNREFUSED)
	}
	for end := time.Now().Add(within); ; {
		remaining := time.Until(end)
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, int(max(remaining, 0).Milliseconds()))
		if n > 0 {
			return true // connected or refused: in any case an answer
		}
		if remaining <= 0 || err != nil && !errors.Is(err, unix.EINTR) {
			return false
		}
	}
}
