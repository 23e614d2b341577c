// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"context"
	"fmt"
	"net/netip"
	"reflect"
	"slices"

	"github.com/patchbay-net/patchbay/internal/mesh"
	"github.com/patchbay-net/patchbay/store"
)

// apply makes this host be what the world says: configurations, the fabric and
// the names. With all, the kernel is compared even if nothing is new.
func (a *Agent) apply(ctx context.Context, all bool) {
	w, known, synced := a.mirror.snapshot()
	if !known {
		return // the first time, and the store is away: there is nothing to go by
	}
	f := a.facts(&w)
	d := compile(&w, f)
	may := mayRemove(synced, d.wrong)
	a.said.tell("bridges", a.tidy(&w, d, may)) // before routes to where they lead
	a.said.tell("data of the store", a.mirror.lost())
	a.said.tellAll("network", d.wrong)
	a.said.tellAll("configuration of", a.configure(d, may))
	if synced { // before ways that a start without the store would not know, and take down
		a.mirror.refresh(&w) // what was remembered meanwhile
		a.said.tell("cache", a.save(&w, all))
	}
	if f.uplink > 0 && may.sets() {
		a.carry(ctx, d, all)
	}
	if len(a.opts.DNS) > 0 {
		containers, _ := a.here()
		a.view.look(&w, a.self.ID, containers)
	}
	if may.sets() {
		a.said.tell("names", a.names.Listen(d.names))
	}
	a.said.tellAll("Docker network", a.stale(d.parts))
	a.said.tell("status", a.saveStatus())
}

// facts looks at this host, for compile.
func (a *Agent) facts(w *world) *facts {
	f := a.looks(w)
	f.dns = a.opts.DNS
	f.settled = func(network string) bool { return settled(a.opts.ConfDir, network) }
	f.self, f.uplink = a.way()
	f.self.ID = a.self.ID // also while nothing else is known
	a.mu.Lock()
	defer a.mu.Unlock()
	f.copies, f.unread = a.copies, a.unread != ""
	return f
}

// usable is the function's, with this host as it is.
func (a *Agent) usable(w *world, underlay []netip.Addr) ([]store.Network, map[string]error) {
	f := a.looks(w)
	f.self.Underlay = underlay
	return usable(w, f)
}

// looks are the facts by which networks are refused, but the underlay.
func (a *Agent) looks(w *world) *facts {
	return &facts{
		hinders: func(n *store.Network) error { return a.inTheWay(w, n) },
		runs: func(network string, block netip.Prefix) bool {
			free, _ := a.free(network, block)
			return !free
		},
	}
}

// way is this host as others reach it, and the MTU of the way to them, in bytes;
// 0 while there is none. Then names are answered and configurations stay.
func (a *Agent) way() (self store.Node, uplink int) {
	self, err := a.node()
	if a.said.tell("uplink", err); err == nil {
		uplink, err = a.opts.Fabric.UplinkMTU(self.Underlay)
		a.said.tell("uplink's address", err) // the loop of the store knows nothing of it
	}
	if err != nil {
		a.lost = true
		return self, 0
	}
	a.lost = false
	if !slices.Equal(self.Underlay, a.reached) {
		a.reached = self.Underlay
		ring(a.upstream) // the others have to know soon
	}
	return self, uplink
}

// carry tells the fabric of this host and the others, when there is anything new.
func (a *Agent) carry(ctx context.Context, d *desired, all bool) {
	next := meshed{d.self, d.peers, true}
	if !all && reflect.DeepEqual(next, a.meshed) {
		return
	}
	err := a.opts.Fabric.Apply(ctx, d.self, d.peers)
	next.done = err == nil
	a.said.tell("fabric", err)
	a.meshed = next
}

// meshed is what the fabric was told last.
type meshed struct {
	self  mesh.Self
	peers []mesh.Peer
	done  bool // without an error
}

// configure writes the configurations of networks that have their blocks, and
// removes those of others.
func (a *Agent) configure(d *desired, may *removal) (wrong map[string]error) {
	wrong = map[string]error{}
	for i := range d.parts {
		p := &d.parts[i]
		if !p.ready {
			continue
		}
		a.mirror.remember(p.Network.Name, p.have) // before an address of it is given to a container
		conf := d.confs[p.Network.Name]
		err := conf.err
		if err == nil {
			err = writeConf(a.opts.ConfDir, p.Network.Name, conf.text)
		}
		if err != nil {
			wrong[p.Network.Name] = err
		}
	}
	removed, err := removeConfs(a.opts.ConfDir, func(network string) bool { return d.keeps(network) || !may.network(network) })
	if err != nil {
		wrong["networks that are no more"] = err
	}
	for _, network := range removed {
		a.opts.Log("network %s: configuration removed", network)
	}
	return wrong
}

// stale are Docker networks whose copy of the configuration has another block
// than this host.
func (a *Agent) stale(parts []part) map[string]error {
	out := map[string]error{}
	_, copies := a.here()
	for _, c := range copies {
		i := slices.IndexFunc(parts, func(p part) bool { return p.Network.Name == c.Network })
		if i < 0 || len(parts[i].have) == 0 {
			continue
		}
		for _, r := range c.Ranges {
			if !slices.Contains(parts[i].have, r) {
				out[c.ID[:min(len(c.ID), shortID)]] = fmt.Errorf("it gives out %s, which is not this host's block of %s: remove it and create it again", r, c.Network)
			}
		}
	}
	return out
}
