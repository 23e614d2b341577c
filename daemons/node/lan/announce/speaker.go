// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package announce answers on a link for addresses that the kernel does not have: to ARP (RFC 826) and to neighbour solicitations (RFC 4861). It
// asks before each answer and each announcement whether the node owns the address at this moment.
//
// The kernel must not have the addresses, or it would answer by itself and take packets as its own. Packet sockets see what the
// kernel ignores: also requests that are sent to this node alone, by which a neighbour asks whether its entry still holds.
package announce

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/mdlayher/packet"
	"github.com/vishvananda/netlink"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/resident"
)

// Speaker answers on one link.
type Speaker struct {
	// Owns reports whether this node may answer for an address at this moment.
	Owns func(netip.Addr) bool
	// Conflict is called if another host sends as the owner of an address that this node owns. It may be nil.
	Conflict func(a netip.Addr, by net.HardwareAddr)

	answered, announced atomic.Int64
	changed             chan struct{} // has room for one signal

	mu    sync.Mutex
	addrs map[netip.Addr]bool
}

// New returns a speaker without addresses.
func New(owns func(netip.Addr) bool, conflict func(netip.Addr, net.HardwareAddr)) *Speaker {
	return &Speaker{Owns: owns, Conflict: conflict, changed: make(chan struct{}, 1)}
}

// Set says for which addresses the speaker answers. It announces those that are new. Set does not wait.
func (s *Speaker) Set(addrs map[netip.Addr]bool) {
	s.mu.Lock()
	s.addrs = addrs
	s.mu.Unlock()
	resident.Signal(s.changed)
}

// Counts returns how many requests were answered, and how many announcements were sent.
func (s *Speaker) Counts() (answered, announced int64) {
	return s.answered.Load(), s.announced.Load()
}

// line is a link with its sockets.
type line struct {
	*Speaker
	index  int
	arp    *packet.Conn
	nd     *packet.Conn
	groups *groups
}

// Run answers on a link until ctx ends or something fails, such as that the link is deleted. It announces all addresses when it starts.
func (s *Speaker) Run(ctx context.Context, link string) error {
	l, err := s.open(link)
	if err != nil {
		return fmt.Errorf("answer for load balancers' addresses on %s: %w", link, err)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for _, work := range []func(context.Context) error{l.answerARP, l.answerND, l.announce} {
		wg.Go(func() { cancel(work(ctx)) })
	}
	<-ctx.Done()
	l.close()
	wg.Wait()
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return fmt.Errorf("answer for load balancers' addresses on %s: %w", link, err)
	}
	return nil
}

var errNoEthernet = errors.New("it has no Ethernet address, so nobody asks for addresses on it")

func (s *Speaker) open(name string) (l *line, err error) {
	link, err := net.InterfaceByName(name)
	if err != nil {
		return nil, err
	}
	if len(link.HardwareAddr) != macLen {
		return nil, errNoEthernet
	}
	l = &line{Speaker: s, index: link.Index}
	if l.arp, err = listen(link, unix.ETH_P_ARP, arpFilter(link.Index)); err != nil {
		return nil, err
	}
	if l.nd, err = listen(link, unix.ETH_P_IPV6, solicitationFilter(link.Index)); err == nil {
		l.groups, err = openGroups(link)
	}
	if err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

// close closes what is open. Reads end by it.
func (l *line) close() {
	for _, c := range []*packet.Conn{l.arp, l.nd} {
		if c != nil {
			c.Close() //nolint:errcheck // nothing is buffered
		}
	}
	if l.groups != nil {
		l.groups.close()
	}
}

// macLen is the length of an Ethernet address.
const macLen = 6

// listen opens a packet socket without Ethernet headers.
func listen(link *net.Interface, protocol int, filter []bpf.Instruction) (*packet.Conn, error) {
	raw, err := bpf.Assemble(filter)
	if err != nil {
		return nil, fmt.Errorf("assemble the filter: %w", err)
	}
	c, err := packet.Listen(link, packet.Datagram, protocol, &packet.Config{Filter: raw})
	if err != nil {
		return nil, fmt.Errorf("open a packet socket: %w", err)
	}
	return c, nil
}

// on is the beginning of a filter. Packets of a VLAN of the link have another index, although the link's socket gets them.
func on(index int, skip uint8) []bpf.Instruction {
	return []bpf.Instruction{
		bpf.LoadExtension{Num: bpf.ExtInterfaceIndex},
		bpf.JumpIf{Cond: bpf.JumpEqual, Val: uint32(index), SkipFalse: skip}, //nolint:gosec // an index is positive
	}
}

// mac returns the link's Ethernet address now. It may change while the link is up.
func (l *line) mac() (net.HardwareAddr, error) {
	link, err := netlink.LinkByIndex(l.index)
	if err != nil {
		return nil, fmt.Errorf("read the Ethernet address: %w", err)
	}
	return link.Attrs().HardwareAddr, nil
}

// read reads packets until the socket is closed, and calls do for each.
func read(c *packet.Conn, do func(b []byte, from net.HardwareAddr) error) error {
	buf := make([]byte, 2048) //nolint:mnd // more than a request has
	for {
		n, from, err := c.ReadFrom(buf)
		if err != nil && (errors.Is(err, unix.ENETDOWN) || errors.Is(err, unix.ENOBUFS)) {
			continue // the link is down; it may come up again
		}
		if err != nil {
			return err
		}
		if a, ok := from.(*packet.Addr); ok {
			if err := do(buf[:n], a.HardwareAddr); err != nil {
				return err
			}
		}
	}
}

// send sends a packet. A link that is down loses it, as it would lose any.
func send(c *packet.Conn, b []byte, to net.HardwareAddr) error {
	_, err := c.WriteTo(b, &packet.Addr{HardwareAddr: to})
	if errors.Is(err, unix.ENETDOWN) || errors.Is(err, unix.ENOBUFS) {
		return nil
	}
	return err
}

// repeats are when an address is announced after it is new. A switch or a host may lose the first ones.
func repeats() []time.Duration {
	return []time.Duration{0, 200 * time.Millisecond, time.Second, 2 * time.Second} //nolint:mnd // as it stands
}

// saying is how far the announcement of an address has come.
type saying struct {
	began time.Time
	said  int
}

// lookEvery is how often a speaker looks whether the link is still there: a packet socket does not tell that it was deleted.
const lookEvery = time.Second

// announce announces addresses that are new, several times.
func (l *line) announce(ctx context.Context) error {
	known := map[netip.Addr]*saying{}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-l.changed:
		case <-timer.C:
		}
		if _, err := l.mac(); err != nil {
			return err
		}
		l.mu.Lock()
		now := l.addrs
		l.mu.Unlock()
		for a := range known {
			if !now[a] {
				delete(known, a)
			}
		}
		for a := range now {
			if known[a] == nil {
				known[a] = &saying{began: time.Now()}
			}
		}
		if err := l.groups.set(now); err != nil {
			return err
		}
		pause, err := l.say(known)
		if err != nil {
			return err
		}
		timer.Reset(pause)
	}
}

// say sends the announcements that are due, and returns when to look again.
func (l *line) say(known map[netip.Addr]*saying) (pause time.Duration, err error) {
	pause = lookEvery
	for a, s := range known {
		list := repeats()
		for s.said < len(list) && time.Since(s.began) >= list[s.said] {
			s.said++
			if err := l.sayOne(a); err != nil {
				return 0, err
			}
		}
		if s.said < len(list) {
			pause = min(pause, max(list[s.said]-time.Since(s.began), 0))
		}
	}
	return pause, nil
}

func (l *line) sayOne(a netip.Addr) error {
	mac, err := l.mac()
	if err != nil || !l.Owns(a) {
		return err
	}
	l.announced.Add(1)
	if a.Is4() {
		return l.sayARP(a, mac)
	}
	return l.sayND(a, mac)
}
