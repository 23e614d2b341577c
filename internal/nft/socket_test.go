// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"reflect"
	"strings"
	"syscall"
	"testing"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/test/nettest"
)

// given is a socket of the library that has one message.
type given struct{ msgs []netlink.Message }

func (given) Close() error                          { return nil }
func (given) Send(netlink.Message) error            { return nil }
func (given) SendMessages([]netlink.Message) error  { return nil }
func (g given) Receive() ([]netlink.Message, error) { return g.msgs, nil }

func (g given) ReceiveIter() iter.Seq2[netlink.Message, error] {
	return func(yield func(netlink.Message, error) bool) {
		for _, m := range g.msgs {
			if !yield(m, nil) {
				return
			}
		}
	}
}

// Errors are read as the library reads them, and a malformed datagram does no harm.
func FuzzFailure(f *testing.F) {
	echo := append(binary.NativeEndian.AppendUint32(nil, 20), make([]byte, 16)...)
	text := netlink.Attribute{Type: 1, Data: []byte("no such set\x00")}
	tlv, err := netlink.MarshalAttributes([]netlink.Attribute{text, {Type: 2, Data: []byte{7, 0, 0, 0}}})
	if err != nil {
		f.Fatal(err)
	}
	enoent := binary.NativeEndian.AppendUint32(nil, ^uint32(unix.ENOENT)+1)
	f.Add(uint16(netlink.Error), uint16(0), make([]byte, 4))
	f.Add(uint16(netlink.Error), uint16(netlink.AcknowledgeTLVs), append(append(enoent, echo...), tlv...))
	f.Add(uint16(netlink.Error), uint16(0), append(enoent, echo...))
	f.Add(uint16(netlink.Done), uint16(netlink.Multi|netlink.AcknowledgeTLVs), append(enoent, tlv...))
	f.Add(uint16(netlink.Done), uint16(netlink.Multi), []byte{})
	f.Add(uint16(netlink.Error), uint16(netlink.AcknowledgeTLVs), append(enoent, 255, 255, 255, 255))
	f.Fuzz(func(t *testing.T, typ, flags uint16, data []byte) {
		if typ == uint16(netlink.Done) || typ == uint16(netlink.Error) {
			m := netlink.Message{Header: netlink.Header{Type: netlink.HeaderType(typ), Flags: netlink.HeaderFlags(flags), Sequence: 7}, Data: data}
			sameFailure(t, m)
		}
	})
}

func sameFailure(t *testing.T, m netlink.Message) {
	t.Helper()
	got := failure(m)
	if m.Header.Flags&netlink.Multi != 0 && m.Header.Type != netlink.Done {
		return // the library would wait for the end
	}
	_, want := netlink.NewConn(given{[]netlink.Message{m}}, 0).Receive()
	var a, b *netlink.OpError
	if (got == nil) != (want == nil) || errors.As(got, &a) != errors.As(want, &b) {
		t.Fatalf("%v; the library: %v", got, want)
	}
	if a == nil || b.Sequence == 0 { // the library gives up on some damaged messages and forgets the number
		return
	}
	if !reflect.DeepEqual(a, b) {
		t.Fatalf("%+v; the library: %+v", a, b)
	}
}

// The kernel adds a text to its errors, also to that of a message which is larger than any other.
func TestKernelsText(t *testing.T) {
	c := open(t)
	elems := make([]nftables.SetElement, 970)
	for i := range elems {
		elems[i] = nftables.SetElement{Key: binary.BigEndian.AppendUint32(nil, uint32(i)), Comment: strings.Repeat("x", 40)}
	}
	msgs, err := encode(func(enc *nftables.Conn) error {
		table := &nftables.Table{Name: "nowhere", Family: nftables.TableFamilyINet} // before 6.6 the kernel says nothing of a missing set
		return enc.SetAddElements(&nftables.Set{Table: table, Name: "nobody"}, elems)
	})
	if err != nil {
		t.Fatal(err)
	}
	if size := len(msgs[len(msgs)-1].Data); size < 60<<10 {
		t.Fatalf("the message has only %d bytes", size)
	}
	err = c.send(msgs)
	var op *netlink.OpError
	if !errors.As(err, &op) || !errors.Is(err, syscall.ENOENT) || op.Sequence == 0 || op.Offset == 0 {
		t.Fatalf("%v", err)
	}
	_, err = c.HasChain(nftables.TableFamilyINet, strings.Repeat("x", 300), "nothing")
	if !errors.As(err, &op) || op.Message == "" {
		t.Errorf("the next question: %v", err)
	}
}

// An answer that does not fit is an error, and the next query gets its own answer.
func TestTruncatedAnswer(t *testing.T) {
	c := open(t)
	c.Add(port(80, "10.1.0.5:80", testOwner))
	commit(t, c)
	spec, _ := specOf(SetPorts4)
	m := spec.query().message(0)
	if _, err := c.nl.send([]netlink.Message{m, m}); err != nil {
		t.Fatal(err)
	}
	c.nl.buf = c.nl.buf[:32]
	if _, err := c.nl.receive(); err == nil || !strings.Contains(err.Error(), "truncated") {
		t.Errorf("%v", err)
	}
	c.drain()
	mustGet(t, c, port(80, "10.1.0.5:80", testOwner))
}

// A transaction may be larger than the system's limit for buffers.
func TestBuffersBeyondTheLimit(t *testing.T) {
	c := open(t)
	if err := c.dial(); err != nil {
		t.Fatal(err)
	}
	force := func() error {
		return unix.SetsockoptInt(int(c.nl.Socket), unix.SOL_SOCKET, unix.SO_SNDBUFFORCE, buffer)
	}
	nettest.Need(t, nettest.Feature{Name: "the machine's CAP_NET_ADMIN", Probe: force})
	const want = 64 << 20
	if err := c.nl.grow(want); err != nil {
		t.Fatal(err)
	}
	for name, option := range map[string]int{"send": unix.SO_SNDBUF, "receive": unix.SO_RCVBUF} {
		if got, err := unix.GetsockoptInt(int(c.nl.Socket), unix.SOL_SOCKET, option); err != nil || got < want {
			t.Errorf("%s buffer: %d bytes, %v", name, got, err)
		}
	}
}

// A list of many parts is complete.
func TestLongList(t *testing.T) {
	c := open(t)
	const n = 5000
	for i := range n {
		c.Add(port(uint16(i+1), fmt.Sprintf("10.1.%d.%d:80", i>>8, i&255), testOwner))
	}
	commit(t, c)
	got, err := c.List(SetPorts4)
	if err != nil || len(got) != n {
		t.Errorf("%d elements, %v", len(got), err)
	}
}

// After an error, and after a panic, the encoder has nothing of the call.
func TestEncoderForgets(t *testing.T) {
	table := &nftables.Table{Name: "left", Family: nftables.TableFamilyINet}
	failed := errors.New("failed")
	if _, err := encode(func(enc *nftables.Conn) error { enc.AddTable(table); return failed }); !errors.Is(err, failed) {
		t.Error(err)
	}
	func() {
		defer func() { _ = recover() }()
		_, _ = encode(func(enc *nftables.Conn) error { enc.AddTable(table); panic("in the middle") })
	}()
	msgs, err := encode(func(enc *nftables.Conn) error { enc.DelTable(table); return nil })
	if err != nil || len(msgs) != 1 {
		t.Errorf("%v, %v", msgs, err)
	}
	if msgs, err := encode(func(*nftables.Conn) error { return nil }); err != nil || len(msgs) != 0 {
		t.Errorf("nothing: %v, %v", msgs, err)
	}
}
