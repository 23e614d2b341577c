// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/order"
	"github.com/patchbay-net/patchbay/internal/policy"
)

// View is what the kernel has of policies, with the rules that other programs made.
type View struct {
	table *nft.Table        // nil if there is none
	names map[string]string // policies by their chains, where a comment may be cut
}

// maxReads is how often WithView reads a table that changes all the time.
const maxReads = 5

// WithView calls the function do with what the kernel has. If the policies change during the call, WithView
// calls do again. So do must change nothing.
func WithView(fw *nft.Conn, do func(*View) error) error {
	for range maxReads {
		before, had, err := fw.ReadPolicyRevision()
		if err != nil {
			return fmt.Errorf("read network policies: %w", err)
		}
		v := &View{names: make(map[string]string)}
		v.table, err = fw.ReadTable(nftables.TableFamilyINet, nft.TableName)
		if err == nil {
			err = do(v)
		}
		after, has, rerr := fw.ReadPolicyRevision()
		if before == after && had == has || rerr != nil {
			return errors.Join(err, rerr)
		}
	}
	return fmt.Errorf("read network policies: they changed during each of %d attempts: try again", maxReads)
}

// Enforced reports whether the kernel has any rule of a policy.
func (v *View) Enforced() bool {
	return v.table != nil && !v.table.Dormant && slices.ContainsFunc(v.table.Chains, func(c nft.Chain) bool { return c.Base && nft.OfPolicies(c.Name) })
}

// Call tells the View the names of chains of a program. Comments in the kernel are cut at 128 bytes.
func (v *View) Call(d policy.Direction, chains ...string) {
	for _, name := range chains {
		v.names[kindPolicy[d]+hash(name)] = policyOf(name)
	}
}

// policyOf returns the policy of a program's chain, whose name is "ingress shop/web" or longer.
func policyOf(chain string) string {
	words := strings.SplitN(chain, " ", 3)
	return words[min(1, len(words)-1)]
}

// bases returns the base chains of policies at a hook, in the order in which a packet meets them.
func (v *View) bases(hook nftables.ChainHook) (list []nft.Chain) {
	if v.table == nil || v.table.Dormant {
		return nil
	}
	for _, c := range v.table.Chains {
		if c.Base && c.Hook == hook && nft.OfPolicies(c.Name) {
			list = append(list, c)
		}
	}
	order.Stable(list, func(a, b nft.Chain) int { return cmp.Compare(a.Prio, b.Prio) })
	return list
}

// uses reports whether a rule looks into a set. No packet meets any other set.
func (v *View) uses(set string) bool {
	for _, rules := range v.table.Rules {
		for _, r := range rules {
			if slices.ContainsFunc(r.Exprs, func(e nft.Expr) bool { return e.Name == "lookup" && e.Text(unix.NFTA_LOOKUP_SET) == set }) {
				return true
			}
		}
	}
	return false
}
