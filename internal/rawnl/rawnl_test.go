// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package rawnl

import (
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"
)

// ask sends RTM_GETLINK for the link with this index. The kernel answers at once.
func ask(t *testing.T, s Socket, index uint32) {
	t.Helper()
	b := binary.NativeEndian.AppendUint32(nil, unix.NLMSG_HDRLEN+unix.SizeofIfInfomsg)
	b = binary.NativeEndian.AppendUint16(b, unix.RTM_GETLINK)
	b = binary.NativeEndian.AppendUint16(b, unix.NLM_F_REQUEST)
	b = append(b, make([]byte, 12)...) // sequence, port, and the family
	b = binary.NativeEndian.AppendUint32(b, index)
	b = append(b, make([]byte, 8)...)
	if err := s.Send(b); err != nil {
		t.Fatal(err)
	}
}

// A datagram that does not fit is an error, and the next answer is whole.
func TestReceive(t *testing.T) {
	s, err := Open(unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	buf := make([]byte, 32<<10)
	ask(t, s, 1)
	if msgs, err := s.Receive(buf[:64]); err == nil {
		t.Errorf("got %d messages of a truncated datagram", len(msgs))
	}
	for range 2 {
		ask(t, s, 1)
		msgs, err := s.Receive(buf)
		if err != nil || len(msgs) != 1 || msgs[0].Header.Type != unix.RTM_NEWLINK {
			t.Errorf("%v, %v", msgs, err)
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if _, err := s.Receive(buf); err == nil {
		t.Error("reads from a closed socket")
	}
}
