// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
)

// Packets of an encrypted network come out of its tunnel. A packet from another link with a source address
// of the network was not encrypted, and anybody may have sent it. While a host encrypts, our table has
//
//	chain plain_<name>    hook prerouting: what has a source in an encrypted network, and comes from a link
//	                      through which the host does not reach this source, is dropped; so is what comes
//	                      for a closed network from a link to other hosts
//
// <name> is the name of the mesh. The host reaches its own containers through their links, and those of
// other hosts through the tunnel. Like the chains of tunnels, this chain is not in the layout.
const plainPrefix = "plain_"

// Plain says which packets of a mesh must not arrive unencrypted.
type Plain struct {
	Mesh  string
	From  []netip.Prefix // the encrypted networks
	To    []netip.Prefix // the closed ones of them
	Links []string       // that lead to other hosts unencrypted: uplinks, and devices of tunnels
}

// GuardPlain returns the work that drops unencrypted packets from the encrypted networks of a mesh, and for
// the closed ones. If there is no encrypted network, the work removes the chain.
func GuardPlain(p Plain) Extra { return plainGuard(p) }

type plainGuard Plain

// String names the mesh.
func (g plainGuard) String() string { return "drop unencrypted packets of mesh " + g.Mesh }

// Needs reports whether the table must exist.
func (g plainGuard) Needs() bool { return len(g.From) > 0 }

func (g plainGuard) chain() chainSpec {
	ch := chainSpec{name: plainPrefix + g.Mesh, typ: nftables.ChainTypeFilter, hook: nftables.ChainHookPrerouting, prio: prioRaw}
	for _, p := range g.From {
		ch.rules = append(ch.rules, staticRule{
			fmt.Sprintf("%s, not encrypted", p), rule(family(p.Addr().Is6()), MatchPrefix(p, true, expr.CmpOpEq), notBehind(), verdict(expr.VerdictDrop)),
		})
	}
	for _, link := range g.Links {
		for _, p := range g.To {
			ch.rules = append(ch.rules, staticRule{
				fmt.Sprintf("for %s, not encrypted", p),
				rule(metaIs(expr.MetaKeyIIFNAME, expr.CmpOpEq, IfName(link)), family(p.Addr().Is6()), MatchPrefix(p, false, expr.CmpOpEq), verdict(expr.VerdictDrop)),
			})
		}
	}
	return ch
}

// Plan compares the chain.
func (g plainGuard) Plan(c *Conn) (func(*nftables.Conn) error, error) {
	want, t := g.chain(), layoutOf(nftables.TableFamilyINet).table()
	if g.Needs() {
		wrong, err := c.wrongChains(nftables.TableFamilyINet, []chainSpec{want})
		if err != nil || len(wrong) == 0 {
			return nil, err
		}
		return func(enc *nftables.Conn) error { wrong[0].replace(enc, t); return nil }, nil
	}
	exists, err := c.HasChain(nftables.TableFamilyINet, TableName, want.name)
	if err != nil || !exists {
		return nil, err
	}
	return func(enc *nftables.Conn) error { dropChain(enc, t, want.name); return nil }, nil
}

// ofPlain reports whether a chain of our table drops unencrypted packets.
func ofPlain(name string) bool { return strings.HasPrefix(name, plainPrefix) }
