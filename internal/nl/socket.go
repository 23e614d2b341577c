// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"encoding/binary"
	"iter"
	"sync"
	"syscall"

	"github.com/vishvananda/netlink"
	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/rawnl"
)

// socket is a netlink socket on which the kernel applies the filters in requests
// (NETLINK_GET_STRICT_CHK, Linux >= 4.20).
type socket struct {
	rawnl.Socket
	mu  sync.Mutex
	seq uint32
}

// buffers has a receive buffer for all sockets, because to clear a new one takes longer than a
// request. (The library clears 64 KiB of stack for each datagram.)
var buffers = sync.Pool{New: func() any { return new([vnl.RECEIVE_BUFFER_SIZE]byte) }}

// dial opens a socket in the namespace of the calling thread, for any protocol of netlink(7).
func dial(protocol int) (*socket, error) { return strict(rawnl.Open(protocol)) }

func strict(s rawnl.Socket, err error) (*socket, error) {
	if err != nil {
		return nil, err
	}
	// A kernel that does not know this option sends more than we asked for.
	_ = unix.SetsockoptInt(int(s), unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1)
	return &socket{Socket: s}, nil
}

// execute sends a request and returns the answers of one type; type 0 means any. If a dump was
// interrupted, execute returns its answers together with netlink.ErrDumpInterrupted.
func (s *socket) execute(req *vnl.NetlinkRequest, kind uint16) ([][]byte, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seq++
	req.Seq = s.seq
	if err := s.Send(req.Serialize()); err != nil {
		return nil, err
	}
	got := answers{seq: s.seq, kind: kind}
	for !got.complete {
		msgs, err := s.receive()
		for i := 0; err == nil && i < len(msgs); i++ {
			err = got.add(msgs[i])
		}
		if err != nil {
			return nil, err
		}
	}
	if got.interrupted {
		return got.list, netlink.ErrDumpInterrupted
	}
	return got.list, nil
}

// answers collects what the kernel sent for one request.
type answers struct {
	seq  uint32
	kind uint16
	list [][]byte

	interrupted, complete bool
}

// add handles one message. An earlier request may have got a single message as its answer. Its
// acknowledgement then comes later, and add skips it.
func (a *answers) add(m syscall.NetlinkMessage) error {
	if a.complete || m.Header.Seq != a.seq {
		return nil
	}
	a.interrupted = a.interrupted || m.Header.Flags&unix.NLM_F_DUMP_INTR != 0
	last := m.Header.Type == unix.NLMSG_DONE || m.Header.Type == unix.NLMSG_ERROR
	a.complete = last || m.Header.Flags&unix.NLM_F_MULTI == 0
	if last {
		return errorOf(m)
	}
	if a.kind == 0 || m.Header.Type == a.kind {
		a.list = append(a.list, m.Data)
	}
	return nil
}

// receive reads one datagram from the kernel.
func (s *socket) receive() ([]syscall.NetlinkMessage, error) {
	buf := buffers.Get().(*[vnl.RECEIVE_BUFFER_SIZE]byte)
	defer buffers.Put(buf)
	return s.Receive(buf[:])
}

// errorOf returns the error in the last message of an answer. For an acknowledgement it
// returns nil.
func errorOf(m syscall.NetlinkMessage) error {
	if len(m.Data) < 4 {
		return nil
	}
	if errno := int32(binary.NativeEndian.Uint32(m.Data)); errno != 0 {
		return syscall.Errno(-errno)
	}
	return nil
}

// request sends one message for which the library has no function. request returns the answers
// of one type; 0 means any type.
func (c *Conn) request(msgType, flags int, answer uint16, parts ...vnl.NetlinkRequestData) ([][]byte, error) {
	req := vnl.NewNetlinkRequest(msgType, flags)
	for _, p := range parts {
		req.AddData(p)
	}
	return c.raw.execute(req, answer)
}

// linkHead returns the header of a message about a link. index is 0 if an attribute names the
// link.
func linkHead(index int) *vnl.IfInfomsg {
	head := vnl.NewIfInfomsg(unix.AF_UNSPEC)
	head.Index = int32(index)
	return head
}

func attr(kind int, value []byte) *vnl.RtAttr { return vnl.NewRtAttr(kind, value) }

func attr32(kind int, value uint32) *vnl.RtAttr { return attr(kind, vnl.Uint32Attr(value)) }

// attributes yields the kind and value of each attribute. It stops at an attribute that was cut
// off, where the library's parser may panic.
func attributes(b []byte) iter.Seq2[int, []byte] {
	return func(yield func(int, []byte) bool) {
		for len(b) >= unix.SizeofRtAttr {
			n := int(vnl.NativeEndian().Uint16(b))
			kind := vnl.NativeEndian().Uint16(b[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
			if n < unix.SizeofRtAttr || n > len(b) || !yield(int(kind), b[unix.SizeofRtAttr:n]) {
				return
			}
			b = b[min(len(b), (n+unix.RTA_ALIGNTO-1)&^(unix.RTA_ALIGNTO-1)):]
		}
	}
}

// find returns a nested attribute. path has the kinds of the attributes from outside to
// inside.
func find(data []byte, path ...int) (value []byte) {
	value = data
	for _, want := range path {
		data, value = value, nil
		for kind, v := range attributes(data) {
			if kind == want {
				value = v
			}
		}
	}
	return value
}
