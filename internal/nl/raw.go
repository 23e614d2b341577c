// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nl

import (
	"iter"

	"github.com/vishvananda/netlink"
	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/netns"
)

// request sends one message for which the library has no function. request returns the answers
// of one type; 0 means any type.
func (c *Conn) request(msgType, flags int, answer uint16, parts ...vnl.NetlinkRequestData) ([][]byte, error) {
	req := vnl.NewNetlinkRequest(msgType, flags)
	for _, p := range parts {
		req.AddData(p)
	}
	return c.raw.execute(req, answer)
}

// dial opens both sockets of a Conn in the namespace of the calling thread.
func dial() (*netlink.Handle, *socket, error) {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, nil, err
	}
	s, err := openSocket()
	if err != nil {
		h.Close()
		return nil, nil, err
	}
	return h, s, nil
}

// dialIn works like dial, in another namespace.
func dialIn(ns *netns.NS) (h *netlink.Handle, raw *socket, err error) {
	err = ns.Visit(func() error {
		h, raw, err = dial()
		return err
	})
	if err != nil && h != nil {
		h.Close()
		raw.close()
	}
	return h, raw, err
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

// attributes yields the kind and value of each attribute. attributes stops at a truncated
// attribute; the library's parser may panic there.
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
