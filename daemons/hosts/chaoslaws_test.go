// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/patchbay-net/patchbay/daemons/hosts/store"
)

// laws holds the data on which the invariants of a cluster depend.
type laws struct {
	removed   map[string]bool          // networks that were removed, so routes to them may go, until all hosts have seen their successor
	latest    map[string]store.Network // the last network that the store had under each name
	contested map[netip.Prefix]bool    // blocks that the store ever gave to another host than their holder
	wiped     map[string]bool          // hosts with blocks whose record the store has lost
	before    map[string]kept          // by host
}

// kept is what a host must keep.
type kept struct {
	routes map[netip.Prefix]netip.Addr
	blocks map[string]netip.Prefix // of configurations, by network
	grants map[string]netip.Prefix // what host-local may give out, by network
}

func newLaws() laws {
	return laws{map[string]bool{}, map[string]store.Network{}, map[netip.Prefix]bool{}, map[string]bool{}, map[string]kept{}}
}

// netNames returns the names of all networks.
func netNames() []string { return []string{"lan", "net", "few"} }

func networkOf(b netip.Prefix) string { return netNames()[(b.Addr().As4()[1]-200)/10] }

// Laws checks the invariants after each step:
//   - a failed read removes no route to a living host, and no configuration of the
//     host itself,
//   - no two hosts allocate from one block, also not for a network with a copy of an earlier
//     configuration,
//   - no host deletes another host's object,
//   - a container keeps its bridge and its gateway.
func (c *cluster) Laws() error {
	c.contest()
	c.noteReplaced()
	defer c.recover()
	errs := []error{c.broken}
	for _, h := range c.hosts {
		errs = append(errs, h.gatewaysStay())
		now := kept{h.Now(), map[string]netip.Prefix{}, map[string]netip.Prefix{}}
		for _, n := range netNames() {
			if b := h.granted(n); b.IsValid() {
				now.grants[n] = b
			}
			if b := h.block(n); b.IsValid() {
				now.blocks[n] = b
			}
		}
		was := c.before[h.name]
		c.before[h.name] = now
		if !h.left && !h.forget {
			errs = append(errs, c.stays(h, was, now))
		}
	}
	return errors.Join(append(errs, c.twice())...)
}

// stays checks the invariant of routes and configurations.
func (c *cluster) stays(h *simHost, was, now kept) error {
	if err := h.Stays(was.routes, func(b netip.Prefix, via netip.Addr) bool {
		peer := c.hosts[via.As4()[3]-1]
		return c.removed[networkOf(b)] || c.contested[b] || peer.left || peer.forget || !peer.owns(b)
	}); err != nil {
		return fmt.Errorf("%s: %w", h.name, err)
	}
	for n, b := range was.blocks {
		if now.blocks[n] != b && !c.removed[n] && !c.contested[b] {
			return fmt.Errorf("%s had the configuration of %s with block %s, and now %v", h.name, n, b, now.blocks[n])
		}
	}
	return nil
}

func (h *simHost) owns(b netip.Prefix) bool {
	return slices.Contains(h.agent.mirror.cache.Own[networkOf(b)], b)
}

// recover ends the exception of removed networks that were created again, once every host acts on the
// new network. The blocks of a host that never runs again, or does not come back, do not count.
func (c *cluster) recover() {
	inside := c.inside
	c.inside = true // no other host acts meanwhile
	defer func() { c.inside = inside }()
	w, err := Admin{Store: c.client}.read(context.Background())
	if err != nil || c.client.Away {
		return
	}
	for name := range c.removed {
		n := w.network(name)
		if n.Name != "" && !slices.ContainsFunc(c.hosts, func(h *simHost) bool { return !h.dead && !h.left && !h.forget && !h.actsOn(&w, n) }) {
			c.s.Say("  all hosts act on the new network %s", name)
			delete(c.removed, name)
		}
	}
}

// actsOn reports whether a host knows a network and its blocks as the store has them, and has done what
// follows from them.
func (h *simHost) actsOn(w *world, n store.Network) bool {
	m := &h.agent.mirror
	known, there := m.networks.GetPresent(n.Name)
	lost := m.missing()
	if !h.up || !h.live || !m.synced || !there || !reflect.DeepEqual(known, n) || lost.has(n.Name) || len(beside(lost.Blocks, n.Name, nil)) > 0 {
		return false
	}
	mine, want := netip.Prefix{}, map[netip.Prefix]bool{}
	for _, b := range w.blocksOf(n.Name) {
		if has, _ := m.blocks.GetPresent(b.Key()); has != b {
			return false
		}
		if b.Node == h.agent.ID() {
			mine = b.Prefix
		} else if possible(&n, b.Prefix) {
			want[b.Prefix] = true
		}
	}
	for _, b := range m.blocks.Present() {
		if b.Network == n.Name && !slices.ContainsFunc(w.Blocks, func(o store.Block) bool { return o.Key() == b.Key() }) {
			return false
		}
	}
	for b := range h.Routes {
		if networkOf(b) == n.Name && !want[b] {
			return false
		}
	}
	if mine.IsValid() && !possible(&n, mine) { // of the former network
		return false
	}
	own := m.cache.Own[n.Name]
	return h.block(n.Name) == mine && h.granted(n.Name) == mine && (len(own) == 0 || len(own) == 1 && own[0] == mine)
}

// stored returns the readable blocks of the store that have a host's size.
func (c *cluster) stored() []store.Block {
	inside := c.inside
	c.inside = true // no other host acts meanwhile
	defer func() { c.inside = inside }()
	items, _, _ := c.client.Blocks().List(context.Background(), "")
	var out []store.Block
	for _, i := range items {
		if i.Object.Prefix.Bits() == 28 {
			out = append(out, i.Object)
		}
	}
	return out
}

func (c *cluster) storedNetworks() map[string]store.Network {
	inside := c.inside
	c.inside = true // no other host acts meanwhile
	defer func() { c.inside = inside }()
	all, _, _ := list(context.Background(), c.client.Networks(), "")
	return all
}

// contest notes the blocks that the store gives to another host than their holder.
func (c *cluster) contest() {
	for _, b := range c.stored() {
		for _, h := range c.hosts {
			has := h.owns(b.Prefix) || c.before[h.name].blocks[b.Network] == b.Prefix
			if has && h.agent.ID() != b.Node {
				c.contested[b.Prefix] = true
			}
			if h.owns(b.Prefix) && h.agent.ID() == b.Node {
				delete(c.wiped, h.name+b.Prefix.String())
			}
		}
	}
}

// noteReplaced notes each network that has replaced another one of the same name in the store. Only then may a host
// still act on the former network, because hosts know no network that the store never had. What the operator
// wanted last does not matter: all hosts may act on the network of a backup.
func (c *cluster) noteReplaced() {
	for name, n := range c.storedNetworks() {
		if was, known := c.latest[name]; known && !reflect.DeepEqual(was, n) {
			c.removed[name] = true
		}
		c.latest[name] = n
	}
}

// wipe makes the store lose data. It notes all blocks that now have no record, from the former
// store and from the hosts.
func (c *cluster) wipe(lose func()) {
	before := c.stored()
	c.noteReplaced()
	lose()
	c.noteReplaced() // a backup may have a former network of the name
	there := map[store.Block]bool{}
	for _, b := range c.stored() {
		there[b] = true
	}
	for _, h := range c.hosts {
		for n, own := range h.agent.mirror.cache.Own {
			for _, p := range own {
				before = append(before, store.Block{Network: n, Prefix: p, Node: h.agent.ID()})
			}
		}
		for _, b := range before {
			if b.Node == h.agent.ID() && !there[b] {
				c.wiped[h.name+b.Prefix.String()] = true
			}
		}
	}
}

// twice checks the invariant of blocks. A host without memory may claim a block that the store lost.
func (c *cluster) twice() error {
	holders := map[netip.Prefix]string{}
	for _, h := range c.hosts {
		for n, b := range c.before[h.name].grants {
			if c.removed[n] || c.wiped[h.name+b.String()] || h.forget || h.left {
				continue
			}
			if o := holders[b]; o != "" {
				return fmt.Errorf("%s and %s both have block %s", o, h.name, b)
			}
			holders[b] = h.name
		}
	}
	return nil
}

// gone reports whether the owner of a block may lose it, and notes the loss. The owner may lose
// the block in three cases: it has not reached the store for long, whatever clocks show; it was
// forgotten; or it is dead and never had the block, because a schedule may give a block to any
// host.
func (c *cluster) gone(by *simHost, b store.Block) bool {
	i := slices.IndexFunc(c.hosts, func(h *simHost) bool { return h.agent.ID() == b.Node })
	if by == nil || i < 0 {
		return false
	}
	h := c.hosts[i]
	if !h.forget && !h.left && (!h.dead || h.owns(b.Prefix)) && time.Since(h.reached) < reclaimAfter {
		return false
	}
	c.s.Say("  %s takes block %s of %s", by.name, b.Prefix, h.name)
	c.wiped[h.name+b.Prefix.String()], c.contested[b.Prefix] = true, true
	return true
}

// claims returns an error if the host claims a block that it knows as another host's.
func (c *cluster) claims(h *simHost, call string) {
	key, ok := strings.CutPrefix(call, "create blocks ")
	if !ok {
		return
	}
	for _, b := range h.agent.mirror.missing().Blocks {
		if b.Key() == key && !c.gone(h, b) {
			c.broken = fmt.Errorf("%s claims block %s, which it knows to be %s's", h.name, key, b.Node)
		}
	}
}

// agreed checks that all agents and the store agree.
func (c *cluster) agreed() error {
	w, err := Admin{Store: c.client}.read(context.Background())
	if err != nil && !errors.Is(err, store.ErrUnreadable) {
		return err
	}
	for _, h := range c.hosts {
		if h.up {
			if err := h.agrees(&w); err != nil {
				return fmt.Errorf("%s: %w", h.name, err)
			}
		}
	}
	return nil
}

func (h *simHost) agrees(w *world) error {
	id, mine := h.agent.ID(), &h.agent.mirror.cache
	if !w.has(id) || !w.present()[id] {
		return fmt.Errorf("the store has it: %v, and as present: %v", w.has(id), w.present()[id])
	}
	if a, b := keys(w.Networks), keys(mine.Networks); !slices.Equal(a, b) {
		return fmt.Errorf("the store has the networks %v, it has %v", a, b)
	}
	for _, n := range w.Networks {
		own := slices.DeleteFunc(w.blocksOf(n.Name), func(b store.Block) bool { return b.Node != id })
		if len(own) == 0 && !h.block(n.Name).IsValid() && h.none(w, n) {
			continue
		}
		if len(own) != 1 || own[0].Prefix != h.block(n.Name) {
			return fmt.Errorf("its blocks of %s are %v, it hands out from %v", n.Name, own, h.block(n.Name))
		}
	}
	for _, n := range netNames() {
		if h.block(n).IsValid() && w.network(n).Name == "" {
			return fmt.Errorf("it has a configuration of %s, which was removed", n)
		}
	}
	return errors.Join(h.tidied(w), h.reaches(w))
}

// none reports whether other hosts hold, or held, all blocks of a network as far as the host knows.
func (h *simHost) none(w *world, n store.Network) bool {
	missing := beside(h.agent.mirror.missing().Blocks, n.Name, w.Blocks)
	blocks := slices.DeleteFunc(append(w.blocksOf(n.Name), missing...), func(b store.Block) bool { return !possible(&n, b.Prefix) })
	return len(blocks) == 1<<(n.BlockBits4-n.Subnets[0].Bits())
}

// reaches compares routes with the store's blocks. A host may remember blocks of hosts that were
// removed.
func (h *simHost) reaches(w *world) error {
	want := map[netip.Prefix]netip.Addr{}
	for _, b := range w.Blocks {
		n, ok := w.node(b.Node)
		net := w.network(b.Network)
		if ok && b.Node != h.agent.ID() && possible(&net, b.Prefix) {
			want[b.Prefix] = n.Underlay[0]
		}
	}
	for b, via := range h.Routes {
		if peer := h.c.hosts[via.As4()[3]-1]; want[b] == (netip.Addr{}) && !peer.up {
			continue
		}
		if want[b] != via {
			return fmt.Errorf("it has a route to %s by %s, wanted by %v", b, via, want[b])
		}
	}
	for b, via := range want {
		if h.Routes[b] != via {
			return fmt.Errorf("it has no route to %s by %s, but %v", b, via, h.Routes[b])
		}
	}
	return nil
}

func keys(all []store.Network) (out []string) {
	for _, n := range all {
		out = append(out, n.Key())
	}
	slices.Sort(out)
	return out
}
