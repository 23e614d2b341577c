// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package iptnft

import (
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"

	"github.com/patchbay-net/patchbay/internal/nft"
)

// isAdminJump reports whether a rule is the plugin's jump to an operator's chain.
func isAdminJump(r nft.Rule) bool { return r.Comment() == commentAdmin }

// isOurs reports whether a rule accepts traffic for us, or jumps to our chain.
func isOurs(r nft.Rule) bool { return strings.HasPrefix(r.Comment(), commentAccept) }

// listAdmins lists the operators' chains, except the one that was asked for.
func (f *filter) listAdmins(c *nft.Conn) (err error) {
	for _, r := range slices.Concat(f.user.rules, f.cni.rules) {
		_, name, _ := r.Verdict()
		known := slices.ContainsFunc(f.admins, func(ch chain) bool { return ch.name == name })
		if !isAdminJump(r) || name == "" || name == f.admin.name || known {
			continue
		}
		ch := chain{name: name, found: true}
		if ch.rules, err = c.ListRules(f.table.Family, tableFilter, name); err != nil {
			return err
		}
		f.admins = append(f.admins, ch)
	}
	return nil
}

// dropAdmins plans the removal of operators' chains that are empty and to which no remaining
// rule jumps.
func (f filter) dropAdmins(kept []nft.Rule) (todo []step) {
	for _, ch := range append([]chain{f.admin}, f.admins...) {
		used := slices.ContainsFunc(kept, func(r nft.Rule) bool { return r.JumpsTo(ch.name) })
		if ch.found && len(ch.rules) == 0 && !used {
			todo = append(todo, dropChain(f.table, ch.name)...)
		}
	}
	return todo
}

// LeaveAdmin removes the jumps to an operator's chain, and the chain if it is empty. If the
// function needed returns true, because an attachment names the chain, LeaveAdmin does nothing.
// It also does nothing while other accept rules exist, such as those of the reference plugin,
// because they may need the chain.
func LeaveAdmin(adminChain string, needed func() bool) nft.Extra {
	return leaveAdmin{admin(adminChain), needed}
}

type leaveAdmin struct {
	admin  string
	needed func() bool
}

// String names the chain.
func (l leaveAdmin) String() string {
	return fmt.Sprintf("stop asking the chain %s of iptables-nft filter", l.admin)
}

// Plan looks at each family. It calls needed after it has read the rules. An ADD that needs the
// chain writes its record before it looks for the jump, so needed sees that record.
func (l leaveAdmin) Plan(c *nft.Conn) (func(*nftables.Conn) error, error) {
	if l.needed() {
		return nil, nil
	}
	var todo []step
	for _, family := range families() {
		f, err := readFilter(c, family, l.admin, false, true)
		if err != nil {
			return nil, err
		}
		todo = append(todo, f.leaveAdmin()...)
	}
	return run(todo), nil
}

func (f filter) leaveAdmin() (todo []step) {
	var kept []nft.Rule
	for _, ch := range [...]chain{f.user, f.cni} {
		var gone []nft.Rule
		others := false
		for _, r := range ch.rules {
			switch {
			case isAdminJump(r) && r.JumpsTo(f.admin.name):
				gone = append(gone, r)
			case !isAdminJump(r) && !isOurs(r):
				others = true
			}
		}
		if ch.name == chainCNIForward && others {
			kept = append(kept, gone...)
			continue
		}
		todo = append(todo, deleteRules(f.table, ch.name, gone)...)
	}
	if len(todo) > 0 {
		todo = append(todo, filter{table: f.table, admin: f.admin}.dropAdmins(kept)...)
	}
	return todo
}
