// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4/nclient4"
	"github.com/mdlayher/packet"
	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/clock"
)

// conn reads from one socket and writes to another one.
type conn struct {
	net.PacketConn                // reads messages to the client's port, whatever their destination address
	write          net.PacketConn // sends from the source address

	mac net.HardwareAddr // Ethernet address of the interface
}

// ReadFrom reads a message, and moves the options of its other fields to where the library looks.
func (c *conn) ReadFrom(b []byte) (int, net.Addr, error) {
	n, from, err := c.PacketConn.ReadFrom(b)
	return copy(b, unfold(b[:n], len(b))), from, err
}

func (c *conn) WriteTo(b []byte, to net.Addr) (int, error) { return c.write.WriteTo(b, to) }

// Close closes both sockets.
func (c *conn) Close() error {
	err := errors.Join(c.PacketConn.Close(), c.write.Close())
	if errors.Is(err, net.ErrClosed) { // both may be the same packet socket
		return nil
	}
	return err
}

// sentEvery is how often sent looks whether the queue is empty.
const sentEvery = time.Millisecond

// sent waits until the kernel has sent everything that was written. On a link that has just come
// up, the kernel may have to resolve the server's Ethernet address first, and may repeat that
// after a second. If the interface is deleted meanwhile, the packet is lost. For a packet socket
// the kernel resolves no address, so sent does not wait.
func (c *conn) sent(ctx context.Context) error {
	udp, ok := c.write.(*net.UDPConn)
	if !ok {
		return nil
	}
	raw, err := udp.SyscallConn()
	if err != nil {
		return err
	}
	for {
		var queued int
		var ierr error
		err := raw.Control(func(fd uintptr) { queued, ierr = unix.IoctlGetInt(int(fd), unix.SIOCOUTQ) })
		if err = errors.Join(err, ierr); err != nil || queued == 0 {
			return err
		}
		if !clock.Sleep(ctx, sentEvery) {
			return fmt.Errorf("the kernel finds no way to the server: %w", context.Cause(ctx))
		}
	}
}

// client returns a DHCP client on the sockets. The client closes the sockets.
func (c *conn) client(wait time.Duration) (*nclient4.Client, error) {
	client, err := nclient4.NewWithConn(c, c.mac, nclient4.WithTimeout(wait), nclient4.WithRetry(1))
	if err != nil {
		return nil, errors.Join(err, c.Close())
	}
	return client, nil
}

// broadcast opens a packet socket on the interface, whatever addresses the interface has. The
// packets come from src, which may be unspecified, and go to all hosts on the link.
func broadcast(p *Place, src netip.Prefix) (*conn, error) {
	return openV4(p, func(raw net.PacketConn) (net.PacketConn, error) {
		return nclient4.NewBroadcastUDPConn(raw, &net.UDPAddr{IP: src.Addr().AsSlice(), Port: nclient4.ClientPort}), nil
	})
}

// toServer opens the sockets for a message to one server. If the interface has the source
// address, toServer uses an ordinary socket. The kernel then finds the route, also to a server
// behind a router. Otherwise toServer uses a packet socket and broadcasts. (bind(2) does not show
// whether the interface has the address: in a namespace that never had an IPv4 address, it
// accepts every address.)
func toServer(p *Place, src netip.Prefix) (*conn, error) {
	had, err := p.Holds(src)
	if err != nil {
		return nil, fmt.Errorf("open socket on %s: %w", p.IfName, err)
	}
	if !had {
		return broadcast(p, src)
	}
	c, err := openV4(p, func(net.PacketConn) (net.PacketConn, error) {
		lc := net.ListenConfig{Control: func(_, _ string, s syscall.RawConn) error { return bind(s, p.Index) }}
		return lc.ListenPacket(context.Background(), "udp4", netip.AddrPortFrom(src.Addr(), nclient4.ClientPort).String())
	})
	if err == nil || errors.Is(err, ErrRemoved) {
		return c, err
	}
	return broadcast(p, src) // another client has the port without SO_REUSEADDR
}

// openV4 opens a packet socket for the answers. write returns the socket for the requests.
func openV4(p *Place, write func(net.PacketConn) (net.PacketConn, error)) (*conn, error) {
	link, err := p.link()
	if err != nil {
		return nil, fmt.Errorf("open socket on %s: %w", p.IfName, err)
	}
	c := &conn{mac: link.HardwareAddr}
	err = p.do(func() error {
		raw, err := packet.Listen(link, packet.Datagram, unix.ETH_P_IP, &packet.Config{Filter: filter()})
		if err != nil {
			return err
		}
		c.PacketConn = nclient4.NewBroadcastUDPConn(raw, &net.UDPAddr{Port: nclient4.ClientPort})
		if c.write, err = write(raw); err != nil {
			return errors.Join(err, raw.Close())
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("open socket on %s: %w", p.IfName, err)
	}
	return c, nil
}

// bind binds a socket to the interface. Another client may bind its socket to the same port.
func bind(s syscall.RawConn, index int) error {
	var err error
	cerr := s.Control(func(fd uintptr) {
		err = errors.Join(unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_BINDTOIFINDEX, index), // Linux 5.0
			unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_REUSEADDR, 1))
	})
	return errors.Join(cerr, err)
}

// filter accepts only UDP to the client's port. So other traffic of the container wakes no
// goroutine. The packets that the filter sees begin with the IP header.
func filter() []bpf.RawInstruction {
	const whole, none = 0x40000, 0
	raw, err := bpf.Assemble([]bpf.Instruction{
		bpf.LoadAbsolute{Off: 9, Size: 1},
		bpf.JumpIf{Val: unix.IPPROTO_UDP, SkipFalse: 6},
		bpf.LoadAbsolute{Off: 6, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpBitsSet, Val: 0x1fff, SkipTrue: 4}, // a fragment other than the first
		bpf.LoadMemShift{Off: 0},
		bpf.LoadIndirect{Off: 2, Size: 2},
		bpf.JumpIf{Val: nclient4.ClientPort, SkipFalse: 1},
		bpf.RetConstant{Val: whole},
		bpf.RetConstant{Val: none},
	})
	if err != nil {
		panic("DHCPv4 filter: " + err.Error()) // cannot happen: the program is constant
	}
	return raw
}
