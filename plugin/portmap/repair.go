// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package portmap

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/record"
)

// Lacking returns the settings that a living attachment has lost and without which its ports are
// not reachable from 127.0.0.1. `patchbay repair` restores them in addition to the firewall. all
// has the attachment's records.
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
		} else if now, err := l.now(env); err != nil {
			return nil, err
		} else if now != 1 {
			s = append(s, l)
		}
		s = append(s, hairpins(ctx, env, link, all)...)
	}
	return s, nil
}

// hairpins returns the attachment's ports of a bridge that need hairpin mode but do not have
// it.
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

// ownWay returns the host's interface that leads to the container, if the attachment's own
// records name it. If the interface belongs to another network, ownWay returns "".
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

// relocated does what localNet does, for a container that the host now reaches through another
// interface. When the ports were published, the host reached the container through the interface
// of another attachment, which is gone.
type relocated struct {
	localNet
	rec  *record.Record
	from string // name of the old fact
}

// Ensure writes the record before and after the change. So a DEL at any moment releases all that
// the attachment holds.
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
	if err := m.k.ReleaseFact(ctx, m.from, m.owner); err != nil {
		return nil, err
	}
	m.rec.Shared = slices.DeleteFunc(m.rec.Shared, func(f string) bool { return f == m.from })
	return nil, m.k.Records.Rewrite(m.rec)
}

// way checks during CHECK which interface leads to the container. If the container's route is
// gone, a default route leads through another interface, whose settings do not matter.
type way struct {
	to      netip.Addr
	by, now string // interface at the ADD, and now; "" if there is no route
	deleted bool   // the interface of the ADD no longer exists
}

// asRecorded sets the plan's interface to the one in the record. If another attachment got the
// same address later, the route leads to that one. If that attachment is gone, CHECK expects no
// route.
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
	w := way{to: p.routed().Addr(), by: ways[0], now: p.route}
	p.route, p.port = w.by, ""
	if _, err := env.Link(netstate.Host, w.by); nl.IsNotFound(err) {
		p.route, w.deleted = "", true
	}
	return netstate.State{w}
}

// String names the expected interface.
func (w way) String() string { return fmt.Sprintf("host: reach %s by %s", w.to, w.by) }

// Ensure does nothing, because the plugin before portmap made the route.
func (way) Ensure(context.Context, *netstate.Env) (netstate.Undo, error) { return nil, nil }

// Diff compares the interface at the ADD with the interface now.
func (w way) Diff(context.Context, *netstate.Env) (string, error) {
	switch w.now {
	case w.by:
		return "", nil
	case "":
		return fmt.Sprintf("the host does not reach %s, which was behind %s", w.to, w.by), nil
	}
	if w.deleted {
		return fmt.Sprintf("127.0.0.1 does not reach published ports: the way to %s was %s, which is gone, and is %s now (run patchbay repair)", w.to, w.by, w.now), nil
	}
	return fmt.Sprintf("the host reaches %s by %s instead of %s", w.to, w.now, w.by), nil
}
