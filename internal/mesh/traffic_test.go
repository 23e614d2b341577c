// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// capture records all IP packets of a namespace until the caller calls the result.
func (s *space) capture(t *testing.T) func() [][]byte {
	t.Helper()
	var fd int
	must(t, s.conn.Do(func() (err error) {
		all := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL))
		fd, err = unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, int(all))
		return err
	}))
	must(t, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 1<<24))
	return func() (list [][]byte) {
		defer unix.Close(fd) //nolint:errcheck // a test
		for {
			buf := make([]byte, 1<<16)
			n, _, err := unix.Recvfrom(fd, buf, unix.MSG_DONTWAIT)
			if err != nil {
				return list
			}
			list = append(list, buf[:n])
		}
	}
}

// pings sends numbered datagrams, each after the last one came back, until the caller calls the
// result. It never repeats a lost datagram.
func pings(t *testing.T, from, to *host) func() int {
	t.Helper()
	var echo, near net.PacketConn
	listen := func(s *space, c *net.PacketConn) func() error {
		return func() (err error) { *c, err = net.ListenPacket("udp", s.addrOf()); return err }
	}
	must(t, to.container.conn.Do(listen(to.container, &echo)))
	must(t, from.container.conn.Do(listen(from.container, &near)))
	go func() {
		buf := make([]byte, 64)
		for {
			n, from, err := echo.ReadFrom(buf)
			if err != nil {
				return
			}
			echo.WriteTo(buf[:n], from) //nolint:errcheck // the other side sees no answer
		}
	}()
	stop, ended, count := make(chan bool), make(chan error, 1), 0
	go func() {
		buf := make([]byte, 64)
		for {
			select {
			case <-stop:
				ended <- nil
				return
			default:
			}
			text := fmt.Sprint(count)
			near.SetDeadline(time.Now().Add(2 * patience)) //nolint:errcheck // a test
			_, err := near.WriteTo([]byte(text), echo.LocalAddr())
			if err == nil {
				var n int
				if n, _, err = near.ReadFrom(buf); err == nil && string(buf[:n]) != text {
					err = fmt.Errorf("got %q", buf[:n])
				}
			}
			if err != nil {
				ended <- fmt.Errorf("datagram %s: %w", text, err)
				return
			}
			count++
		}
	}()
	return func() int {
		t.Helper()
		close(stop)
		if err := <-ended; err != nil {
			t.Error(err)
		}
		near.Close() //nolint:errcheck // a test
		echo.Close() //nolint:errcheck // a test
		return count
	}
}

func (s *space) addrOf() string {
	list, err := s.conn.AddrList(s.link("eth0"), netlink.FAMILY_V4)
	must(s.t, err)
	return net.JoinHostPort(list[0].IP.String(), "0")
}

// unreachable checks that this host, and no other one, refuses a container's packets to an
// address.
func (h *host) unreachable(when, to string) {
	h.t.Helper()
	c, err := h.container.dial(to, patience)
	if !errors.Is(err, unix.EHOSTUNREACH) && !errors.Is(err, unix.ENETUNREACH) {
		h.t.Errorf("%s, to %s: %v, %v", when, to, c, err)
	}
}
