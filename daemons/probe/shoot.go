// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/conntrack"
	"github.com/patchbay-net/patchbay/internal/l4"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/trace"
)

// shot is one packet that was sent, and what was seen of it.
type shot struct {
	*packet
	refused error // by the kernel of the source, at once
	views   []*view
}

// probe sends a packet, and judges what became of it. If it went to a container that was not watched, it sends another one.
func (t *tracer) probe() error {
	src, err := t.sourceAddress()
	if err != nil { // no packet can be sent
		t.report.Verdict, t.report.Finding = trace.Ends, t.expected
		return nil //nolint:nilerr // the evaluation has explained it
	}
	p, err := newPacket(src, t.To.Addr, t.Protocol, t.Port)
	if err != nil {
		return err
	}
	s, err := t.shoot(p)
	if err != nil {
		return err
	}
	found, again := t.behind(s)
	if t.hairpin = again && found.NS == t.From.NS; again && !t.hairpin {
		if err := t.add(found); err != nil {
			return err
		}
		t.report.Note("%s is translated to %s, %s", t.To.Word, found.Addr, found.Word)
		t.To.NS, t.To.Local, t.Translated = found.NS, true, false
		if s, err = t.again(p, 0); err != nil {
			return err
		}
	}
	t.judge(s)
	if t.report.Verdict == trace.Arrives && t.To.Container() && !t.hairpin {
		return t.large(p)
	}
	return nil
}

// behind returns the container to which the host sent the packet, if it is one that was not asked for.
func (t *tracer) behind(s *shot) (trace.End, bool) {
	host := s.views[len(s.views)-1].of[probe]
	if t.To.Container() || !host.seen() || host.dst == t.To.Addr {
		return trace.End{}, false
	}
	i := slices.IndexFunc(t.Containers, func(e trace.End) bool { return e.Addr == host.dst })
	if i < 0 {
		return trace.End{}, false
	}
	return t.Containers[i], true
}

func (t *tracer) again(p *packet, pad int) (*shot, error) {
	if err := p.renew(pad); err != nil {
		return nil, err
	}
	return t.shoot(p)
}

// shoot marks the packet in each place, sends it, and collects what the kernel tells until it has been answered, or time is up.
func (t *tracer) shoot(p *packet) (s *shot, err error) {
	s = &shot{packet: p}
	release, err := t.reserve(p)
	if err != nil {
		return nil, fmt.Errorf("reserve a port: %w", err)
	}
	defer release()
	defer func() {
		for _, v := range s.views {
			err = errors.Join(err, v.trace.Close())
		}
		err = errors.Join(err, t.forget(p))
	}()
	for _, at := range t.places {
		tr, err := nft.OpenTrace(func(protocol int) (int, error) { return at.socket(unix.AF_NETLINK, unix.SOCK_RAW, protocol) }, p.matches()...)
		if err != nil {
			return nil, fmt.Errorf("in %s: %w", at.name, traceError(err))
		}
		s.views = append(s.views, newView(at, tr, p))
	}
	s.refused = t.send(p)
	return s, t.collect(s)
}

func traceError(err error) error {
	if errors.Is(err, unix.EEXIST) || errors.Is(err, unix.EPERM) {
		return fmt.Errorf("%w: if another trace runs, wait until it has ended", err)
	}
	return err
}

// reserve keeps a source port: the kernel then resets what answers, and no program gets it.
func (t *tracer) reserve(p *packet) (release func(), err error) {
	kind := unix.SOCK_STREAM
	switch p.protocol {
	case l4.TCP:
	case l4.UDP:
		kind = unix.SOCK_DGRAM
	default:
		return func() {}, nil
	}
	fd, err := t.source().socket(familyOf(p.src), kind, 0)
	if err != nil {
		return nil, err
	}
	release = func() { unix.Close(fd) } //nolint:errcheck // nothing was sent
	if err = unix.Bind(fd, sockaddr(p.src)); err == nil {
		var sa unix.Sockaddr
		sa, err = unix.Getsockname(fd)
		switch sa := sa.(type) {
		case *unix.SockaddrInet4:
			p.sport = uint16(sa.Port)
		case *unix.SockaddrInet6:
			p.sport = uint16(sa.Port)
		}
	}
	if err != nil {
		release()
	}
	return release, err
}

func familyOf(a netip.Addr) int {
	if a.Is6() {
		return unix.AF_INET6
	}
	return unix.AF_INET
}

func sockaddr(a netip.Addr) unix.Sockaddr {
	if a.Is6() {
		return &unix.SockaddrInet6{Addr: a.As16()}
	}
	return &unix.SockaddrInet4{Addr: a.As4()}
}

// send sends the packet by the routes and rules of its namespace.
func (t *tracer) send(p *packet) error {
	fd, err := t.source().socket(familyOf(p.src), unix.SOCK_RAW, unix.IPPROTO_RAW)
	if err != nil {
		return err
	}
	defer unix.Close(fd) //nolint:errcheck // nothing is lost
	return unix.Sendto(fd, p.bytes(), 0, sockaddr(p.dst))
}

// These are times. The kernel needs less than a millisecond for a packet between namespaces, unless it looks for a neighbour.
const (
	localWait = 500 * time.Millisecond
	farWait   = time.Second
	grace     = 50 * time.Millisecond // for what else the kernel tells
)

func (t *tracer) wait() time.Duration {
	switch {
	case t.Wait != 0:
		return t.Wait
	case t.To.Local:
		return localWait
	}
	return farWait
}

func (t *tracer) collect(s *shot) error {
	var fds []unix.PollFd
	for _, v := range s.views {
		fds = append(fds, unix.PollFd{Fd: int32(v.trace.Fd()), Events: unix.POLLIN})
	}
	end, over := time.Now().Add(t.wait()), false
	for {
		rest := time.Until(end)
		if rest <= 0 {
			return nil
		}
		if _, err := unix.Poll(fds, int(rest.Milliseconds())+1); err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("wait for nftrace: %w", err)
		}
		for _, v := range s.views {
			if err := v.read(); err != nil {
				return err
			}
		}
		if !over && t.over(s) {
			over, end = true, time.Now().Add(grace)
		}
	}
}

// over reports whether nothing more is to be expected: an answer or an error came back, or a rule has decided.
func (t *tracer) over(s *shot) bool {
	back := s.views[0]
	if s.refused != nil || back.of[answer].came("input") || back.of[failed].came("input") {
		return true
	}
	for _, v := range s.views {
		if v.of[probe].drop != nil || v.of[answer].drop != nil {
			return true
		}
	}
	return false
}

// forget deletes the connection that conntrack has made of the probe on the host.
func (t *tracer) forget(p *packet) error {
	flows, err := conntrack.Among(map[netip.Addr]bool{p.src: true}, func(f conntrack.Flow) bool {
		return f.Orig.Protocol == uint8(p.protocol) && f.Orig.Src.Addr() == p.src && f.Orig.Dst.Addr() == p.dst && (p.sport == 0 || f.Orig.Src.Port() == p.sport)
	})
	if err != nil {
		return nil //nolint:nilerr // without connection tracking there is none
	}
	return conntrack.End(flows)
}
