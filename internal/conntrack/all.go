// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"encoding/binary"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/rawnl"
)

// All returns the wanted flows of both families. The kernel reads its whole hash table, which takes
// 6 ms with the usual 262,144 buckets. Only the wanted flows are held in memory, because a busy node has
// hundreds of thousands. The namespace is that of the calling thread.
func All(wanted func(Flow) bool) (flows []Flow, err error) {
	s, err := rawnl.Open(unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("list conntrack entries: %w", err)
	}
	defer s.Close() //nolint:errcheck // nothing was written
	if flows, err = all(s, wanted); err != nil {
		return nil, fmt.Errorf("list conntrack entries: %w", err)
	}
	return flows, nil
}

func all(s rawnl.Socket, wanted func(Flow) bool) (flows []Flow, err error) {
	req := dump(unix.AF_UNSPEC, nil)
	req.Header.Length, req.Header.Sequence = uint32(unix.NLMSG_HDRLEN+len(req.Data)), 1
	text, err := req.MarshalBinary()
	if err == nil {
		err = s.Send(text)
	}
	buf := make([]byte, 1<<16) // the kernel sends at most 32 KB at once
	for err == nil {
		var msgs []syscall.NetlinkMessage
		msgs, err = s.Receive(buf)
		for _, m := range msgs {
			switch m.Header.Type {
			case unix.NLMSG_DONE, unix.NLMSG_ERROR:
				return flows, errnoOf(m.Data)
			case uint16(msgNew):
				flow, err := parse(m.Data)
				if err != nil {
					return nil, err
				}
				if wanted(flow) {
					flows = append(flows, flow)
				}
			}
		}
	}
	return nil, err
}

// errnoOf returns the error of a message that ends a dump.
func errnoOf(data []byte) error {
	if len(data) < 4 {
		return nil
	}
	if code := int32(binary.NativeEndian.Uint32(data)); code < 0 {
		return unix.Errno(-code)
	}
	return nil
}
