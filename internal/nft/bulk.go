// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"encoding/binary"
	"fmt"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Bulk writes many elements of one table. The library needs ten times as long for an element, and Services have hundreds of
// thousands. Removals come before additions.
type Bulk struct {
	table string
	sets  [2]map[string]*SetBulk // removals, additions
	order [2][]*SetBulk
	size  int
}

// NewServicesBulk returns an empty bulk for the table of Services.
func NewServicesBulk() *Bulk {
	return &Bulk{table: ServicesTable, sets: [2]map[string]*SetBulk{make(map[string]*SetBulk), make(map[string]*SetBulk)}}
}

// Size returns how many bytes the elements have.
func (b *Bulk) Size() int { return b.size }

// Remove returns where elements to remove from a set are added.
func (b *Bulk) Remove(set string) *SetBulk { return b.in(0, set) }

// Add returns where elements to add to a set are added.
func (b *Bulk) Add(set string) *SetBulk { return b.in(1, set) }

func (b *Bulk) in(order int, set string) *SetBulk {
	s := b.sets[order][set]
	if s == nil {
		s = &SetBulk{bulk: b, set: set}
		b.sets[order][set] = s
		b.order[order] = append(b.order[order], s)
	}
	return s
}

// SetBulk is what a Bulk does with one set.
type SetBulk struct {
	bulk *Bulk
	set  string
	full [][]byte // of messages
	open []byte
}

// mostInMessage keeps the list of a message shorter than an attribute may be (64 KiB).
const mostInMessage = 60_000

// Element appends an element: a key, and for a map that gets it the data. The end of a range is a key with end.
func (s *SetBulk) Element(key, data []byte, end bool) {
	const head = unix.SizeofNlAttr
	before := len(s.open)
	value := func(n int) int { return 2*head + align(n) } // a nested NFTA_DATA_VALUE
	length := head + value(len(key))
	if data != nil {
		length += value(len(data))
	}
	if end {
		length += head + 4
	}
	b := appendHead(s.open, unix.NFTA_LIST_ELEM|unix.NLA_F_NESTED, length)
	b = appendValue(b, unix.NFTA_SET_ELEM_KEY, key)
	if data != nil {
		b = appendValue(b, unix.NFTA_SET_ELEM_DATA, data)
	}
	if end {
		b = binary.BigEndian.AppendUint32(appendHead(b, unix.NFTA_SET_ELEM_FLAGS, head+4), unix.NFT_SET_ELEM_INTERVAL_END)
	}
	s.open = b
	s.bulk.size += len(b) - before
	if len(b) > mostInMessage {
		s.full, s.open = append(s.full, b), make([]byte, 0, mostInMessage+256)
	}
}

func appendValue(b []byte, typ uint16, value []byte) []byte {
	const head = unix.SizeofNlAttr
	b = appendHead(b, typ|unix.NLA_F_NESTED, 2*head+align(len(value)))
	b = appendHead(b, unix.NFTA_DATA_VALUE, head+len(value))
	b = append(b, value...)
	for range align(len(value)) - len(value) {
		b = append(b, 0)
	}
	return b
}

// messages returns the messages of the bulk.
func (b *Bulk) messages() (list []netlink.Message) {
	for order, sets := range b.order {
		typ, flags := netlink.HeaderType(unix.NFT_MSG_DELSETELEM), netlink.Request
		if order == 1 {
			typ, flags = unix.NFT_MSG_NEWSETELEM, netlink.Request|netlink.Create|netlink.Excl
		}
		for _, s := range sets {
			for _, elements := range append(s.full, s.open) {
				if len(elements) > 0 {
					list = append(list, netlink.Message{
						Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | typ, Flags: flags},
						Data:   s.message(elements),
					})
				}
			}
		}
	}
	return list
}

func (s *SetBulk) message(elements []byte) []byte {
	b := make([]byte, 0, len(elements)+128)
	b = append(b, byte(nftables.TableFamilyINet), unix.NFNETLINK_V0, 0, 0)
	b = appendString(b, unix.NFTA_SET_ELEM_LIST_TABLE, s.bulk.table)
	b = appendString(b, unix.NFTA_SET_ELEM_LIST_SET, s.set)
	b = appendHead(b, unix.NFTA_SET_ELEM_LIST_ELEMENTS|unix.NLA_F_NESTED, unix.SizeofNlAttr+len(elements))
	return append(b, elements...)
}

// Bulky is an Extra that also writes many elements, after what Plan returns. Plan must return a function, even if it does nothing, or the
// elements are not written.
type Bulky interface {
	Extra
	// Bulk returns the elements, after Plan.
	Bulk() *Bulk
}

// EachElement calls do with each element of a set of the table of Services. The bytes are valid during the call. A missing set has none.
func (c *Conn) EachElement(set string, do func(key, data []byte, end bool)) error {
	s, _ := serviceSet(set)
	msgs, err := settled(func() ([]netlink.Message, bool, error) {
		msgs, err := c.dump(s.element(nil))
		return msgs, !interrupted(msgs) && (len(msgs) < 2 || eachOnce(msgs)), err
	}, func(netlink.Message, netlink.Message) bool { return false })
	elementsOf(msgs, do)
	return err
}

// eachOnce reports whether no element is listed twice (settled).
func eachOnce(msgs []netlink.Message) bool {
	once, seen := true, make(map[string]bool)
	elementsOf(msgs, func(key, _ []byte, end bool) {
		name := string(key)
		if end { // of a range, whose end may be the beginning of another
			name += "end"
		}
		once = once && !seen[name]
		seen[name] = true
	})
	return once
}

func elementsOf(msgs []netlink.Message, do func(key, data []byte, end bool)) {
	for _, m := range msgs {
		if len(m.Data) >= 4 {
			elementsIn(find(m.Data[4:], unix.NFTA_SET_ELEM_LIST_ELEMENTS), do)
		}
	}
}

// elementsIn calls do with each element of a list.
func elementsIn(list []byte, do func(key, data []byte, end bool)) {
	for len(list) > 0 {
		var element []byte
		if _, element, list = nextAttribute(list); element == nil {
			return
		}
		flags := find(element, unix.NFTA_SET_ELEM_FLAGS)
		end := len(flags) == 4 && binary.BigEndian.Uint32(flags)&unix.NFT_SET_ELEM_INTERVAL_END != 0
		do(find(find(element, unix.NFTA_SET_ELEM_KEY), unix.NFTA_DATA_VALUE), find(find(element, unix.NFTA_SET_ELEM_DATA), unix.NFTA_DATA_VALUE), end)
	}
}

// find returns an attribute, or nil. It needs no memory for the others.
func find(b []byte, typ uint16) []byte {
	for len(b) > 0 {
		var have uint16
		var data []byte
		if have, data, b = nextAttribute(b); have == typ {
			return data
		}
	}
	return nil
}

// nextAttribute splits b behind its first attribute. What cannot be read is none.
func nextAttribute(b []byte) (typ uint16, data, rest []byte) {
	if len(b) < unix.SizeofNlAttr {
		return 0, nil, nil
	}
	size := int(binary.NativeEndian.Uint16(b))
	if size < unix.SizeofNlAttr || size > len(b) {
		return 0, nil, nil
	}
	typ = binary.NativeEndian.Uint16(b[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
	return typ, b[unix.SizeofNlAttr:size:size], b[min(align(size), len(b)):]
}

// ServiceKey names an element of a set of the table of Services.
type ServiceKey struct {
	Set string
	Key []byte
}

// FindServiceElements calls found with the number of each key that the kernel has, and with the data of its element. It lists no set, so it
// takes as long for a few keys whatever the size of the sets. A missing table or set has no elements.
func (c *Conn) FindServiceElements(keys []ServiceKey, found func(i int, data []byte)) error {
	what := make([]query, len(keys))
	for i, k := range keys {
		s, ok := serviceSet(k.Set)
		if !ok {
			return fmt.Errorf("table inet %s has no set %q", ServicesTable, k.Set)
		}
		what[i] = s.element(k.Key)
	}
	return c.ask(what, func(i int, answer []netlink.Message) error {
		elementsOf(answer, func(_, data []byte, _ bool) { found(i, data) })
		return nil
	})
}
