// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"slices"
	"strings"

	"github.com/google/nftables"
)

// Owned lists the elements of attachments, those whose comment names an owner, in the
// common sets and in the given maps of conditions (Conditions.Maps). It reads every
// element, so it is for GC, repair and doctor.
func (c *Conn) Owned(maps ...string) (elems []Element, err error) {
	all, err := c.ofAttachments(maps)
	return slices.DeleteFunc(all, func(e Element) bool { _, ok := OwnerOf(e.Comment); return !ok }), err
}

// Ownerless lists the elements of the same sets that name no owner, and the elements in the
// sets of bridges that name no network: none of our programs made them, and none removes
// them.
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
	ofBridges, err := c.listAll(SetIsolation, SetBridgeOK, SetApart, SetInternal, SetInside)
	return append(elems, slices.DeleteFunc(ofBridges, func(e Element) bool { return e.Comment != "" })...), err
}

// ofAttachments lists the elements in the sets of attachments and in the given maps.
func (c *Conn) ofAttachments(maps []string) (elems []Element, err error) {
	sets, err := c.setNames(nftables.TableFamilyINet)
	if err != nil {
		return nil, err
	}
	for _, s := range lengthsIn(sets) {
		maps = append(maps, s.name)
	}
	return c.listAll(append(setsWhere(func(s setSpec) bool { return s.level == ofAttachments }), maps...)...)
}

// OfNetworks lists the elements of networks. Each comment is the network's name.
func (c *Conn) OfNetworks() (elems []Element, err error) {
	return c.listAll(setsWhere(func(s setSpec) bool { return s.level == ofNetworks })...)
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
