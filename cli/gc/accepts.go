// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"context"
	"net/netip"
	"path/filepath"
	"slices"

	"github.com/patchbay-net/patchbay/internal/nft/iptnft"
	"github.com/patchbay-net/patchbay/ipam"
	"github.com/patchbay-net/patchbay/plugin/kernel"
)

// strayAccepts returns rules of the reference's firewall plugin, which carry an address
// and no name, whose address is one of ours and unused: it is in a subnet that host-local
// has assigned addresses from, no known attachment has it, and no namespace has it. An ADD
// reserves the address before it makes such a rule.
func (c *collector) strayAccepts(ev *evidence) (list []*Stray) {
	addrs, err := iptnft.Forwarded(ev.k.NFT)
	ev.fail(err)
	for _, a := range addrs {
		where, err := c.world.inUse([]netip.Addr{a})
		if err != nil || where != "" || ev.has(a) || !ev.fromPool(a) {
			continue
		}
		s := &Stray{Object: Object{"rules", "CNI-FORWARD of " + a.String()}, State: Dead, Why: "no attachment has the address"}
		s.remove = func(ctx context.Context, k *kernel.Kernel) error {
			k.NFT.Queue(iptnft.Forget(a))
			return k.NFT.Commit(ctx)
		}
		c.ageless(s, key("accept", a.String()))
		list = append(list, s)
	}
	return list
}

func (ev *evidence) has(a netip.Addr) bool {
	for _, x := range ev.all {
		if slices.Contains(x.Addrs, a) {
			return true
		}
	}
	return false
}

// fromPool reports whether host-local assigned addresses near a: the last one of some
// range is within the same /16 or /64. This keeps gc away from addresses that an operator
// accepts by hand.
func (ev *evidence) fromPool(a netip.Addr) bool {
	bits := 16
	if a.Is6() {
		bits = 64
	}
	near, err := a.Prefix(bits)
	if err != nil {
		return false
	}
	found, _ := filepath.Glob(filepath.Join(ev.paths.CNI, "networks", "*", "last_reserved_ip.*"))
	for _, path := range found {
		text, err := readSmall(path)
		last, perr := ipam.ParseAddr(text)
		if err == nil && perr == nil && last.IsValid() && near.Contains(last) {
			return true
		}
	}
	return false
}
