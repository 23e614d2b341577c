// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Target is a server at which Fire fires. Network is "tcp" or "udp".
type Target struct {
	Network string
	Addr    netip.AddrPort
	From    uint16 // the port of datagrams; 0: any
}

// ParseTarget reads "tcp/10.1.2.3:80".
func ParseTarget(text string) (t Target, err error) {
	network, addr, _ := strings.Cut(text, "/")
	if network != "tcp" && network != "udp" {
		return t, fmt.Errorf("network %q is neither tcp nor udp", network)
	}
	t.Network = network
	t.Addr, err = netip.ParseAddrPort(addr)
	return t, err
}

// String returns what ParseTarget reads.
func (t Target) String() string { return t.Network + "/" + t.Addr.String() }

// Fired is what Fire has sent to a target, and what came back.
type Fired struct {
	Target  string
	Sent    int
	Answers int // with refusals
	Refused int
	First   time.Duration // from the start to the first answer
	Last    time.Duration // to the last one
}

// Life is what a container writes that fires from its start.
type Life struct {
	Began time.Time
	Addrs []string
	Fired []Fired
}

// held is how long Fire waits for the answer of one connection: less than the second after which
// the kernel sends a SYN again.
const held = 900 * time.Millisecond

// Fire opens a TCP connection to each target, or sends it a datagram, each interval until ctx ends.
// It uses only the calling thread, so a caller can be in another network namespace. If note is not
// nil, Fire calls it for each connection, with the number of the target and the time of its SYN. If Fire
// got no time to close a connection before the kernel sent its SYN again, each of the two counts.
func Fire(ctx context.Context, interval time.Duration, note func(target int, at time.Time, answered bool), targets ...Target) ([]Fired, error) {
	return FireBriefly(ctx, interval, held, note, targets...)
}

// FireBriefly works like Fire, but the caller chooses how long each connection waits for its answer: at most a
// second, after which the kernel sends a SYN again.
func FireBriefly(ctx context.Context, interval, held time.Duration, note func(target int, at time.Time, answered bool), targets ...Target) ([]Fired, error) {
	f := firing{began: time.Now(), note: note, results: make([]Fired, len(targets))}
	if note == nil {
		f.note = func(int, time.Time, bool) {}
	}
	defer f.close(time.Now().Add(time.Hour))
	for i, t := range targets {
		f.results[i].Target = t.String()
		if t.Network == "udp" {
			if err := f.datagrams(i, t); err != nil {
				return nil, err
			}
		}
	}
	for next := f.began; ctx.Err() == nil; next = next.Add(interval) {
		for i, t := range targets {
			if err := f.shoot(i, t); err != nil {
				return nil, err
			}
		}
		for first := true; first || time.Now().Before(next.Add(interval)); first = false {
			if err := f.collect(time.Until(next.Add(interval))); err != nil {
				return nil, err
			}
		}
		f.close(time.Now().Add(-held))
		if late := time.Since(next); late > time.Second {
			next = time.Now() // after a pause of the machine
		}
	}
	for end := time.Now().Add(held); len(f.shots) > 0 && time.Now().Before(end); {
		if err := f.collect(10 * time.Millisecond); err != nil {
			return nil, err
		}
		f.close(time.Now().Add(-held))
	}
	return f.results, nil
}

// firing is a run of Fire.
type firing struct {
	began   time.Time
	note    func(int, time.Time, bool)
	results []Fired
	shots   []shot
	polls   []unix.PollFd // memory of collect
}

// shot is a socket that waits for an answer.
type shot struct {
	fd, target int
	at         time.Time // when a connection was tried; zero for the socket of datagrams
}

func sockaddr(a netip.AddrPort) (family int, sa unix.Sockaddr) {
	if a.Addr().Is4() {
		return unix.AF_INET, &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return unix.AF_INET6, &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

func unspecified(a netip.Addr) netip.Addr {
	if a.Is4() {
		return netip.IPv4Unspecified()
	}
	return netip.IPv6Unspecified()
}

// datagrams opens the socket of a target over UDP.
func (f *firing) datagrams(target int, t Target) error {
	family, sa := sockaddr(t.Addr)
	fd, err := unix.Socket(family, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return err
	}
	_, own := sockaddr(netip.AddrPortFrom(unspecified(t.Addr.Addr()), t.From))
	if err := errors.Join(unix.Bind(fd, own), unix.Connect(fd, sa)); err != nil {
		unix.Close(fd)
		return fmt.Errorf("connect to %s: %w", t.Addr, err)
	}
	f.shots = append(f.shots, shot{fd: fd, target: target})
	return nil
}

// shoot sends the first packet of a connection, or a datagram.
func (f *firing) shoot(target int, t Target) error {
	f.results[target].Sent++
	if t.Network == "udp" {
		for _, s := range f.shots {
			if s.target == target {
				_, _ = unix.Write(s.fd, []byte("who\n")) // an earlier refusal is reported here, and collect counts the next one
			}
		}
		return nil
	}
	family, sa := sockaddr(t.Addr)
	fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return err
	}
	if err := unix.SetsockoptLinger(fd, unix.SOL_SOCKET, unix.SO_LINGER, &unix.Linger{Onoff: 1}); err != nil {
		unix.Close(fd)
		return err
	}
	switch err := unix.Connect(fd, sa); {
	case errors.Is(err, unix.EINPROGRESS), errors.Is(err, unix.EINTR):
		f.shots = append(f.shots, shot{fd, target, time.Now()})
		return nil
	case err == nil, errors.Is(err, unix.ECONNREFUSED):
		f.note(target, time.Now(), true)
		f.answered(target, err != nil)
	default: // no route, for example: the packet was not sent
		f.note(target, time.Now(), false)
	}
	return unix.Close(fd)
}

func (f *firing) answered(target int, refused bool) {
	r := &f.results[target]
	r.Last = time.Since(f.began)
	if r.Answers++; r.Answers == 1 {
		r.First = r.Last
	}
	if refused {
		r.Refused++
	}
}

// collect waits for answers for some time, and counts them.
func (f *firing) collect(wait time.Duration) error {
	polls := f.polls[:0]
	for _, s := range f.shots {
		polls = append(polls, unix.PollFd{Fd: int32(s.fd), Events: unix.POLLOUT})
		if s.at.IsZero() {
			polls[len(polls)-1].Events = unix.POLLIN
		}
	}
	f.polls = polls
	_, err := unix.Poll(polls, int(max(0, wait.Milliseconds())))
	if err != nil && !errors.Is(err, unix.EINTR) {
		return err
	}
	waiting := f.shots[:0]
	for i, s := range f.shots {
		if polls[i].Revents == 0 {
			waiting = append(waiting, s)
		} else if f.read(s) {
			waiting = append(waiting, s)
		}
	}
	f.shots = waiting
	return nil
}

// read reads the result of a socket, and reports whether the socket stays open.
func (f *firing) read(s shot) bool {
	if !s.at.IsZero() {
		code, err := unix.GetsockoptInt(s.fd, unix.SOL_SOCKET, unix.SO_ERROR)
		ok := err == nil && (code == 0 || code == int(unix.ECONNREFUSED))
		if ok && repeated(s.fd) {
			f.note(s.target, s.at, false)
			s.at = time.Now()
		}
		f.note(s.target, s.at, ok)
		if ok {
			f.answered(s.target, code != 0)
		}
		unix.Close(s.fd)
		return false
	}
	for buf := make([]byte, 1500); ; {
		_, err := unix.Read(s.fd, buf)
		if err != nil && !errors.Is(err, unix.ECONNREFUSED) {
			return true
		}
		f.answered(s.target, err != nil)
		if err != nil {
			return true
		}
	}
}

// repeated reports whether the kernel sent the SYN of a connection again: the first one got no answer.
func repeated(fd int) bool {
	info, err := unix.GetsockoptTCPInfo(fd, unix.IPPROTO_TCP, unix.TCP_INFO)
	return err == nil && info.Total_retrans > 0
}

// close closes the sockets of connections that were tried before a time.
func (f *firing) close(before time.Time) {
	left := f.shots[:0]
	for _, s := range f.shots {
		all := before.After(time.Now())
		if all || !s.at.IsZero() && s.at.Before(before) {
			unix.Close(s.fd)
			if !all {
				f.note(s.target, s.at, false)
			}
		} else {
			left = append(left, s)
		}
	}
	f.shots = left
}
