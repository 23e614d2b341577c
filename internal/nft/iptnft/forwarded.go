// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package iptnft

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"

	"github.com/patchbay-net/patchbay/internal/nft"
)

// Forwarded lists the single addresses that the reference's firewall plugin accepts in
// CNI-FORWARD, each once. The rules name nothing but the address.
func Forwarded(c *nft.Conn) (addrs []netip.Addr, err error) {
	for _, f := range families() {
		rules, err := c.ListRules(f, tableFilter, chainCNIForward)
		if err != nil {
			return nil, err
		}
		for _, r := range rules {
			if a, ok := acceptsOne(r, f); ok && !slices.Contains(addrs, a) {
				addrs = append(addrs, a)
			}
		}
	}
	return addrs, nil
}

// acceptsOne reads `-s A/32 -j ACCEPT` and `-d A/32 … -j ACCEPT`. A longer
// prefix is masked first, or compared with fewer bytes.
func acceptsOne(r nft.Rule, f nftables.TableFamily) (a netip.Addr, ok bool) {
	code, _, ends := r.Verdict()
	if !ends || code != verdictAccept || r.Has("bitwise", "") || strings.HasPrefix(r.Comment(), commentAccept) {
		return a, false
	}
	values := r.Compared()
	if len(values) != 1 {
		return a, false
	}
	a, ok = netip.AddrFromSlice(values[0])
	return a, ok && a.Is4() == (f == nftables.TableFamilyIPv4)
}

// Forget removes the rules of CNI-FORWARD that accept one address.
func Forget(a netip.Addr) nft.Extra { return forget{leftovers{addrs: []netip.Addr{a}}} }

type forget struct{ leftovers }

// String names the address.
func (x forget) String() string {
	return fmt.Sprintf("remove what the reference plugin firewall accepts of %s", x.addrs[0])
}

// Plan looks at the table of either family; the address belongs to one.
func (x forget) Plan(c *nft.Conn) (func(*nftables.Conn) error, error) {
	var todo []step
	for _, f := range families() {
		steps, err := x.forward(c, nft.Ref{Family: f, Table: tableFilter, Chain: chainCNIForward})
		if err != nil {
			return nil, err
		}
		todo = append(todo, steps...)
	}
	return run(todo), nil
}
