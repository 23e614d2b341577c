// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package iptnft

import (
	"net/netip"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/patchbay-net/patchbay/internal/nft"
)

const (
	// chainAddresses has the rules of single attachments, two for an address.
	// Nobody lists it to add to it, however many stand.
	chainAddresses   = "PATCHBAY-ADDRESSES"
	commentAddresses = commentAccept + "single addresses"
)

// Source is whose traffic is accepted: a subnet's, or an attachment's.
type Source struct {
	Subnet netip.Prefix

	// Bridge is the link that a subnet's traffic comes in by and its answers go out
	// of. Without it the subnet is accepted wherever it comes from.
	Bridge string

	// Inside accepts only what stays on the bridge: frames between its ports, which
	// pass FORWARD with br_netfilter.
	Inside bool

	// Owner is the comment of the attachment that has the address, which begins
	// with its key (nft.Comment). Its rules are in a chain of their own.
	Owner string

	// New says that the owner has nothing there yet, so it is not looked for.
	New bool
}

// On are the subnets of a bridge, or of any link when it is empty.
func On(bridge string, subnets ...netip.Prefix) (out []Source) {
	for _, p := range subnets {
		out = append(out, Source{Subnet: p.Masked(), Bridge: bridge})
	}
	return out
}

// Owned are all addresses of an attachment: for Unaccept, which finds them by
// the owner's key.
func Owned(key string) []Source {
	return []Source{
		{Subnet: netip.PrefixFrom(netip.IPv4Unspecified(), 0), Owner: key + " "},
		{Subnet: netip.PrefixFrom(netip.IPv6Unspecified(), 0), Owner: key + " "},
	}
}

// String is the subnet, and the bridge.
func (s Source) String() string {
	switch {
	case s.Bridge == "":
		return s.Subnet.String()
	case s.Inside:
		return s.Subnet.String() + " within " + s.Bridge
	}
	return s.Subnet.String() + " on " + s.Bridge
}

// comment is what both rules of a source say.
func (s Source) comment() string {
	if s.Owner != "" {
		return s.Owner
	}
	return commentAccept + s.String()
}

// has says whether a rule is the source's. An attachment's is told by its key
// and the address.
func (s Source) has(r nft.Rule) bool {
	if s.Owner == "" {
		return r.Comment() == s.comment()
	}
	return s.owns(r) && r.Mentions(s.Subnet.Addr().AsSlice())
}

// among picks the rules of the source.
func (s Source) among(rules []nft.Rule) (own []nft.Rule) {
	for _, r := range rules {
		if s.has(r) {
			own = append(own, r)
		}
	}
	return own
}

// owns says whether a rule is the attachment's, whatever the address.
func (s Source) owns(r nft.Rule) bool {
	mine, ok := nft.OwnerOf(s.Owner)
	its, ours := nft.OwnerOf(r.Comment())
	return ok && ours && mine == its
}

// through matches the bridge, as iptables' -i and -o write it.
func (s Source) through(key expr.MetaKey) (match []expr.Any) {
	if s.Bridge == "" {
		return nil
	}
	keys := []expr.MetaKey{key}
	if s.Inside {
		keys = []expr.MetaKey{expr.MetaKeyIIFNAME, expr.MetaKeyOIFNAME}
	}
	for _, key := range keys {
		match = append(match, &expr.Meta{Key: key, Register: reg},
			&expr.Cmp{Op: expr.CmpOpEq, Register: reg, Data: append([]byte(s.Bridge), 0)})
	}
	return match
}

// Addressed lists the comments of the attachments that have rules of their own,
// one for each rule: for GC.
func Addressed(c *nft.Conn) (comments []string, err error) {
	for _, f := range families() {
		rules, err := c.ListHandles(f, tableFilter, chainAddresses)
		if err != nil {
			return nil, err
		}
		for _, r := range rules {
			comments = append(comments, r.Comment())
		}
	}
	return comments, nil
}

// disown plans the removal of attachments' rules. gone says that nothing is left
// in their chain, which goes once nothing leads to it.
func (f filter) disown(sources []Source) (todo []step, gone bool) {
	if !f.own.found || !looksForOwners(sources, true) {
		return nil, false
	}
	var theirs []nft.Rule
	for _, r := range f.own.rules {
		for _, s := range sources {
			if s.Owner != "" && s.owns(r) {
				theirs = append(theirs, r)
				break
			}
		}
	}
	if len(theirs) == len(f.own.rules) {
		return f.dropChain(f.own), true
	}
	return f.deleteRules(f.own.name, theirs), false
}

// looksForOwners says whether the rules of attachments must be listed.
func looksForOwners(sources []Source, remove bool) bool {
	for _, s := range sources {
		if s.Owner != "" && (remove || !s.New) {
			return true
		}
	}
	return false
}

func ofFamily(sources []Source, f nftables.TableFamily) (out []Source) {
	for _, s := range sources {
		if s.Subnet.Addr().Is4() == (f == nftables.TableFamilyIPv4) {
			s.Subnet = s.Subnet.Masked()
			out = append(out, s)
		}
	}
	return out
}
