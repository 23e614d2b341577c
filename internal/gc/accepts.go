// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"context"
	"net/netip"
	"path/filepath"
	"slices"

	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/nft/iptnft"
	"github.com/patchbay-net/patchbay/ipam"
)

// strayAccepts are rules of the reference's firewall plugin, which carry an
// address and no name, for one of ours that nobody has: it is within a subnet
// that host-local has given addresses of, no attachment is known to have it, and
// no namespace has it. Whoever makes such a rule reserves the address first.
func (c *collector) strayAccepts(ev *evidence) (list []*Stray) {
	addrs, err := iptnft.Forwarded(ev.k.NFT)
	ev.fail(err)
	for _, a := range addrs {
		where, err := c.world.inUse([]netip.Addr{a})
		if err != nil || where != "" || ev.has(a) || !ev.fromPool(a) {
			continue
		}
		s := &Stray{Object: Object{"rules", "CNI-FORWARD of " + a.String()}, State: Dead, Why: "nobody has the address"}
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

// fromPool says whether host-local gave out addresses near a: the last one of
// some range is within the same /16 or /64. It keeps gc away from what an
// operator accepts by hand.
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
