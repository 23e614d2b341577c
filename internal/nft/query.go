// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Get returns the element with this key. Get always takes about 0.06 ms. In a set of networks
// it returns the range that contains key. Get does not return an element that is being removed
// (see Remove).
func (c *Conn) Get(set string, key []byte) (Element, bool, error) {
	spec, ok := specOf(set)
	if !ok {
		return Element{}, false, fmt.Errorf("get element of %s: no such set", set)
	}
	got, err := c.get([]query{spec.element(key)})
	if err != nil {
		return Element{}, false, err
	}
	return got[0].Element, got[0].found && !got[0].leaving, nil
}

// found is the kernel's answer about an element or a set.
type found struct {
	Element
	found bool
}

// get reads elements. A missing table, set or element is not an error; found is false then.
func (c *Conn) get(what []query) ([]found, error) {
	out := make([]found, len(what))
	return out, c.ask(what, func(i int, answer []netlink.Message) error { return out[i].read(answer) })
}

func (f *found) read(got []netlink.Message) error {
	for _, m := range got {
		if m.Header.Type == msgNewSet {
			f.found = true
			continue
		}
		elems, err := decodeElements(m)
		if err != nil {
			return err
		}
		if len(elems) > 0 {
			f.Element, f.found = elems[0], true
		}
	}
	return nil
}

// List returns all elements of a set in any order; 20,000 elements take 139 ms. GC, repair and
// doctor use it, and so do operations on the sets of networks, which are small. For a missing
// table or set it returns none.
func (c *Conn) List(set string) ([]Element, error) {
	spec, ok := specOf(set)
	if !ok {
		return nil, fmt.Errorf("list %s: no such set", set)
	}
	all, err := settled(func() ([]Element, bool, error) {
		msgs, err := c.dump(spec.element(nil))
		if err != nil {
			return nil, false, err
		}
		all, err := decodeAll(msgs)
		return all, !interrupted(msgs) && (len(msgs) < 2 || fixed(all)), err
	}, Element.equal)
	return slices.DeleteFunc(all, func(e Element) bool { return e.leaving }), err
}

// fixed reports whether no element is listed twice or can expire (settled).
func fixed(all []Element) bool {
	seen := make(map[string]bool, len(all))
	for _, e := range all {
		name := string(e.Key) + string(e.KeyEnd)
		if e.timed || seen[name] {
			return false
		}
		seen[name] = true
	}
	return true
}

// settled reads until an answer is whole, or two in a row are the same. After five readings it returns the last one, because
// other programs may write all the time.
//
// The kernel says so if a commit changed what it listed (interrupted). Nothing says that a set changed without a commit: the kernel
// enlarges a hash table after the commit that filled it, and removes expired elements at any time. It sends a large set in parts, and
// counts the elements from the beginning for each part. If they have moved meanwhile, it sends some twice, and as many others
// not at all (nft_rhash_walk_ro, also in Linux 6.18). So a set in several parts is whole if no element is there twice, and none expires.
func settled[T any](read func() (list []T, whole bool, err error), same func(a, b T) bool) ([]T, error) {
	var before []T
	for try := 1; ; try++ {
		list, whole, err := read()
		if err != nil || whole || try == 5 || try > 1 && slices.EqualFunc(before, list, same) {
			return list, err
		}
		before = list
	}
}

// interrupted reports whether a commit changed what was listed.
func interrupted(msgs []netlink.Message) bool {
	return slices.ContainsFunc(msgs, func(m netlink.Message) bool { return m.Header.Flags&netlink.DumpInterrupted != 0 })
}

// decodeAll decodes a listing.
func decodeAll(msgs []netlink.Message) (all []Element, err error) {
	for _, m := range msgs {
		elems, err := decodeElements(m)
		if err != nil {
			return nil, err
		}
		all = append(all, elems...)
	}
	return all, nil
}

// Ref names a chain of any program's table. If Chain is empty, it names the table.
type Ref struct {
	Family nftables.TableFamily
	Table  string
	Chain  string
}

// Presence says what ReadPresence found.
type Presence struct {
	Found bool
	Drops bool // the chain is a base chain with the policy drop
}

// ReadPresence checks chains and tables in one system call.
func (c *Conn) ReadPresence(refs ...Ref) ([]Presence, error) {
	what := make([]query, len(refs))
	for i, r := range refs {
		what[i] = r.query()
	}
	out := make([]Presence, len(refs))
	return out, c.ask(what, func(i int, answer []netlink.Message) error {
		out[i].Found = true
		for _, m := range answer {
			a, err := message(m)
			if err != nil || refs[i].Chain == "" {
				return err
			}
			out[i].Drops = decodeChain(a).Drops
		}
		return nil
	})
}

// HasChain reports whether a chain exists.
func (c *Conn) HasChain(family nftables.TableFamily, table, chain string) (bool, error) {
	got, err := c.ReadPresence(Ref{family, table, chain})
	return err == nil && got[0].Found, err
}

func (r Ref) query() query {
	if r.Chain == "" {
		return query{get: unix.NFT_MSG_GETTABLE, family: r.Family, table: r.Table}
	}
	return query{get: unix.NFT_MSG_GETCHAIN, family: r.Family, table: r.Table, within: unix.NFTA_CHAIN_NAME, name: r.Chain}
}

// query asks for a table, or for an object in a table.
type query struct {
	get    netlink.HeaderType // unix.NFT_MSG_GETTABLE, …
	family nftables.TableFamily
	table  string // attribute 1 of each query; "" means all tables of the family
	within uint16 // attribute that holds name
	name   string // name of the chain or set; "" means all
	key    []byte // key of the element
}

// query returns the query for the set.
func (s setSpec) query() query {
	return query{get: unix.NFT_MSG_GETSET, family: s.family, table: s.tableName(), within: unix.NFTA_SET_NAME, name: s.name}
}

// element returns the query for one element, or for all elements if key is nil.
func (s setSpec) element(key []byte) query {
	return query{get: unix.NFT_MSG_GETSETELEM, family: s.family, table: s.tableName(), within: unix.NFTA_SET_ELEM_LIST_SET, name: s.name, key: key}
}

// String describes in error texts what the query asks for.
func (q query) String() string {
	what := FamilyName(q.family)
	for _, word := range [...]string{q.table, q.name} {
		if word != "" {
			what += " " + word
		}
	}
	return what
}

// message encodes the query. An ADD or DEL of many ports encodes thousands, so message makes only one
// allocation.
func (q query) message(flags netlink.HeaderFlags) netlink.Message {
	b := make([]byte, 0, 96)
	b = append(b, byte(q.family), unix.NFNETLINK_V0, 0, 0) // struct nfgenmsg: family, version, resource id
	if q.table != "" {
		b = appendString(b, unix.NFTA_TABLE_NAME, q.table)
	}
	if q.name != "" {
		b = appendString(b, q.within, q.name)
	}
	if q.key != nil {
		const head = unix.SizeofNlAttr
		inner := head + align(len(q.key))
		b = appendHead(b, unix.NFTA_SET_ELEM_LIST_ELEMENTS|unix.NLA_F_NESTED, 3*head+inner)
		b = appendHead(b, unix.NFTA_LIST_ELEM|unix.NLA_F_NESTED, 2*head+inner)
		b = appendHead(b, unix.NFTA_SET_ELEM_KEY|unix.NLA_F_NESTED, head+inner)
		b = appendHead(b, unix.NFTA_DATA_VALUE, head+len(q.key))
		b = append(b, q.key...)
		b = append(b, make([]byte, align(len(q.key))-len(q.key))...)
	}
	return netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | q.get, Flags: netlink.Request | flags},
		Data:   b,
	}
}

// appendHead appends the head of a netlink attribute. length includes the head.
func appendHead(b []byte, typ uint16, length int) []byte {
	b = binary.NativeEndian.AppendUint16(b, uint16(length))
	return binary.NativeEndian.AppendUint16(b, typ)
}

// appendString appends an attribute with a text that ends with NUL.
func appendString(b []byte, typ uint16, s string) []byte {
	length := len(s) + 1
	b = append(appendHead(b, typ, unix.SizeofNlAttr+length), s...)
	return append(b, make([]byte, align(length)-len(s))...)
}

// ask sends all queries with one system call. If there are more than 64, it sends 64 at a
// time, so that the answers fit into the socket's buffer. ask calls read with the answer for
// each object that exists.
func (c *Conn) ask(what []query, read func(i int, answer []netlink.Message) error) error {
	if err := c.dial(); err != nil {
		return err
	}
	for from := 0; from < len(what); from += fewElements {
		some := what[from:min(from+fewElements, len(what))]
		reqs := make([]netlink.Message, len(some))
		for i, q := range some {
			reqs[i] = q.message(0)
		}
		if _, err := c.nl.send(reqs); err != nil {
			return fmt.Errorf("ask nftables for %s: %w", some[0], err)
		}
		for i, q := range some {
			answer, err := c.nl.receive()
			if errors.Is(err, syscall.ENOENT) {
				continue
			}
			if err == nil {
				err = read(from+i, answer)
			}
			if err != nil {
				c.drain()
				return fmt.Errorf("ask nftables for %s: %w", q, err)
			}
		}
	}
	return nil
}

// list reads all objects that a query asks for, but not the elements of a set (List). If the table, chain or set is missing, it
// returns none.
func (c *Conn) list(q query) ([]netlink.Message, error) {
	return settled(func() ([]netlink.Message, bool, error) {
		msgs, err := c.dump(q)
		return msgs, !interrupted(msgs), err
	}, func(a, b netlink.Message) bool { return bytes.Equal(a.Data, b.Data) })
}

// dump reads all objects that a query asks for, once.
//
// The kernel sends a long answer in parts. For each part it walks through the objects from the
// beginning. A part is as large as the largest buffer that the kernel has seen on the socket, and at
// most 32 KiB, so the buffer has this size (makeRoom).
func (c *Conn) dump(q query) ([]netlink.Message, error) {
	m := q.message(netlink.Dump)
	if err := c.dial(); err != nil {
		return nil, err
	}
	if _, err := c.nl.send([]netlink.Message{m}); err != nil {
		return nil, fmt.Errorf("list nftables %s: %w", q, err)
	}
	msgs, err := c.nl.receive()
	if err == nil && slices.ContainsFunc(msgs, func(m netlink.Message) bool { return m.Header.Sequence != c.nl.seq }) {
		err = errors.New("an answer to another question")
	}
	switch {
	case errors.Is(err, syscall.ENOENT):
		return nil, nil
	case err != nil:
		c.drain()
		return nil, fmt.Errorf("list nftables %s: %w", q, err)
	}
	return msgs, nil
}

// Owned returns the elements of attachments, which are the elements whose comment names an
// owner. Owned searches the common sets and the given maps of conditions (Conditions.Maps).
// Owned reads every element, so only GC, repair and doctor use it. A kernel without nftables has none.
func (c *Conn) Owned(maps ...string) (elems []Element, err error) {
	all, err := c.ofAttachments(maps)
	if err != nil && c.Absent() {
		return nil, nil
	}
	return slices.DeleteFunc(all, func(e Element) bool { _, ok := OwnerOf(e.Comment); return !ok }), err
}

// Ownerless returns elements that none of our programs made or would remove. These are elements of
// attachments' sets without an owner in the comment, and elements of bridges' sets without a network
// in the comment.
func (c *Conn) Ownerless() (elems []Element, err error) {
	sets, err := c.setNames(nftables.TableFamilyINet)
	if err != nil {
		return nil, err
	}
	maps := slices.DeleteFunc(sets, func(name string) bool {
		spec, ok := specOf(name)
		return !ok || !spec.exclusive() || !strings.Contains(name, "_")
	})
	if elems, err = c.ofAttachments(maps); err != nil {
		return nil, err
	}
	elems = slices.DeleteFunc(elems, func(e Element) bool { _, ok := OwnerOf(e.Comment); return ok })
	ofBridges, err := c.listAll(SetIsolation, SetBridgeOK, SetApart, SetInternal, SetInside, SetFastPath)
	return append(elems, slices.DeleteFunc(ofBridges, func(e Element) bool { return e.Comment != "" })...), err
}

// ofAttachments returns the elements in the sets of attachments and in the given maps.
func (c *Conn) ofAttachments(maps []string) (elems []Element, err error) {
	sets, err := c.setNames(nftables.TableFamilyINet)
	if err != nil {
		return nil, err
	}
	for _, s := range demanded(sets) {
		if s.level == ofLength {
			maps = append(maps, s.name)
		}
	}
	closed := ClosedSets()
	maps = slices.Concat(maps, closed[0][:], closed[1][:], SourceSets())
	return c.listAll(append(setsWhere(func(s setSpec) bool { return s.level == ofAttachments }), maps...)...)
}

// OfNetworks returns the elements of networks. The comment of each is the network's name.
func (c *Conn) OfNetworks() (elems []Element, err error) {
	sets, err := c.setNames(nftables.TableFamilyINet)
	if err != nil {
		return nil, err
	}
	spans := slices.DeleteFunc(sets, func(name string) bool { s, ok := specOf(name); return !ok || s.level != ofBlocks })
	return c.listAll(append(setsWhere(func(s setSpec) bool { return s.level == ofNetworks || s.level == ofFlows }), spans...)...)
}

func (c *Conn) listAll(sets ...string) (elems []Element, err error) {
	for _, set := range sets {
		list, err := c.List(set)
		if err != nil {
			return nil, err
		}
		elems = append(elems, list...)
	}
	return elems, nil
}
