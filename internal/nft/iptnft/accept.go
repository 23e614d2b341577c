// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package iptnft

import (
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/userdata"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nft"
)

// These are chains of the filter table. CNI-FORWARD and its comments are the same as in the
// reference's firewall plugin. So each of the two plugins finds the other's rules.
const (
	tableFilter     = "filter"
	chainForward    = "FORWARD"
	chainDockerUser = "DOCKER-USER"
	chainCNIForward = "CNI-FORWARD"

	// DefaultAdminChain is the default chain for the operator's own rules.
	DefaultAdminChain = "CNI-ADMIN"

	commentForward = "CNI firewall plugin rules"
	commentAdmin   = "CNI firewall plugin admin overrides"
	commentAccept  = "patchbay accepts " // the source follows
)

// Accept lets traffic pass FORWARD in the iptables-nft filter table of each family. It accepts
// traffic from a source, the answers to it, and traffic to published ports. If a source's field
// Open is set, Accept also accepts new connections to it. If FORWARD drops neither by policy nor by
// a rule, Accept does nothing.
//
// If FORWARD jumps to DOCKER-USER, Accept appends two rules per source to DOCKER-USER. Otherwise
// it appends them to CNI-FORWARD and puts a jump to CNI-FORWARD at the top of FORWARD. The rules
// of an attachment go into a separate chain, to which the chosen chain jumps. The operator's
// admin chain comes first in either case.
func Accept(sources []Source, adminChain string) nft.Extra {
	return acceptExtra{sources, admin(adminChain), false}
}

// Unaccept removes what Accept made. If the chains are empty then, Unaccept removes them too. It
// does not check whether FORWARD drops, because the policy may have changed.
func Unaccept(sources []Source, adminChain string) nft.Extra {
	return acceptExtra{sources, admin(adminChain), true}
}

func admin(chain string) string {
	if chain == "" {
		return DefaultAdminChain
	}
	return chain
}

type acceptExtra struct {
	sources []Source
	admin   string
	remove  bool
}

// String names the accepted sources.
func (x acceptExtra) String() string {
	verb := "accept"
	if x.remove {
		verb = "stop accepting"
	}
	s := make([]string, len(x.sources))
	for i, from := range x.sources {
		s[i] = from.String()
	}
	return fmt.Sprintf("%s %s in iptables-nft filter FORWARD where it drops", verb, strings.Join(s, ", "))
}

// Merge joins two extras of the same kind.
func (x acceptExtra) Merge(next nft.Extra) (nft.Extra, bool) {
	y, ok := next.(acceptExtra)
	if !ok || x.remove != y.remove || x.admin != y.admin {
		return nil, false
	}
	x.sources = append(slices.Clip(x.sources), y.sources...)
	return x, true
}

// Plan examines each family that has a source.
func (x acceptExtra) Plan(c *nft.Conn) (func(*nftables.Conn) error, error) {
	var todo []step
	for _, family := range families() {
		sources := ofFamily(x.sources, family)
		if len(sources) == 0 {
			continue
		}
		f, err := readFilter(c, family, x.admin, needsOwners(sources, x.remove), x.remove)
		if err != nil {
			return nil, err
		}
		if x.remove {
			todo = append(todo, f.unaccept(sources)...)
		} else if f.drops() {
			todo = append(todo, f.accept(sources)...)
		}
	}
	return run(todo), nil
}

// families returns the address families of iptables and ip6tables.
func families() []nftables.TableFamily {
	return []nftables.TableFamily{nftables.TableFamilyIPv4, nftables.TableFamilyIPv6}
}

// step is one change of a plan.
type step func(*nftables.Conn) error

// run makes a plan of steps. Without steps it returns nil.
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

// filter is the state of the filter table of one family.
type filter struct {
	table      *nftables.Table
	policyDrop bool
	admin      chain
	forward    chain
	user       chain
	cni        chain
	own        chain   // chain for attachments; its rules are listed only if needed
	admins     []chain // other chains of operators to which we made a jump; filled only for a removal
}

// chain is a chain with its rules.
type chain struct {
	name  string
	found bool
	rules []nft.Rule
}

func readFilter(c *nft.Conn, family nftables.TableFamily, adminChain string, owners, remove bool) (f filter, err error) {
	f.table = &nftables.Table{Name: tableFilter, Family: family}
	chains := []*chain{&f.forward, &f.user, &f.cni, &f.admin, &f.own}
	var refs []nft.Ref
	for i, name := range [...]string{chainForward, chainDockerUser, chainCNIForward, adminChain, chainAddresses} {
		chains[i].name = name
		refs = append(refs, nft.Ref{Family: family, Table: tableFilter, Chain: name})
	}
	got, err := c.ReadPresence(refs...)
	if err != nil {
		return f, err
	}
	f.policyDrop = got[0].Drops
	for i, ch := range chains {
		if ch.found = got[i].Found; !ch.found || ch == &f.own && !owners {
			continue
		}
		list := c.ListRules
		if ch == &f.own && remove {
			list = c.ListHandles // the comment names the owner, so the expressions are not read
		}
		if ch.rules, err = list(family, tableFilter, ch.name); err != nil {
			return f, err
		}
	}
	if remove {
		err = f.listAdmins(c)
	}
	return f, err
}

// drops reports whether FORWARD drops by policy, or has a rule that drops or rejects.
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

// accept plans the rules of sources that have no rules yet, and the jumps for all sources. It
// plans the jumps even if the rules exist, because a flush of FORWARD removes only the jumps.
func (f filter) accept(sources []Source) (todo []step) {
	target := f.cni
	if f.forward.jump(f.user.name) != nil {
		target = f.user
	}
	owned := false
	for _, s := range sources {
		ch := target
		if s.Owner != "" {
			ch, owned = f.own, true
		}
		standing := s.among(ch.rules)
		if s.New || len(standing) < 2 { // one rule of the two accepts nothing
			todo = append(todo, deleteRules(f.table, ch.name, standing)...)
			todo = append(todo, f.acceptIn(ch, s)...)
		}
	}
	leads := f.forward.jump(target.name) != nil && target.jump(f.admin.name) != nil && (!owned || target.jump(f.own.name) != nil)
	if len(todo) == 0 && leads {
		return nil
	}
	return append(f.frame(target, owned), todo...)
}

// frame plans the chains and the jumps to them.
func (f filter) frame(target chain, owned bool) (todo []step) {
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
	if owned && !f.own.found {
		todo = append(todo, f.addChain(f.own.name))
	}
	if owned && target.jump(f.own.name) == nil {
		todo = append(todo, f.last(target, commentAddresses, jump(f.own.name)))
	}
	return todo
}

// unaccept plans the removal of the sources' rules. unaccept also removes chains that then
// contain only our jumps.
func (f filter) unaccept(sources []Source) (todo []step) {
	disowned, empty := f.disown(sources)
	isGone := func(r nft.Rule) bool {
		return empty && r.JumpsTo(f.own.name) || slices.ContainsFunc(sources, func(s Source) bool { return s.Owner == "" && s.has(r) })
	}
	var kept []nft.Rule // jumps to chains of operators
	for _, ch := range [...]chain{f.user, f.cni} {
		var gone, frame, others []nft.Rule
		for _, r := range ch.rules {
			switch {
			case isGone(r):
				gone = append(gone, r)
			case isAdminJump(r):
				frame = append(frame, r)
			default:
				others = append(others, r)
			}
		}
		switch {
		case len(gone) == 0:
			kept = append(kept, frame...)
			continue
		case ch.name == chainCNIForward && len(others) == 0:
			todo = append(todo, dropChain(f.table, ch.name, f.forward)...)
			continue
		case ch.name == chainDockerUser && !slices.ContainsFunc(others, isOurs):
			gone = append(gone, frame...)
		default:
			kept = append(kept, frame...)
		}
		todo = append(todo, deleteRules(f.table, ch.name, gone)...)
	}
	todo = append(todo, disowned...) // when the last jump to it is gone
	if len(todo) > 0 {
		todo = append(todo, f.dropAdmins(kept)...)
	}
	return todo
}

// jump returns the rule that jumps to a chain, or nil.
func (ch chain) jump(to string) *nft.Rule {
	for i := range ch.rules {
		if ch.rules[i].JumpsTo(to) {
			return &ch.rules[i]
		}
	}
	return nil
}

// end returns the handle of the chain's last rule if that rule returns everything. Otherwise it
// returns 0. Docker makes such a rule, and a rule after it never runs.
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
