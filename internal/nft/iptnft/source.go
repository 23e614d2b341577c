// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package iptnft

import (
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/nft/eval"
	"github.com/patchbay-net/patchbay/spec"
)

const (
	// chainAddresses holds the rules of single attachments, two for each address. An ADD does not
	// list the rules, so its cost does not grow with their number.
	chainAddresses   = "PATCHBAY-ADDRESSES"
	commentAddresses = commentAccept + "single addresses"
	commentOpen      = " and connections to it" // the end of a comment
)

// Source is the traffic of a subnet or of an attachment that rules must accept.
type Source struct {
	Subnet netip.Prefix

	// Bridge is the link through which the subnet's traffic enters and the answers leave. If it
	// is empty, the subnet is accepted on every link.
	Bridge string

	// Inside accepts only frames between ports of the bridge. They pass FORWARD if br_netfilter
	// is loaded.
	Inside bool

	// Open accepts new connections to the subnet too, from anywhere.
	Open bool

	// Owner is the comment of the attachment that has the address. Owner begins with the
	// attachment's key (nft.Comment). The rules of attachments are in a separate chain.
	Owner string

	// New means that the owner has no rules yet, so Accept does not search for them.
	New bool
}

// On returns sources for the subnets of a bridge. If bridge is empty, the sources apply to every
// link.
func On(bridge string, subnets ...netip.Prefix) (out []Source) {
	for _, p := range subnets {
		out = append(out, Source{Subnet: p.Masked(), Bridge: bridge})
	}
	return out
}

// Owned returns sources for all addresses of an attachment. Unaccept uses it and finds the
// rules by the owner's key.
func Owned(key string) []Source {
	return []Source{
		{Subnet: spec.DefaultDst(true), Owner: key + " "},
		{Subnet: spec.DefaultDst(false), Owner: key + " "},
	}
}

// String returns the subnet and the bridge.
func (s Source) String() string {
	text := s.Subnet.String()
	switch {
	case s.Inside:
		text += " within " + s.Bridge
	case s.Bridge != "":
		text += " on " + s.Bridge
	}
	if s.Open {
		text += commentOpen
	}
	return text
}

// comment returns the comment that both rules of a source have.
func (s Source) comment() string {
	if s.Owner != "" {
		return s.Owner
	}
	return commentAccept + s.String()
}

// has reports whether a rule belongs to the source. For an attachment's source, the rule must
// have the key and the address.
func (s Source) has(r nft.Rule) bool {
	if s.Owner == "" {
		return r.Comment() == s.comment()
	}
	return s.owns(r) && r.Mentions(s.Subnet.Addr().AsSlice())
}

// among returns the rules that belong to the source.
func (s Source) among(rules []nft.Rule) (own []nft.Rule) {
	for _, r := range rules {
		if s.has(r) {
			own = append(own, r)
		}
	}
	return own
}

// owns reports whether a rule belongs to the attachment, for any address.
func (s Source) owns(r nft.Rule) bool {
	mine, ok := nft.OwnerOf(s.Owner)
	its, ours := nft.OwnerOf(r.Comment())
	return ok && ours && mine == its
}

// through matches the bridge as the iptables options -i and -o do.
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

// Addressed returns the comments of the rules that belong to attachments, one for each rule.
// GC uses it.
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

// disown plans the removal of attachments' rules. gone means that their chain is empty
// afterwards. The chain can be deleted once no rule jumps to it.
func (f filter) disown(sources []Source) (todo []step, gone bool) {
	if !f.own.found || !needsOwners(sources, true) {
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
		return dropChain(f.table, f.own.name), true
	}
	return deleteRules(f.table, f.own.name, theirs), false
}

// needsOwners reports whether the rules of attachments must be listed.
func needsOwners(sources []Source, remove bool) bool {
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

// Passed reports whether FORWARD of the filter tables accepts the traffic of all sources. It
// considers the rules of every program. It lists the tables, so call it only if our own rules are
// missing.
func Passed(c *nft.Conn, sources []Source) (worst eval.Answer, err error) {
	for _, family := range families() {
		theirs := ofFamily(sources, family)
		if len(theirs) == 0 {
			continue
		}
		t, err := c.ReadTable(family, tableFilter)
		if err != nil {
			return eval.No, err
		}
		if t != nil && !t.Dormant {
			forOthers(t)
			worst = max(worst, passed(t, theirs))
		}
	}
	return worst, nil
}

// forOthers removes our rules that accept what is sent to another subnet or attachment. Such a
// rule accepts some of the traffic of the sources, not all.
func forOthers(t *nft.Table) {
	for chain, rules := range t.Rules {
		t.Rules[chain] = slices.DeleteFunc(rules, func(r nft.Rule) bool {
			return chain == chainAddresses || strings.HasSuffix(r.Comment(), commentOpen)
		})
	}
}

func passed(t *nft.Table, sources []Source) (worst eval.Answer) {
	for _, base := range t.Chains {
		if !base.Base || base.Hook != *nftables.ChainHookForward {
			continue
		}
		for _, s := range sources {
			worst = max(worst, eval.Passed(t, base, s.Subnet, s.Bridge))
		}
	}
	return worst
}
