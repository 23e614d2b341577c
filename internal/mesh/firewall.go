// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"cmp"
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

// forwarding enables forwarding for the families of the networks, as the bridge plugin does.
// It leaves forwarding on when the networks are gone.
func (s State) forwarding(ctx context.Context, env *netstate.Env) error {
	f := netstate.Forwarding{Failed: "failed to enable forwarding"}
	for _, x := range s.Subnets {
		f.IPv4 = f.IPv4 || x.Prefix.Addr().Is4()
		f.IPv6 = f.IPv6 || x.Prefix.Addr().Is6()
	}
	_, err := f.Ensure(ctx, env)
	return err
}

// warnLegacy warns about rules that drop packets and that no rule of ours can override.
// warnLegacy warns only once.
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

// facts returns the firewall facts of the mesh. All holders use the same names and so share the facts.
func (s State) facts() (out []record.Fact) {
	for _, x := range s.Subnets {
		out = append(out, record.Fact{Name: "accept-" + x.Prefix.String(), Accepts: []netip.Prefix{x.Prefix}})
	}
	for _, d := range divided(s.Subnets) {
		e := nft.Divided(d.From, d.To, d.Block, s.Name)
		out = append(out, record.Fact{Name: fmt.Sprintf("divide-%s-%s-%d", d.From, d.To, d.Block), Elements: []nft.Element{e}})
	}
	for _, x := range s.Exempt {
		out = append(out, record.Fact{Name: fmt.Sprintf("exempt-%s-%s", x.From, x.To), Elements: []nft.Element{nft.Exempt(x.From, x.To, s.Name)}})
	}
	for _, p := range s.AnyPort {
		out = append(out, record.Fact{Name: "anyport-" + p.String(), Elements: []nft.Element{nft.AnyPort(p, s.Name)}})
	}
	return out
}

// division is a pair of ranges. Nothing is forwarded from the containers of the first one to the second one.
type division struct {
	From, To netip.Prefix
	Block    int // prefix length of a host's block in From
}

// divided returns the pairs of ranges of isolated networks.
func divided(subnets []Subnet) (out []division) {
	for _, x := range subnets {
		for _, y := range subnets {
			if x.Isolated && y.Isolated && x.Network != y.Network && x.Prefix.Addr().Is4() == y.Prefix.Addr().Is4() {
				out = append(out, division{x.Prefix, y.Prefix, cmp.Or(x.Block, x.Prefix.Addr().BitLen())})
			}
		}
	}
	return out
}

// holder is the mesh as a holder of facts. holder is not an attachment, so gc does not look
// for a container.
type holder struct {
	mark    mark
	records *record.Dir
}

// hold makes the mesh a holder of shared facts. It also restores elements that another program removed from the firewall.
func (h holder) hold(ctx context.Context, env *netstate.Env, facts []record.Fact) error {
	var errs []error
	holderEnv := &netstate.Env{NFT: env.NFT, Records: h.records}
	for _, f := range facts {
		_, err := netstate.HeldFact{Fact: f, Owner: h.mark.holder()}.Ensure(ctx, holderEnv)
		errs = append(errs, err)
	}
	return errors.Join(append(errs, env.NFT.Commit(ctx))...)
}

// drop releases facts that the mesh holds but no longer wants.
func (h holder) drop(ctx context.Context, env *netstate.Env, facts []record.Fact) error {
	var want []string
	for _, f := range facts {
		want = append(want, f.Name)
	}
	held, err := h.records.FactsOf(h.mark.holder())
	errs := []error{err}
	for _, name := range held {
		if slices.Contains(want, name) {
			continue
		}
		if err := netstate.ReleaseFact(ctx, h.records, name, h.mark.holder(), env.NFT); err != nil {
			errs = append(errs, fmt.Errorf("release %s: %w", name, err))
		}
	}
	return errors.Join(append(errs, env.NFT.Commit(ctx))...)
}
