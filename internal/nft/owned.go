// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

// Owned lists the elements of attachments, as far as a comment names an owner,
// in the common sets and in the given maps of conditions (Conditions.Maps). It
// lists them all, so it is for GC, repair and doctor.
func (c *Conn) Owned(maps ...string) (elems []Element, err error) {
	for _, set := range append(attachmentSets(), maps...) {
		list, err := c.List(set)
		if err != nil {
			return nil, err
		}
		for _, e := range list {
			if _, ok := OwnerOf(e.Comment); ok {
				elems = append(elems, e)
			}
		}
	}
	return elems, nil
}

func attachmentSets() []string {
	return []string{SetOwners, SetPorts4, SetPorts6, SetHostPorts4, SetHostPorts6, SetMasqAll4, SetMasqAll6,
		SetSNAT4, SetSNAT6, SetSpoofChecked, SetSpoofAllowed}
}

// OfNetworks lists the elements of networks. Each comment is the network's name.
func (c *Conn) OfNetworks() (elems []Element, err error) {
	for _, set := range [...]string{SetHairpin4, SetHairpin6, SetMasq4, SetMasq6, SetNoMasq4, SetNoMasq6,
		SetIsolation, SetBridgeOK, SetApart, SetLocalNet} {
		list, err := c.List(set)
		if err != nil {
			return nil, err
		}
		elems = append(elems, list...)
	}
	return elems, nil
}
