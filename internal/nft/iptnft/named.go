// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package iptnft

import (
	"slices"
	"strings"

	"github.com/google/nftables"

	"github.com/patchbay-net/patchbay/internal/nft"
)

// Named lists the attachments that rules of the reference plugins name in their comments,
// each once: pkg/utils/utils.go and pkg/ip/ipmasq_nftables_linux.go of v1.9.1. Rules of
// iptables name no interface; IfName is empty then. A comment that was cut short is
// skipped.
func Named(c *nft.Conn) (list []Attachment, err error) {
	read := func(f nftables.TableFamily, table, chain string, parse func(string) (Attachment, bool)) {
		rules, rerr := c.ListRules(f, table, chain)
		if rerr != nil {
			err = rerr
		}
		for _, r := range rules {
			if a, ok := parse(r.Comment()); ok && !slices.Contains(list, a) {
				list = append(list, a)
			}
		}
	}
	read(nftables.TableFamilyINet, tableMasquerade, chainMasqChecks, parseMasq)
	for _, f := range families() {
		read(f, tableNAT, chainPostrouting, ParseComment)
		read(f, tableNAT, chainHostportDNAT, ParseComment)
	}
	return list, err
}

// ParseComment reads `name: "NET" id: "ID"` and `dnat name: "NET" id: "ID"`.
func ParseComment(s string) (a Attachment, ok bool) {
	rest, ok := strings.CutPrefix(strings.TrimPrefix(s, "dnat "), `name: "`)
	if !ok {
		return a, false
	}
	if a.Network, rest, ok = strings.Cut(rest, `" id: "`); !ok {
		return a, false
	}
	a.ContainerID, ok = strings.CutSuffix(rest, `"`)
	return a, ok
}

// parseMasq reads `HASH-HASH, net: NET, if: IF, id: ID`; the hashes show whether the
// comment is complete.
func parseMasq(s string) (a Attachment, ok bool) {
	mark, rest, ok := strings.Cut(s, ", net: ")
	if !ok {
		return a, false
	}
	if a.Network, rest, ok = strings.Cut(rest, ", if: "); !ok {
		return a, false
	}
	a.IfName, a.ContainerID, ok = strings.Cut(rest, ", id: ")
	return a, ok && a.masqHash() == mark
}

// LegacyChains are the chains of the nat table that the reference's portmap and masquerade
// have for an attachment, in iptables-legacy too.
func (a Attachment) LegacyChains() []string {
	return []string{a.chainName(""), a.chainName("DN-"), a.chainName("SN-")}
}
