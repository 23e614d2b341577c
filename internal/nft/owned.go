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
	for _, set := range [...]string{SetIsolation, SetBridgeOK, SetApart, SetInternal, SetInside} {
		list, err := c.List(set)
		if err != nil {
			return nil, err
		}
		elems = append(elems, slices.DeleteFunc(list, func(e Element) bool { return e.Comment != "" })...)
	}
	return elems, nil
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
	for _, set := range append(attachmentSets(), maps...) {
		list, err := c.List(set)
		if err != nil {
			return nil, err
		}
		elems = append(elems, list...)
	}
	return elems, nil
}

func attachmentSets() []string {
	return []string{SetOwners, SetPorts4, SetPorts6, SetHostPorts4, SetHostPorts6, SetMasqAll4, SetMasqAll6,
		SetSNAT4, SetSNAT6, SetMasqueraded4, SetMasqueraded6, SetSpoofChecked, SetSpoofAllowed}
}

// OfNetworks lists the elements of networks. Each comment is the network's name.
func (c *Conn) OfNetworks() (elems []Element, err error) {
	for _, set := range [...]string{SetHairpin4, SetHairpin6, SetMasq4, SetMasq6, SetNoMasq4, SetNoMasq6,
		SetIsolation, SetBridgeOK, SetApart, SetInternal, SetInside, SetLocalNet} {
		list, err := c.List(set)
		if err != nil {
			return nil, err
		}
		elems = append(elems, list...)
	}
	return elems, nil
}
