// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package rawnl has netlink sockets for processes that live for a few milliseconds (docs/adr/0066).
// They do not use Go's poller: the kernel's answers are ready when the send call returns. The packages
// nl and nft build on them.
package rawnl

import (
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Socket is a netlink(7) socket that is bound. Its value is the descriptor.
type Socket int

// Open opens a socket in the network namespace of the calling thread.
func Open(protocol int) (Socket, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return -1, os.NewSyscallError("socket", err)
	}
	return Bind(fd)
}

// Bind takes ownership of the descriptor of a new socket, and binds it.
func Bind(fd int) (Socket, error) {
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return -1, errors.Join(os.NewSyscallError("bind", err), unix.Close(fd))
	}
	return Socket(fd), nil
}

// Close closes the socket. Later calls fail, also when another file has its number.
func (s *Socket) Close() error {
	fd := *s
	*s = -1
	return os.NewSyscallError("close", unix.Close(int(fd)))
}

// Send sends messages to the kernel with one system call.
func (s Socket) Send(msgs []byte) error {
	for {
		err := unix.Sendto(int(s), msgs, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
		if !errors.Is(err, unix.EINTR) {
			return os.NewSyscallError("sendto", err)
		}
	}
}

// Receive reads one datagram into buf, and returns copies of its messages. A datagram that does not
// fit is an error and is lost.
func (s Socket) Receive(buf []byte) ([]syscall.NetlinkMessage, error) {
	b, err := s.Read(buf)
	if err != nil {
		return nil, err
	}
	return syscall.ParseNetlinkMessage(append([]byte(nil), b...))
}

// Read reads one datagram into buf, and returns the part of buf that it fills, for callers who read very many messages.
// A datagram that does not fit is an error and is lost.
func (s Socket) Read(buf []byte) ([]byte, error) {
	for {
		n, from, err := unix.Recvfrom(int(s), buf, unix.MSG_TRUNC)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return nil, os.NewSyscallError("recvfrom", err)
		}
		if n > len(buf) {
			return nil, fmt.Errorf("a netlink message of %d bytes was truncated", n)
		}
		if sender, ok := from.(*unix.SockaddrNetlink); !ok || sender.Pid != 0 {
			return nil, fmt.Errorf("netlink message from %v, which is not the kernel", from)
		}
		return buf[:n], nil
	}
}
