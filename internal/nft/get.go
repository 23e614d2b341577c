// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Get fetches one element by key: a constant 0.06 ms. In a network-level set
// it finds the range that holds key. An element that is on its way out (see
// Remove) is not found.
func (c *Conn) Get(set string, key []byte) (Element, bool, error) {
	spec, ok := specOf(set)
	if !ok {
		return Element{}, false, fmt.Errorf("get element of %s: no such set", set)
	}
	got, err := c.get([]lookup{{spec, key}})
	if err != nil {
		return Element{}, false, err
	}
	return got[0].Element, got[0].found && !got[0].leaving, nil
}

// lookup names one element.
type lookup struct {
	set setSpec
	key []byte
}

// found is the answer to a lookup.
type found struct {
	Element
	found bool
}

// get fetches elements, all asked for in one system call. A missing table,
// set or element is an answer, not an error.
func (c *Conn) get(what []lookup) ([]found, error) {
	if err := c.dial(); err != nil {
		return nil, err
	}
	reqs := make([]netlink.Message, len(what))
	for i, l := range what {
		m, err := getRequest(l.set, l.key)
		if err != nil {
			return nil, err
		}
		reqs[i] = m
	}
	out := make([]found, len(what))
	const atOnce = 64 // answers that surely fit the socket's buffer
	for i := 0; i < len(reqs); i += atOnce {
		end := min(i+atOnce, len(reqs))
		if err := c.getSome(reqs[i:end], out[i:end]); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// getSome sends requests and reads one answer to each, which come in order.
func (c *Conn) getSome(reqs []netlink.Message, out []found) error {
	if _, err := c.nl.SendMessages(reqs); err != nil {
		return fmt.Errorf("get nftables elements: %w", err)
	}
	for i := range out {
		got, err := c.nl.Receive()
		switch {
		case errors.Is(err, syscall.ENOENT):
			continue
		case err != nil:
			return errors.Join(fmt.Errorf("get nftables element: %w", err), c.drain())
		}
		if err := out[i].read(got); err != nil {
			return errors.Join(err, c.drain())
		}
	}
	return nil
}

func (f *found) read(got []netlink.Message) error {
	for _, m := range got {
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

// List returns every element of a set, in no order: 139 ms at 20,000. It is
// for GC, repair and doctor, and for network-level sets, which are small. A
// missing table or set has no elements. While others write, the kernel cannot
// promise a whole picture: after five tries List returns the last one.
func (c *Conn) List(set string) ([]Element, error) {
	spec, ok := specOf(set)
	if !ok {
		return nil, fmt.Errorf("list %s: no such set", set)
	}
	if err := c.dial(); err != nil {
		return nil, err
	}
	req, err := getRequest(spec, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Flags |= netlink.Dump
	for try := 1; ; try++ {
		msgs, err := c.nl.Execute(req)
		switch {
		case errors.Is(err, syscall.ENOENT):
			return nil, nil
		case err != nil:
			return nil, errors.Join(fmt.Errorf("list %s: %w", set, err), c.drain())
		case try == 5 || !interrupted(msgs):
			return standing(msgs)
		}
	}
}

// interrupted says that a listing saw two states of the set.
func interrupted(msgs []netlink.Message) bool {
	for _, m := range msgs {
		if m.Header.Flags&netlink.DumpInterrupted != 0 {
			return true
		}
	}
	return false
}

// standing decodes a listing without what is on its way out.
func standing(msgs []netlink.Message) ([]Element, error) {
	var all []Element
	for _, m := range msgs {
		elems, err := decodeElements(m)
		if err != nil {
			return nil, err
		}
		for _, e := range elems {
			if !e.leaving {
				all = append(all, e)
			}
		}
	}
	return all, nil
}

// HasChain says whether a chain is there, in anybody's table: one look.
func (c *Conn) HasChain(family nftables.TableFamily, table, chain string) (bool, error) {
	return c.has(unix.NFT_MSG_GETCHAIN, family, table, chain)
}

// HasTable says whether a table is there: one look.
func (c *Conn) HasTable(family nftables.TableFamily, table string) (bool, error) {
	return c.has(unix.NFT_MSG_GETTABLE, family, table)
}

// has asks for an object by the names it has, table first.
func (c *Conn) has(msg netlink.HeaderType, family nftables.TableFamily, names ...string) (bool, error) {
	if err := c.dial(); err != nil {
		return false, err
	}
	ae := netlink.NewAttributeEncoder()
	for i, name := range names {
		typ := uint16(unix.NFTA_TABLE_NAME) // also NFTA_CHAIN_TABLE
		if i > 0 {
			typ = unix.NFTA_CHAIN_NAME
		}
		ae.String(typ, name)
	}
	b, err := ae.Encode()
	if err != nil {
		return false, fmt.Errorf("look for %v: %w", names, err)
	}
	_, err = c.nl.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | msg, Flags: netlink.Request},
		Data:   append(genHeader(family), b...),
	})
	switch {
	case errors.Is(err, syscall.ENOENT):
		return false, nil
	case err != nil:
		return false, errors.Join(fmt.Errorf("look for %v: %w", names, err), c.drain())
	}
	return true, nil
}
