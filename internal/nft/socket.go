// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"encoding/binary"
	"errors"
	"os"
	"syscall"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/rawnl"
)

// socket is an nfnetlink socket. It does what a netlink.Conn does with the option
// ExtendedAcknowledge, but in half as many system calls: it does not use Go's poller, and it does not
// ask for the size of a datagram before it reads one.
type socket struct {
	rawnl.Socket
	seq uint32
	buf []byte // as large as the longest answer to what was sent
}

// The longest answers, in bytes. An error has the data of the message that failed, and a text with
// headers.
const (
	longestObject = 8 << 10  // a page of at most 8 KiB (NLMSG_GOODSIZE)
	longestPart   = 32 << 10 // of a dump
	longestText   = 1 << 10
)

func openSocket() (*socket, error) {
	s, err := rawnl.Open(unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, err
	}
	return newSocket(s)
}

// newSocket takes ownership of a socket that is bound.
func newSocket(s rawnl.Socket) (*socket, error) {
	// The kernel then adds a text to its errors.
	if err := unix.SetsockoptInt(int(s), unix.SOL_NETLINK, unix.NETLINK_EXT_ACK, 1); err != nil {
		return nil, errors.Join(os.NewSyscallError("setsockopt", err), s.Close())
	}
	return &socket{Socket: s}, nil
}

// grow sets the sizes of the socket's buffers to n bytes.
func (s *socket) grow(n int) error {
	return errors.Join(
		s.setSize(unix.SO_SNDBUFFORCE, unix.SO_SNDBUF, n),
		s.setSize(unix.SO_RCVBUFFORCE, unix.SO_RCVBUF, n))
}

// setSize goes beyond the system's limits (net.core.*mem_max), because the kernel refuses a
// transaction that is larger than the buffer. In a user namespace it may not: there the limits hold.
func (s *socket) setSize(force, limited, n int) error {
	if unix.SetsockoptInt(int(s.Socket), unix.SOL_SOCKET, force, n) == nil {
		return nil
	}
	return os.NewSyscallError("setsockopt", unix.SetsockoptInt(int(s.Socket), unix.SOL_SOCKET, limited, n))
}

// send sends messages with one system call. It returns them with their numbers.
func (s *socket) send(msgs []netlink.Message) ([]netlink.Message, error) {
	s.makeRoom(msgs)
	var out []byte
	for i := range msgs {
		s.seq++
		msgs[i].Header.Sequence = s.seq
		msgs[i].Header.Length = uint32(align(unix.NLMSG_HDRLEN + len(msgs[i].Data)))
		b, err := msgs[i].MarshalBinary()
		if err != nil {
			return nil, &netlink.OpError{Op: "send-messages", Err: err}
		}
		out = append(out, b...)
	}
	if err := s.Send(out); err != nil {
		return nil, &netlink.OpError{Op: "send-messages", Err: err}
	}
	return msgs, nil
}

// makeRoom makes the buffer large enough for each answer to the messages. A larger buffer would cost
// a short process more time than reading a transaction's answers.
func (s *socket) makeRoom(msgs []netlink.Message) {
	n := longestObject
	for _, m := range msgs {
		n = max(n, len(m.Data)+longestText)
		if m.Header.Flags&netlink.Dump == netlink.Dump {
			n = max(n, longestPart)
		}
	}
	if n > len(s.buf) {
		s.buf = make([]byte, n)
	}
}

func align(n int) int { return (n + unix.NLMSG_ALIGNTO - 1) &^ (unix.NLMSG_ALIGNTO - 1) }

// receive reads the kernel's next answer, with all its parts. If the answer is an error, receive
// returns a *netlink.OpError.
func (s *socket) receive() (all []netlink.Message, err error) {
	for {
		msgs, err := s.Receive(s.buf)
		if err != nil {
			return nil, &netlink.OpError{Op: "receive", Err: err}
		}
		more := false
		for _, raw := range msgs {
			m := messageOf(raw)
			if err := failure(m); err != nil {
				return nil, err
			}
			more = m.Header.Flags&netlink.Multi != 0
			if more && m.Header.Type == netlink.Done {
				return all, nil
			}
			all = append(all, m)
		}
		if !more {
			return all, nil
		}
	}
}

func messageOf(m syscall.NetlinkMessage) netlink.Message {
	return netlink.Message{
		Header: netlink.Header{
			Length: m.Header.Len, Type: netlink.HeaderType(m.Header.Type), Flags: netlink.HeaderFlags(m.Header.Flags),
			Sequence: m.Header.Seq, PID: m.Header.Pid,
		},
		Data: m.Data,
	}
}

// failure returns the error in a message, or nil. The end of a dump may contain one too.
func failure(m netlink.Message) error {
	rest := m.Data
	switch {
	case m.Header.Type == netlink.Error:
	case m.Header.Type == netlink.Done && m.Header.Flags&netlink.Multi != 0 && len(rest) > 0:
	default:
		return nil
	}
	if len(rest) < 4 {
		return &netlink.OpError{Op: "receive", Err: errMalformed}
	}
	errno := -int(int32(binary.NativeEndian.Uint32(rest)))
	if errno == 0 {
		return nil
	}
	op := &netlink.OpError{Op: "receive", Err: syscall.Errno(errno), Sequence: m.Header.Sequence}
	rest = rest[4:]
	if m.Header.Type == netlink.Error { // the message that failed comes before the text
		if len(rest) < unix.NLMSG_HDRLEN || len(rest) < int(binary.NativeEndian.Uint32(rest)) {
			return op
		}
		rest = rest[binary.NativeEndian.Uint32(rest):]
	}
	if m.Header.Flags&netlink.AcknowledgeTLVs != 0 {
		explain(op, rest)
	}
	return op
}

// explain adds the kernel's text to an error (NLMSGERR_ATTR_MSG, NLMSGERR_ATTR_OFFS).
func explain(op *netlink.OpError, attrs []byte) {
	ad, err := netlink.NewAttributeDecoder(attrs)
	if err != nil {
		return
	}
	for ad.Next() {
		switch ad.Type() {
		case 1:
			op.Message = ad.String()
		case 2:
			op.Offset = int(ad.Uint32())
		}
	}
}
