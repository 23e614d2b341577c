// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/patchbay-net/patchbay/daemons/hosts/store"
	"github.com/patchbay-net/patchbay/internal/resident"
)

// apply brings this host into the desired state: configurations, fabric and names. If all is set,
// apply compares the fabric with the kernel even if the fabric's input has not changed.
func (a *Agent) apply(ctx context.Context, all bool) {
	stopped := a.stops() // before the world is read
	w, loaded, synced := a.mirror.snapshot()
	if !loaded { // the first start, without the store
		a.health.Turned(errNoState, nil)
		return
	}
	f := a.facts(&w)
	f.plain = a.encrypt(ctx, &w) != nil
	d := compile(&w, f)
	d.stopped = stopped
	may := mayRemove(synced, d.wrong)
	a.problems.Set("bridges", a.tidy(&w, d, may)) // before the fabric adds routes to networks that are on the bridges
	a.problems.Set("data of the store", a.mirror.lost())
	a.problems.SetAll("network", d.wrong)
	why, err := a.withhold(&w, d, may) // before the configurations are removed
	a.problems.Set("grants", err)
	a.answer(&w, d, may) // before the configurations name the resolver
	a.problems.SetAll("configuration of", a.configure(d, may))
	if synced { // before the fabric: if the agent starts without the store, the cache may lack routes, and those must stay
		a.mirror.refresh(&w) // includes blocks and bridges that were stored after the snapshot
		a.problems.Set("cache", a.save(&w, all))
	}
	unable := a.carry(ctx, f, d, may, all)
	a.problems.SetAll("Docker network", a.stale(d.parts, why))
	a.problems.Set("status", a.saveStatus())
	a.health.Turned(unable, d.peers)
}

// answer makes the resolver answer names. If it cannot listen at an address, the configuration does not name this
// address until it can: another program would answer the containers there.
func (a *Agent) answer(w *world, d *desired, may *removal) {
	if len(a.opts.DNS) > 0 {
		containers, _ := a.here()
		a.view.build(w, a.self, containers)
	}
	if may.sets() {
		a.problems.Set("names", a.names.Listen(d.names))
		a.mute = a.names.Mute(d.names)
	}
	for i := range d.parts {
		if p := &d.parts[i]; p.ready && p.DNS && len(a.mute) > 0 {
			p.Mute = a.mute
			d.render(p)
		}
	}
}

// facts collects what compile needs to know about this host.
func (a *Agent) facts(w *world) *thisHost {
	f := a.localFacts(w)
	f.dns = a.opts.DNS
	f.self, f.uplink = a.uplink()
	f.self.ID = a.self // set even if the uplink is not known
	return f
}

// usable calls the function usable with those facts about this host that make it refuse networks.
func (a *Agent) usable(w *world, underlay []netip.Addr) ([]store.Network, map[string]error) {
	f := a.localFacts(w)
	f.self.Underlay = underlay
	return usable(w, f)
}

// localFacts returns the facts that make this host refuse networks, without the underlay addresses.
func (a *Agent) localFacts(w *world) *thisHost {
	return &thisHost{
		hinders: func(n *store.Network) error { return a.inTheWay(w, n) },
		runs: func(network string, block netip.Prefix) bool {
			free, _ := a.free(network, block)
			return !free
		},
	}
}

// uplink returns this host's record with its underlay addresses, and the MTU towards other hosts
// in bytes. If there is no uplink, the MTU is 0. Then the agent still answers names, and
// configurations stay.
func (a *Agent) uplink() (self store.Node, uplink int) {
	self, err := a.node()
	if a.problems.Set("uplink", err); err == nil {
		uplink, err = a.opts.Fabric.UplinkMTU(self.Underlay)
		a.problems.Set("uplink's address", err) // not "uplink", which the loop of the store sets
	}
	if err != nil {
		a.noUplink = true
		return self, 0
	}
	a.noUplink = false
	if !slices.Equal(self.Underlay, a.reached) {
		a.reached = self.Underlay
		resident.Signal(a.upstream) // the other hosts soon need the new addresses
	}
	return self, uplink
}

// configure writes the configuration of each network in which this host holds a block, and removes
// the configurations of all other networks.
func (a *Agent) configure(d *desired, may *removal) (wrong map[string]error) {
	wrong = map[string]error{}
	for i := range d.parts {
		p := &d.parts[i]
		if !p.ready {
			continue
		}
		conf := d.confs[p.Network.Name]
		err := errors.Join(conf.err, a.allow(p.Network.Name, p.have, d.stopped))
		if err == nil {
			err = writeConf(a.opts.ConfDir, p.Network.Name, conf.text)
		}
		if err != nil {
			wrong[p.Network.Name] = err
		}
	}
	removed, err := removeConfs(a.opts.ConfDir, func(network string) bool { return d.keeps(network) || !may.network(network) })
	if err != nil {
		wrong["removed networks"] = err
	}
	for _, network := range removed {
		a.opts.Log("network %s: configuration removed", network)
	}
	return wrong
}

// stale finds Docker networks whose copy of the configuration has another block than this host
// holds now. why has the networks from which this host gives out nothing.
func (a *Agent) stale(parts []part, why map[string]string) map[string]error {
	out := map[string]error{}
	_, copies := a.here()
	for _, c := range copies {
		id := c.ID[:min(len(c.ID), shortID)]
		if reason := why[c.Network]; reason != "" && c.Ours {
			out[id] = fmt.Errorf("its containers get no addresses: %s: remove it", reason)
			continue
		}
		i := slices.IndexFunc(parts, func(p part) bool { return p.Network.Name == c.Network })
		if i < 0 || len(parts[i].have) == 0 {
			continue
		}
		for _, r := range c.Ranges {
			if !slices.Contains(parts[i].have, r) {
				out[id] = fmt.Errorf("its copy of the configuration has %s, which is not this host's block of %s: containers get no address of it: remove it and create it again", r, c.Network)
			}
		}
	}
	return out
}
