// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package eval

import (
	"bytes"
	"maps"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nft"
)

// Traffic describes the packets that the containers of a network send (if Out is set) or receive.
// Only the containers' end is known. The other end may be any address and link.
type Traffic struct {
	Net  netip.Prefix
	Link string // the bridge; "" if every container has its own link
	Out  bool

	Index int // index of the link; 0 if not known

	// Ports, if set, are bridge ports; Link is then "". The walk follows the frames of these ports
	// through the chains of bridges and devices. It also reports a rule that may drop only some of
	// these frames.
	Ports []string
}

// knowledge returns what a walk knows of the traffic that meets the rules of a table.
func (t Traffic) knowledge(table *nft.Table) *knowledge {
	own, other, differ := t.own(), blank(t.Net.Addr().BitLen()/8, unsaid), ofFew
	if t.Ports != nil {
		differ |= ofFrames
		other = blank(len(own), differ)
	}
	from, to := own, other
	if !t.Out {
		from, to = to, from
	}
	netfilter, ethernet := family(t.Net.Addr().Is6())
	k := &knowledge{
		ethernet:  slices.Concat(blank(12, unsaid), ethernet),
		network:   header(from, to),
		transport: blank(256, differ),
		meta: map[uint32]cells{
			unix.NFT_META_NFPROTO: netfilter, unix.NFT_META_PROTOCOL: ethernet,
			unix.NFT_META_L4PROTO: blank(1, differ), unix.NFT_META_MARK: blank(4, differ),
		},
		ct:      map[uint32]cells{unix.NFT_CT_STATE: blank(4, ofState), unix.NFT_CT_MARK: blank(4, differ)},
		members: func(set string) ([]nft.Member, cause) { return membersFor(table, set) },
	}
	t.links(k)
	return k
}

// own returns an address of the network.
func (t Traffic) own() cells {
	c := cellsOf(t.Net.Masked().Addr().AsSlice()...)
	for i := range c {
		c[i].known, c[i].why = ^(0xff >> min(max(t.Net.Bits()-8*i, 0), 8)), unsaid
	}
	return c
}

// links adds the facts about the links.
func (t Traffic) links(k *knowledge) {
	near, far, index := uint32(unix.NFT_META_IIFNAME), uint32(unix.NFT_META_OIFNAME), uint32(unix.NFT_META_IIF)
	if !t.Out {
		near, far, index = far, near, unix.NFT_META_OIF
	}
	if t.Index != 0 {
		k.meta[index] = number(uint32(t.Index))
	}
	switch {
	case t.Ports != nil:
		k.differs = t.differs
		for _, key := range []uint32{near, far, unix.NFT_META_BRI_IIFNAME, unix.NFT_META_BRI_OIFNAME} {
			k.meta[key] = blank(unix.IFNAMSIZ, portName)
		}
	case t.Link != "":
		k.link = linkName(t.Link)
		k.meta[near], k.meta[far] = cellsOf(k.link...), blank(unix.IFNAMSIZ, otherLink)
	}
}

// differs reports whether no port has this name or, for a prefix, a name that begins with it.
func (t Traffic) differs(c cells, value []byte) bool {
	return len(c) > 0 && c.only(portName) && !slices.ContainsFunc(t.Ports, func(port string) bool { return bytes.HasPrefix(linkName(port), value) })
}

// linkName returns a name as the kernel compares it.
func linkName(name string) []byte {
	b := make([]byte, unix.IFNAMSIZ)
	copy(b, name)
	return b
}

// membersFor returns the elements of a set. It reads no set of our own table, because doctor
// compares our sets with the records.
func membersFor(table *nft.Table, set string) ([]nft.Member, cause) {
	if table.Name == nft.TableName {
		return nil, unsaid
	}
	list, err := table.Members(set)
	if err != nil {
		return nil, notRead
	}
	return list, notRead
}

// during returns what is known of packets of connections in a state.
func (k *knowledge) during(state uint32) *knowledge {
	out := *k
	out.ct = maps.Clone(k.ct)
	out.ct[unix.NFT_CT_STATE] = number(state)
	return &out
}
