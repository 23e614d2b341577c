// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package iptnft

import (
	"strings"

	"github.com/google/nftables"

	"github.com/patchbay-net/patchbay/internal/nft"
)

// Sweep removes what the reference plugins left for attachments of a network that are not
// among the valid ones: for GC. It lists their chains, so its cost grows with them. It
// keeps rules that name neither network nor attachment: those of cni_hostport (the comment
// is the container's id alone), of macspoofchk, and of the firewall plugin.
func Sweep(network string, valid []Attachment) nft.Extra { return sweep{network, valid} }

type sweep struct {
	network string
	valid   []Attachment
}

// String names the network.
func (s sweep) String() string {
	return "remove what the reference plugins left for dead attachments of " + s.network
}

// Plan reads the nat tables and masq_checks.
func (s sweep) Plan(c *nft.Conn) (func(*nftables.Conn) error, error) {
	keep := make(map[string]bool)
	for _, a := range s.valid {
		a.Network = s.network
		keep[a.ContainerID], keep[a.masqHash()] = true, true
	}
	prefix := hash(s.network)[:16] + "-"
	ref := nft.Ref{Family: nftables.TableFamilyINet, Table: tableMasquerade, Chain: chainMasqChecks}
	todo, err := deleteWhere(c, ref, func(r nft.Rule) bool {
		mark, _, _ := strings.Cut(r.Comment(), ",")
		return strings.HasPrefix(mark, prefix) && !keep[mark]
	})
	if err != nil {
		return nil, err
	}
	for _, f := range families() {
		steps, err := s.nat(c, f, keep)
		if err != nil {
			return nil, err
		}
		todo = append(todo, steps...)
	}
	return run(todo), nil
}

// nat finds the jumps whose comment names the network and a dead container.
func (s sweep) nat(c *nft.Conn, f nftables.TableFamily, keep map[string]bool) (todo []step, err error) {
	t := &nftables.Table{Name: tableNAT, Family: f}
	dropped := make(map[string]bool)
	for _, entry := range [...]string{chainPostrouting, chainHostportDNAT} {
		rules, err := c.ListRules(f, tableNAT, entry)
		if err != nil {
			return nil, err
		}
		for _, r := range rules {
			a, ok := ParseComment(r.Comment())
			if !ok || a.Network != s.network || keep[a.ContainerID] {
				continue
			}
			todo = append(todo, deleteRules(t, entry, []nft.Rule{r})...)
			if _, to, _ := r.Verdict(); strings.HasPrefix(to, "CNI-") {
				dropped[to] = true
			}
		}
	}
	for name := range dropped {
		todo = append(todo, dropChain(t, name)...)
	}
	return todo, nil
}
