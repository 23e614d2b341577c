// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/nft/iptnft"
	"github.com/patchbay-net/patchbay/internal/record"
)

// forwarding enables forwarding as the bridge plugin does: for the families of the
// networks, and never disables it.
func (s State) forwarding(ctx context.Context, env *netstate.Env) error {
	f := netstate.Forwarding{Failed: "failed to enable forwarding"}
	for _, x := range s.Subnets {
		f.IPv4 = f.IPv4 || x.Prefix.Addr().Is4()
		f.IPv6 = f.IPv6 || x.Prefix.Addr().Is6()
	}
	_, err := f.Ensure(ctx, env)
	return err
}

// warnLegacy reports once the drops that no rule of ours can override.
func (m *Mesh) warnLegacy(subnets []Subnet) {
	var concerned []netip.Prefix
	for _, x := range subnets {
		concerned = append(concerned, x.Prefix)
	}
	if len(concerned) == 0 {
		return
	}
	if err := iptnft.LegacyDrops(m.opts.Paths.Proc, concerned); m.legacy.Changed(err) && err != nil {
		m.opts.Warn(err)
	}
}

// facts returns the facts of a whole subnet, under the names that all holders use: they
// share them.
func (x Subnet) facts() []record.Fact {
	out := []record.Fact{{Name: "accept-" + x.Prefix.String(), Accepts: []netip.Prefix{x.Prefix}}}
	if x.Masquerade {
		out = append(out, record.Fact{Name: x.masquerade(), Elements: nft.Masquerade(x.Prefix, x.Network)})
	}
	return out
}

// masquerade is the name of the subnet's masquerade.
func (x Subnet) masquerade() string { return "masquerade-" + x.Prefix.String() }

// holder holds facts for a mesh. It is not the owner of an attachment, so no gc of
// attachments looks for its container.
type holder struct {
	mark  mark
	store *record.Store
}

// keep adds the masquerades of an earlier release that must stay.
func (h holder) keep(subnets []Subnet) ([]Subnet, error) {
	held, err := h.store.Held(h.mark.holder())
	if err != nil {
		return nil, err
	}
	out := slices.Clone(subnets)
	for i, x := range out {
		if slices.Contains(held, x.masquerade()) && (x.Unsettled || h.counted(x.Network)) {
			out[i].Masquerade = true
		}
	}
	return out, nil
}

// first is the plugin that the agents' configurations begin with.
const first = "bridge"

// counted reports whether an attachment of a network may have only the mesh's masquerade.
// The records show it, and one that cannot be read may be of such an attachment.
func (h holder) counted(network string) bool {
	records, torn, err := h.store.Scan(network)
	return err != nil || len(torn) > 0 || slices.ContainsFunc(records, func(r *record.Record) bool {
		return r.Plugin == first && !slices.ContainsFunc(r.Elements, nft.Element.Masquerades)
	})
}

// take holds the wanted facts, and restores what another program removed from the firewall.
func (h holder) take(ctx context.Context, env *netstate.Env, subnets []Subnet) error {
	var errs []error
	held := &netstate.Env{NFT: env.NFT, Records: h.store}
	for _, x := range subnets {
		for _, f := range x.facts() {
			_, err := netstate.Fact{Fact: f, Owner: h.mark.holder()}.Ensure(ctx, held)
			errs = append(errs, err)
		}
	}
	return errors.Join(append(errs, env.NFT.Commit(ctx))...)
}

// drop releases facts that are held and not wanted.
func (h holder) drop(ctx context.Context, env *netstate.Env, subnets []Subnet) error {
	var want []string
	for _, x := range subnets {
		for _, f := range x.facts() {
			want = append(want, f.Name)
		}
	}
	held, err := h.store.Held(h.mark.holder())
	errs := []error{err}
	for _, name := range held {
		if slices.Contains(want, name) {
			continue
		}
		if err := netstate.ReleaseFact(ctx, h.store, name, h.mark.holder(), env.NFT); err != nil {
			errs = append(errs, fmt.Errorf("release %s: %w", name, err))
		}
	}
	return errors.Join(append(errs, env.NFT.Commit(ctx))...)
}
