// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// echo sends ICMP echo requests that no host may fragment, and reads the answers. A socket of 0
// means that the kernel does not have that family.
type echo struct {
	four, six int
	waits     waits
	id        uint16
	sequence  uint16
}

// openEcho opens the sockets in the namespace of the calling thread.
func openEcho(w waits) (e *echo, err error) {
	e = &echo{waits: w, id: uint16(os.Getpid())}
	if e.four, err = echoSocket(unix.AF_INET, unix.IPPROTO_ICMP); err != nil {
		return nil, err
	}
	if e.six, err = echoSocket(unix.AF_INET6, unix.IPPROTO_ICMPV6); err != nil {
		if !errors.Is(err, unix.EAFNOSUPPORT) {
			e.close()
			return nil, err
		}
		e.six = 0
	}
	return e, nil
}

func echoSocket(family, protocol int) (fd int, err error) {
	fd, err = unix.Socket(family, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, protocol)
	if err != nil {
		return 0, fmt.Errorf("open ICMP socket (CAP_NET_RAW): %w", err)
	}
	// The kernel must neither fragment nor apply a path MTU that it has learned.
	if family == unix.AF_INET {
		err = unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE)
	} else {
		err = errors.Join(unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, unix.IPV6_PMTUDISC_PROBE),
			unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_DONTFRAG, 1))
	}
	if err != nil {
		unix.Close(fd) //nolint:errcheck // nothing to lose
		return 0, fmt.Errorf("set up ICMP socket: %w", err)
	}
	return fd, nil
}

func (e *echo) close() {
	for _, fd := range [...]int{e.four, e.six} {
		if fd != 0 {
			unix.Close(fd) //nolint:errcheck // nothing to lose
		}
	}
}

// waits says how long a round waits for the small packets, and then for the large ones, which were sent
// before.
type waits struct{ round, grace time.Duration }

// usual are the waits between hosts.
var usual = waits{time.Second, 150 * time.Millisecond}

// run makes rounds with all probes at once, until each probe has a verdict.
func (e *echo) run(ctx context.Context, list []*probe) {
	for {
		list = slices.DeleteFunc(slices.Clone(list), func(p *probe) bool { return p.verdict != searching })
		if len(list) == 0 || ctx.Err() != nil {
			return
		}
		for _, p := range list {
			e.ask(p)
		}
		e.listen(ctx, list)
		for _, p := range list {
			p.end()
		}
	}
}

// askAll sends requests until each probe has the answer to its small packet, three times at most.
func (e *echo) askAll(ctx context.Context, silent []*probe) {
	for range rounds {
		if len(silent) == 0 || ctx.Err() != nil {
			return
		}
		for _, p := range silent {
			e.ask(p)
		}
		e.listen(ctx, silent)
		silent = slices.DeleteFunc(silent, func(p *probe) bool { return p.small })
	}
}

// ask sends the two packets of a round. A size that the kernel refuses is too large.
func (e *echo) ask(p *probe) {
	p.large, p.small = false, false
	for p.verdict == searching {
		e.sequence += 2
		p.sequence = e.sequence
		if err := e.send(p, p.size(), p.sequence); !errors.Is(err, unix.EMSGSIZE) {
			break
		}
		p.tooLarge()
	}
	_ = e.send(p, smallProbe, p.sequence+1) // if no answer comes, end counts a loss
}

const (
	smallProbe = 64
	echoHead   = 8 // bytes of an ICMP echo
)

// send sends an echo request in an IP packet of a size.
func (e *echo) send(p *probe, size int, sequence uint16) error {
	if p.to.Is4() {
		b := make([]byte, size-20)
		b[0] = 8 // echo
		binary.BigEndian.PutUint16(b[4:], e.id)
		binary.BigEndian.PutUint16(b[6:], sequence)
		binary.BigEndian.PutUint16(b[2:], checksum(b))
		return unix.Sendto(cmp.Or(p.fd, e.four), b, 0, &unix.SockaddrInet4{Addr: p.to.As4()})
	}
	b := make([]byte, size-40) // the kernel adds the checksum
	b[0] = 128                 // echo
	binary.BigEndian.PutUint16(b[4:], e.id)
	binary.BigEndian.PutUint16(b[6:], sequence)
	return unix.Sendto(cmp.Or(p.fd, e.six), b, 0, &unix.SockaddrInet6{Addr: p.to.As16(), ZoneId: uint32(p.zone)})
}

// checksum computes the Internet checksum (RFC 1071).
func checksum(b []byte) uint16 {
	sum := uint32(0)
	for i := 0; i < len(b); i += 2 {
		sum += uint32(b[i]) << 8
		if i+1 < len(b) {
			sum += uint32(b[i+1])
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

// listen reads answers until all are there, or until none is expected any more.
func (e *echo) listen(ctx context.Context, list []*probe) {
	deadline, grace := time.Now().Add(e.waits.round), false
	for ctx.Err() == nil {
		if !slices.ContainsFunc(list, func(p *probe) bool { return !p.large || !p.small }) {
			return
		}
		if !grace && !slices.ContainsFunc(list, func(p *probe) bool { return !p.small }) {
			deadline, grace = time.Now().Add(e.waits.grace), true
		}
		remaining := time.Until(deadline)
		if remaining <= 0 {
			return
		}
		e.wait(remaining)
		e.read(e.four, list)
		e.read(e.six, list)
	}
}

// wait waits for an answer, and looks at the context again after a moment.
func (e *echo) wait(most time.Duration) {
	fds := []unix.PollFd{{Fd: int32(e.four), Events: unix.POLLIN}}
	if e.six != 0 {
		fds = append(fds, unix.PollFd{Fd: int32(e.six), Events: unix.POLLIN})
	}
	_, _ = unix.Poll(fds, int(min(most, 100*time.Millisecond).Milliseconds())+1) // read checks for packets, whatever Poll returns
}

// read takes the packets that have arrived. The socket gets all ICMP packets of the host.
func (e *echo) read(fd int, list []*probe) {
	buf := make([]byte, 128)
	for fd != 0 {
		n, from, err := unix.Recvfrom(fd, buf, 0)
		if err != nil {
			return
		}
		if n == 0 {
			continue
		}
		b, reply := buf[:n], byte(129)
		var addr netip.Addr
		switch a := from.(type) {
		case *unix.SockaddrInet4:
			addr, reply = netip.AddrFrom4(a.Addr), 0
			b = b[min(len(b), int(b[0]&15)*4):] // behind the IP header
		case *unix.SockaddrInet6:
			addr = netip.AddrFrom16(a.Addr)
		}
		if len(b) < echoHead || b[0] != reply || binary.BigEndian.Uint16(b[4:]) != e.id {
			continue
		}
		for _, p := range list {
			if sequence := binary.BigEndian.Uint16(b[6:]); p.to == addr || p.loose {
				p.large, p.small = p.large || sequence == p.sequence, p.small || sequence == p.sequence+1
			}
		}
	}
}
