// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package iptnft

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nft"
)

// The chains of the filter table. CNI-FORWARD and its comments are those of
// the reference's firewall plugin, so that either finds the other's.
const (
	tableFilter     = "filter"
	chainForward    = "FORWARD"
	chainDockerUser = "DOCKER-USER"
	chainCNIForward = "CNI-FORWARD"

	// DefaultAdminChain is the chain of the operator's overrides.
	DefaultAdminChain = "CNI-ADMIN"

	commentForward = "CNI firewall plugin rules"
	commentAdmin   = "CNI firewall plugin admin overrides"
	commentAccept  = "patchbay accepts " // and the subnet
)

// Accept lets a network's traffic through FORWARD in the iptables-nft filter
// table of each family, where that drops by policy or by a rule: what comes
// from a subnet, the answers to it, and published ports. The two rules go to the end of
// DOCKER-USER where FORWARD jumps to it, else to CNI-FORWARD, which is jumped
// to from the top. The operator's admin chain comes first in either.
// Where nothing drops, nothing is done.
func Accept(subnets []netip.Prefix, adminChain string) nft.Extra {
	return acceptExtra{subnets, admin(adminChain), false}
}

// Unaccept removes what Accept made, chains included when nothing else is in
// them. It does not look at policies: they may have changed.
func Unaccept(subnets []netip.Prefix, adminChain string) nft.Extra {
	return acceptExtra{subnets, admin(adminChain), true}
}

func admin(chain string) string {
	if chain == "" {
		return DefaultAdminChain
	}
	return chain
}

type acceptExtra struct {
	subnets []netip.Prefix
	admin   string
	remove  bool
}

// String says what it accepts.
func (x acceptExtra) String() string {
	verb := "accept"
	if x.remove {
		verb = "stop accepting"
	}
	s := make([]string, len(x.subnets))
	for i, p := range x.subnets {
		s[i] = p.String()
	}
	return fmt.Sprintf("%s %s in iptables-nft filter FORWARD where it drops", verb, strings.Join(s, ", "))
}

// Merge joins networks that go the same way.
func (x acceptExtra) Merge(next nft.Extra) (nft.Extra, bool) {
	y, ok := next.(acceptExtra)
	if !ok || x.remove != y.remove || x.admin != y.admin {
		return nil, false
	}
	x.subnets = append(slices.Clip(x.subnets), y.subnets...)
	return x, true
}

// Plan looks at each family that has a subnet.
func (x acceptExtra) Plan(c *nft.Conn) (func(*nftables.Conn) error, error) {
	var todo []step
	for _, family := range families() {
		subnets := ofFamily(x.subnets, family)
		if len(subnets) == 0 {
			continue
		}
		f, err := look(c, family, x.admin)
		if err != nil {
			return nil, err
		}
		if x.remove {
			todo = append(todo, f.unaccept(subnets)...)
		} else if f.drops() {
			todo = append(todo, f.accept(subnets)...)
		}
	}
	return run(todo), nil
}

// families are the tables of iptables and ip6tables.
func families() []nftables.TableFamily {
	return []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyIPv6}
}

func ofFamily(subnets []netip.Prefix, f nftables.TableFamily) (out []netip.Prefix) {
	for _, p := range subnets {
		if p.Addr().Is4() == (f == nftables.TableFamilyIPv4) {
			out = append(out, p.Masked())
		}
	}
	return out
}

// step is one change of a plan.
type step func(*nftables.Conn) error

// run makes a plan of steps; none is nil.
func run(steps []step) func(*nftables.Conn) error {
	if len(steps) == 0 {
		return nil
	}
	return func(enc *nftables.Conn) error {
		for _, s := range steps {
			if err := s(enc); err != nil {
				return err
			}
		}
		return nil
	}
}

// filter is what there is of one family's filter table.
type filter struct {
	table      *nftables.Table
	policyDrop bool
	admin      chain
	forward    chain
	user       chain
	cni        chain
}

// chain is a chain with its rules.
type chain struct {
	name  string
	found bool
	rules []nft.Rule
}

func look(c *nft.Conn, family nftables.TableFamily, adminChain string) (f filter, err error) {
	f.table = &nftables.Table{Name: tableFilter, Family: family}
	chains := []*chain{&f.forward, &f.user, &f.cni, &f.admin}
	var refs []nft.Ref
	for i, name := range [...]string{chainForward, chainDockerUser, chainCNIForward, adminChain} {
		chains[i].name = name
		refs = append(refs, nft.Ref{Family: family, Table: tableFilter, Chain: name})
	}
	got, err := c.Look(refs...)
	if err != nil {
		return f, err
	}
	f.policyDrop = got[0].Drops
	for i, ch := range chains {
		if ch.found = got[i].Found; !ch.found {
			continue
		}
		if ch.rules, err = c.ListRules(family, tableFilter, ch.name); err != nil {
			return f, err
		}
	}
	return f, nil
}

// drops says whether FORWARD drops by policy or has a rule that drops or
// rejects.
func (f filter) drops() bool {
	if f.policyDrop {
		return true
	}
	for _, r := range f.forward.rules {
		code, _, ok := r.Verdict()
		if ok && code == 0 || r.Has("reject", "") || r.Has("target", "REJECT") || r.Has("target", "DROP") {
			return true
		}
	}
	return false
}

// accept plans the rules of the subnets that have none yet, and the jump that a
// flush of FORWARD takes from those that have.
func (f filter) accept(subnets []netip.Prefix) (todo []step) {
	target := f.cni
	if f.forward.jump(f.user.name) != nil {
		target = f.user
	}
	for _, p := range subnets {
		if !target.accepts(p) {
			todo = append(todo, f.acceptIn(target, p)...)
		}
	}
	if len(todo) == 0 && f.forward.jump(target.name) != nil {
		return nil
	}
	return append(f.frame(target), todo...)
}

// frame plans the chains and the jumps to them.
func (f filter) frame(target chain) (todo []step) {
	if !f.admin.found {
		todo = append(todo, f.addChain(f.admin.name))
	}
	if !target.found {
		todo = append(todo, f.addChain(target.name))
	}
	if f.forward.jump(target.name) == nil {
		todo = append(todo, f.top(f.forward, commentForward, jump(target.name)))
	}
	if target.jump(f.admin.name) == nil {
		place := f.last
		if target.name == chainCNIForward {
			place = f.top
		}
		todo = append(todo, place(target, commentAdmin, jump(f.admin.name)))
	}
	return todo
}

// unaccept plans the removal of the subnets' rules, and of chains that hold
// nothing but our frame.
func (f filter) unaccept(subnets []netip.Prefix) (todo []step) {
	adminUsers := 0
	for _, ch := range [...]chain{f.user, f.cni} {
		var gone, frame, others []nft.Rule
		for _, r := range ch.rules {
			switch {
			case acceptsOneOf(r, subnets):
				gone = append(gone, r)
			case r.JumpsTo(f.admin.name) && r.Comment() == commentAdmin:
				frame = append(frame, r)
			default:
				others = append(others, r)
			}
		}
		ours := func(r nft.Rule) bool { return strings.HasPrefix(r.Comment(), commentAccept) }
		switch {
		case len(gone) == 0:
			adminUsers += len(frame)
			continue
		case ch.name == chainCNIForward && len(others) == 0:
			todo = append(todo, f.dropChain(ch, f.forward)...)
			continue
		case ch.name == chainDockerUser && !slices.ContainsFunc(others, ours):
			gone = append(gone, frame...)
		default:
			adminUsers += len(frame)
		}
		todo = append(todo, f.deleteRules(ch.name, gone)...)
	}
	if len(todo) > 0 && adminUsers == 0 && f.admin.found && len(f.admin.rules) == 0 {
		todo = append(todo, f.dropChain(f.admin)...)
	}
	return todo
}

// jump finds the rule that leads to a chain.
func (ch chain) jump(to string) *nft.Rule {
	for i := range ch.rules {
		if ch.rules[i].JumpsTo(to) {
			return &ch.rules[i]
		}
	}
	return nil
}

// accepts says whether a subnet's rules are there.
func (ch chain) accepts(p netip.Prefix) bool {
	return slices.ContainsFunc(ch.rules, func(r nft.Rule) bool { return acceptsOneOf(r, []netip.Prefix{p}) })
}

func acceptsOneOf(r nft.Rule, subnets []netip.Prefix) bool {
	for _, p := range subnets {
		if r.Comment() == commentAccept+p.Masked().String() {
			return true
		}
	}
	return false
}

// end is the handle of a last rule that returns everything, as Docker makes
// one, behind which nothing is reached; 0 when there is none.
func (ch chain) end() uint64 {
	if len(ch.rules) == 0 {
		return 0
	}
	last := ch.rules[len(ch.rules)-1]
	code, _, ok := last.Verdict()
	if !ok || code != unix.NFT_RETURN {
		return 0
	}
	for _, e := range last.Exprs {
		if e.Name != "counter" && e.Name != "immediate" {
			return 0
		}
	}
	return last.Handle
}

func comment(text string) []byte { return userdata.AppendString(nil, userdata.TypeComment, text) }
