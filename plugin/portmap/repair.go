// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package portmap

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/plugin/kernel"
)

// Lacking is what `patchbay repair` restores for a living attachment besides the firewall:
// the settings that let 127.0.0.1 reach its ports. all are the attachment's records.
func Lacking(ctx context.Context, k *kernel.Kernel, env *netstate.Env, rec *record.Record, all []*record.Record) (s netstate.State, err error) {
	for _, fact := range rec.Shared {
		link, ok := strings.CutPrefix(fact, factLocalNet)
		if !ok {
			continue
		}
		l := localNet{link, rec.Network, rec.Owner, k}
		if _, err := env.Link(netstate.Host, link); nl.IsNotFound(err) {
			if link = ownWay(env, rec, all); link == "" {
				continue
			}
			s = append(s, relocated{localNet{link, rec.Network, rec.Owner, k}, rec, fact})
		} else if now, err := env.Host.Sysctl(l.key()); err != nil {
			return nil, err
		} else if now != "1" {
			s = append(s, l)
		}
		s = append(s, hairpins(ctx, env, link, all)...)
	}
	return s, nil
}

// hairpins are the attachment's ports of a bridge that need the mode and lack it.
func hairpins(ctx context.Context, env *netstate.Env, bridge string, all []*record.Record) (s netstate.State) {
	br, err := env.Link(netstate.Host, bridge)
	if err != nil || br.Type() != "bridge" || !bridgeNetfilter(env) {
		return nil
	}
	for _, r := range all {
		for _, name := range r.Links {
			link, err := env.Link(netstate.Host, name)
			if err != nil || link.Attrs().MasterIndex != br.Attrs().Index {
				continue
			}
			if diff, err := (hairpinPort{name}).Diff(ctx, env); err == nil && diff != "" {
				s = append(s, hairpinPort{name})
			}
		}
	}
	return s
}

// ownWay is the interface through which the host reaches a container, when the attachment's
// own records name it and it is none of another network's.
func ownWay(env *netstate.Env, rec *record.Record, all []*record.Record) string {
	i := slices.IndexFunc(rec.Elements, func(e nft.Element) bool { return strings.HasPrefix(e.Set, nft.SetNeighbours4+"_") })
	if i < 0 || len(rec.Elements[i].Key) < 4 {
		return ""
	}
	link, err := routeTo(env, netip.AddrFrom4([4]byte(rec.Elements[i].Key)))
	if err != nil {
		return ""
	}
	name := link.Attrs().Name
	for _, r := range all {
		if slices.Contains(r.Links, name) || r.Bridge != "" && (name == r.Bridge || strings.HasPrefix(name, r.Bridge+".")) {
			return name
		}
	}
	return ""
}

// relocated is localNet for a container that was behind another attachment's interface,
// which is gone, when its ports were published.
type relocated struct {
	localNet
	rec  *record.Record
	from string // the fact
}

// Ensure writes the record before and after, so that a DEL at any time releases what is
// held.
func (m relocated) Ensure(ctx context.Context, env *netstate.Env) (netstate.Undo, error) {
	fact := m.fact().Name
	if !slices.Contains(m.rec.Shared, fact) {
		m.rec.Shared = append(m.rec.Shared, fact)
		if err := m.k.Records.Rewrite(m.rec); err != nil {
			return nil, err
		}
	}
	if _, err := m.localNet.Ensure(ctx, env); err != nil {
		return nil, err
	}
	if err := release(ctx, m.k, m.from, m.owner); err != nil {
		return nil, err
	}
	m.rec.Shared = slices.DeleteFunc(m.rec.Shared, func(f string) bool { return f == m.from })
	return nil, m.k.Records.Rewrite(m.rec)
}

// way is the host's interface towards a container, for CHECK: when its route is gone, a
// default route leads to the container through another interface, whose settings decide
// nothing.
type way struct {
	to      netip.Addr
	by, now string // at ADD, and now; "" without a route
	gone    bool   // by does not exist any more
}

// asRecorded gives the plan the interface of the record. When another attachment with the
// same address came later, the route is that one's; and when that one is gone, no route is
// expected.
func (p *plan) asRecorded(k *kernel.Kernel, env *netstate.Env, rec *record.Record) netstate.State {
	var ways []string
	for _, fact := range rec.Shared {
		if by, ok := strings.CutPrefix(fact, factLocalNet); ok {
			ways = append(ways, by)
		}
	}
	if len(ways) == 0 || len(p.addrs) == 0 || slices.Contains(ways, p.route) {
		return nil
	}
	if _, err := k.Records.Fact(factLocalNet + p.route); err == nil {
		return nil
	}
	w := way{to: p.addrs[0].Addr(), by: ways[0], now: p.route}
	p.route, p.port = w.by, ""
	if _, err := env.Link(netstate.Host, w.by); nl.IsNotFound(err) {
		p.route, w.gone = "", true
	}
	return netstate.State{w}
}

// String names the expected interface.
func (w way) String() string { return fmt.Sprintf("host: reach %s by %s", w.to, w.by) }

// Ensure does nothing: the plugin before portmap made the route.
func (way) Ensure(context.Context, *netstate.Env) (netstate.Undo, error) { return nil, nil }

// Diff compares both.
func (w way) Diff(context.Context, *netstate.Env) (string, error) {
	switch w.now {
	case w.by:
		return "", nil
	case "":
		return fmt.Sprintf("the host does not reach %s, which was behind %s", w.to, w.by), nil
	}
	if w.gone {
		return fmt.Sprintf("127.0.0.1 does not reach published ports: the host reached %s by %s, which is gone, and does by %s (run patchbay repair)", w.to, w.by, w.now), nil
	}
	return fmt.Sprintf("the host reaches %s by %s instead of %s", w.to, w.now, w.by), nil
}
