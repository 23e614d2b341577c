// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package netstate

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/clock"
	"github.com/patchbay-net/patchbay/internal/nl"
)

// portUpTime is how long a port may take to be up. The reference waits the same time in total.
const portUpTime = 2550 * time.Millisecond

// PortUp waits until one end of a veth is operationally up: the end that went up first. Before, the
// kernel drops what it sends, and a bridge forwards nothing to it. If both ends are up, Linux >= 6.8
// reports this at the first request (rtnl_getlink syncs the carrier). Older kernels report it about
// 0.1 ms later.
type PortUp struct {
	Where Where
	Link  string
}

// String says what Ensure waits for.
func (p PortUp) String() string { return fmt.Sprintf("%s: wait for %s to be up", p.Where, p.Link) }

// Ensure asks once. If the link is not up yet, Ensure listens for events.
func (p PortUp) Ensure(ctx context.Context, env *Env) (Undo, error) {
	link, err := env.Conn(p.Where).Link(p.Link)
	if err != nil {
		return nil, err
	}
	env.Remember(p.Where, link)
	if link.Attrs().OperState == netlink.OperUp {
		return nil, nil
	}
	up, err := untilLinks(ctx, env.Conn(p.Where), portUpTime, func() (bool, error) { return p.isUp(env, link) })
	if err == nil && !up {
		err = p.stays(link.Attrs().OperState)
	}
	return nil, err
}

// stays returns the error for a link that does not go up, for a port with the reference's text.
func (p PortUp) stays(state netlink.LinkOperState) error {
	if p.Where == Host {
		return fmt.Errorf("bridge port in error state: %s", state)
	}
	return fmt.Errorf("%s is not up after %s: state %s", p.Link, portUpTime, state)
}

func (p PortUp) isUp(env *Env, link netlink.Link) (bool, error) {
	now, err := env.Conn(p.Where).LinkAt(link.Attrs().Index)
	if err != nil {
		return false, fmt.Errorf("look at port %s: %w", p.Link, err)
	}
	link.Attrs().OperState = now.Attrs().OperState
	return now.Attrs().OperState == netlink.OperUp, nil
}

// Diff always reports no difference, because a container may take its own interface down.
func (p PortUp) Diff(context.Context, *Env) (string, error) { return "", nil }

// settleTime limits duplicate address detection, as in the reference.
const settleTime = 5 * time.Second

// Settle waits until no address of a link in the sandbox is tentative. Only addresses with DAD
// are ever tentative.
type Settle struct{ Link string }

// String says what Ensure waits for.
func (s Settle) String() string {
	return "sandbox: wait for duplicate address detection on " + s.Link
}

// Ensure waits.
func (s Settle) Ensure(ctx context.Context, env *Env) (Undo, error) {
	link, err := env.Link(Sandbox, s.Link)
	if err != nil {
		return nil, err
	}
	settled, err := untilAddrs(ctx, env.Sandbox, settleTime, func() (bool, error) {
		tentative, err := s.tentative(env, link.Attrs().Index)
		return !tentative, err
	})
	if err == nil && !settled {
		err = fmt.Errorf("link %s still has tentative addresses: %w", s.Link, cmp.Or(ctx.Err(), context.DeadlineExceeded))
	}
	if err != nil {
		return nil, fmt.Errorf("failed to settle addresses for %q: %w", s.Link, err)
	}
	return nil, nil
}

// tentative reports whether the kernel still looks for duplicates. If the kernel found one,
// tentative returns an error.
func (s Settle) tentative(env *Env, index int) (yes bool, err error) {
	addrs, err := env.Sandbox.Addrs(index)
	for _, a := range addrs {
		switch {
		case a.Flags&unix.IFA_F_DADFAILED != 0:
			return false, fmt.Errorf("link %s has address %s in DADFAILED state", s.Link, a.Prefix.Addr())
		case a.Flags&unix.IFA_F_TENTATIVE != 0:
			yes = true
		}
	}
	return yes, err
}

// Diff always reports no difference, because Ensure only waits.
func (s Settle) Diff(context.Context, *Env) (string, error) { return "", nil }

// answerTime limits the wait for a work queue of the kernel. If the kernel takes longer, the ADD
// succeeds, but a neighbour's first packet may wait for a second.
const answerTime = time.Second

// Answering waits until the kernel answers neighbour solicitations for a link's IPv6 addresses.
// Neighbours send these to a multicast group (RFC 4291, solicited-node). A work queue of the
// kernel joins the group some time after the address was added, even without duplicate address
// detection. On a busy node that is 0-3 ms later (Linux 6.18). A solicitation that arrives
// earlier is lost, and the neighbour repeats it after a second.
type Answering struct {
	Where Where
	Link  string
	Addrs []netip.Addr // IPv6 only
}

// String says what Ensure waits for.
func (a Answering) String() string {
	return fmt.Sprintf("%s: wait until %s answers for %s", a.Where, a.Link, spaced(a.Addrs))
}

// Ensure first checks, because usually the kernel answers already.
func (a Answering) Ensure(ctx context.Context, env *Env) (Undo, error) {
	link, err := env.Link(a.Where, a.Link)
	if err != nil {
		return nil, err
	}
	index := link.Attrs().Index
	if link.Attrs().RawFlags&(unix.IFF_NOARP|unix.IFF_LOOPBACK) != 0 {
		return nil, nil // no neighbour sends solicitations there
	}
	if yes, err := a.answers(env, index); yes || err != nil {
		return nil, err
	}
	_, err = untilAddrs(ctx, env.Conn(a.Where), answerTime, func() (bool, error) { return a.answers(env, index) })
	return nil, err
}

func (a Answering) answers(env *Env, index int) (bool, error) {
	groups, err := env.Conn(a.Where).Joined(index)
	if err != nil {
		return false, err
	}
	for _, addr := range a.Addrs {
		if !slices.Contains(groups, solicitedNode(addr)) {
			return false, nil
		}
	}
	return true, nil
}

// solicitedNode returns the multicast group of an address: ff02::1:ff00:0/104 with the last 24
// bits of the address.
func solicitedNode(addr netip.Addr) netip.Addr {
	a := addr.As16()
	group := [16]byte{0: 0xff, 1: 0x02, 11: 1, 12: 0xff}
	copy(group[13:], a[13:])
	return netip.AddrFrom16(group)
}

// Diff always reports no difference, because Ensure only waits.
func (a Answering) Diff(context.Context, *Env) (string, error) { return "", nil }

// lostEvent is how long to wait for an event before asking again. A socket loses events when its
// buffer overflows, so the wait needs a limit.
const lostEvent = 50 * time.Millisecond

// untilLinks repeats ask at each event of a namespace's links, as until does, for at most the
// given time. It starts to listen before the first question, so it misses no event.
func untilLinks(ctx context.Context, conn *nl.Conn, most time.Duration, ask func() (bool, error)) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	events, done := make(chan netlink.LinkUpdate), make(chan struct{})
	if err := visit(conn, func() error { return netlink.LinkSubscribe(events, done) }); err != nil {
		return false, fmt.Errorf("listen for link events: %w", err)
	}
	defer unsubscribe(events, done)
	return until(ctx, events, ask)
}

// untilAddrs repeats ask at each event of a namespace's addresses, as until does, for at most
// the given time.
func untilAddrs(ctx context.Context, conn *nl.Conn, most time.Duration, ask func() (bool, error)) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	events, done := make(chan netlink.AddrUpdate), make(chan struct{})
	if err := visit(conn, func() error { return netlink.AddrSubscribe(events, done) }); err != nil {
		return false, fmt.Errorf("listen for address events: %w", err)
	}
	defer unsubscribe(events, done)
	return until(ctx, events, ask)
}

// visit runs fn in the namespace of a connection. The netlink library can enter a namespace, too, but
// would go on with a thread that cannot leave it.
func visit(conn *nl.Conn, fn func() error) error {
	if conn.NS == nil {
		return fn()
	}
	return conn.NS.Visit(fn)
}

// until calls ask at once, and again after every event, until the answer is yes. If ctx ends
// first, yes is false.
func until[T any](ctx context.Context, events <-chan T, ask func() (bool, error)) (yes bool, err error) {
	again := time.NewTicker(lostEvent)
	defer again.Stop()
	for {
		if yes, err = ask(); yes || err != nil {
			return yes, err
		}
		select {
		case _, ok := <-events:
			if !ok {
				events = nil // the socket is closed, so only the timer still wakes the loop
			}
		case <-again.C:
		case <-ctx.Done():
			return false, nil
		}
	}
}

// unsubscribe ends a subscription of the netlink library. It reads the remaining events:
// otherwise the library's goroutine would block for ever on the last one.
func unsubscribe[T any](events <-chan T, done chan<- struct{}) {
	close(done)
	for range events { // discard
	}
}

// The kernel removes the links of an ended namespace in the background, some milliseconds after the
// namespace's last user is gone, on a busy machine a second. endingTime is how long untilEnded waits.
// Its pauses grow, because each try takes the lock of all links.
const (
	endingTime   = 2 * time.Second
	firstPause   = 5 * time.Millisecond
	longestPause = 100 * time.Millisecond
)

// untilEnded repeats a change while the kernel refuses it with the given error. Such an error says
// that another link on the same master has the same Ethernet address, IP address or VLAN. That link
// may be of the container's last run, in a namespace that has ended.
func untilEnded(ctx context.Context, refused unix.Errno, change func() error) error {
	end := clock.SinceBoot() + endingTime
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		err := change()
		if !errors.Is(err, refused) || clock.SinceBoot() > end || !clock.Sleep(ctx, pause) {
			return err
		}
	}
}
