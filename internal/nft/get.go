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

// Get fetches one element by key: a constant 0.06 ms. In a network-level set it finds the
// range that holds key. It does not find an element that is being removed (see Remove).
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

// lookup names one element; without key it names the set.
type lookup struct {
	set setSpec
	key []byte
}

func (l lookup) request() (netlink.Message, error) {
	if l.key == nil {
		return setRequest(l.set.family, l.set.name)
	}
	return getRequest(l.set, l.key)
}

// found is the answer to a lookup.
type found struct {
	Element
	found bool
}

// get fetches elements with one system call for all requests. A missing table, set or
// element is an answer, not an error.
func (c *Conn) get(what []lookup) ([]found, error) {
	if err := c.dial(); err != nil {
		return nil, err
	}
	reqs := make([]netlink.Message, len(what))
	for i, l := range what {
		m, err := l.request()
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

// List returns every element of a set, unordered: 139 ms at 20,000. It is for GC, repair
// and doctor, and for network-level sets, which are small. A missing table or set has no
// elements. While other processes write, the kernel cannot promise a consistent listing:
// after five tries List returns the last one.
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
		msgs, err := c.dump(req)
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

// interrupted reports that the set changed during a listing.
func interrupted(msgs []netlink.Message) bool {
	for _, m := range msgs {
		if m.Header.Flags&netlink.DumpInterrupted != 0 {
			return true
		}
	}
	return false
}

// standing decodes a listing without the elements that are being removed.
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

// Ref names a chain of any program's table; with an empty Chain it names the table.
type Ref struct {
	Family nftables.TableFamily
	Table  string
	Chain  string
}

// Presence is what Look finds.
type Presence struct {
	Found bool
	Drops bool // a base chain whose policy is drop
}

// Look asks for chains and tables in one system call.
func (c *Conn) Look(refs ...Ref) ([]Presence, error) {
	if err := c.dial(); err != nil {
		return nil, err
	}
	reqs := make([]netlink.Message, len(refs))
	for i, r := range refs {
		m, err := r.request()
		if err != nil {
			return nil, err
		}
		reqs[i] = m
	}
	if _, err := c.nl.SendMessages(reqs); err != nil {
		return nil, fmt.Errorf("look for nftables chains: %w", err)
	}
	out := make([]Presence, len(refs))
	for i, r := range refs {
		got, err := c.nl.Receive()
		switch {
		case errors.Is(err, syscall.ENOENT):
			continue
		case err != nil:
			return nil, errors.Join(fmt.Errorf("look for %s %s: %w", r.Table, r.Chain, err), c.drain())
		}
		out[i] = Presence{Found: true, Drops: r.Chain != "" && policyDrops(got)}
	}
	return out, nil
}

// HasChain reports whether a chain exists.
func (c *Conn) HasChain(family nftables.TableFamily, table, chain string) (bool, error) {
	got, err := c.Look(Ref{family, table, chain})
	return err == nil && got[0].Found, err
}

func (r Ref) request() (netlink.Message, error) {
	typ := netlink.HeaderType(unix.NFT_MSG_GETTABLE)
	ae := netlink.NewAttributeEncoder()
	ae.String(unix.NFTA_TABLE_NAME, r.Table) // also NFTA_CHAIN_TABLE
	if r.Chain != "" {
		typ = unix.NFT_MSG_GETCHAIN
		ae.String(unix.NFTA_CHAIN_NAME, r.Chain)
	}
	b, err := ae.Encode()
	if err != nil {
		return netlink.Message{}, fmt.Errorf("look for %s %s: %w", r.Table, r.Chain, err)
	}
	return netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | typ, Flags: netlink.Request},
		Data:   append(genHeader(r.Family), b...),
	}, nil
}

// policyDrops reads the policy of a chain, if it has one.
func policyDrops(got []netlink.Message) bool {
	for _, m := range got {
		if len(m.Data) < 4 {
			continue
		}
		attrs, err := attributes(m.Data[4:])
		if err != nil {
			return false
		}
		for _, a := range attrs {
			if a.Type == unix.NFTA_CHAIN_POLICY {
				return len(a.Data) == 4 && a.Data[3] == byte(nftables.ChainPolicyDrop)
			}
		}
	}
	return false
}
