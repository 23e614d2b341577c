// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/patchbay-net/patchbay/daemons/hosts/store"
	"github.com/patchbay-net/patchbay/daemons/test/chaos"
)

// Actions returns what can happen to a cluster. Most actions are work of its agents.
func (c *cluster) Actions() []chaos.Action {
	up := func(h *simHost) bool { return h.up }
	on := func(name string, weight int, of func(*simHost) bool, do func(*simHost)) chaos.Action {
		return chaos.Action{Name: name, Weight: weight, Do: func() {
			if h := c.some(of); h != nil {
				c.s.Say("  %s", h.name)
				do(h)
			}
		}}
	}
	return []chaos.Action{
		on("watch", 40, up, func(h *simHost) { h.follow(c.s.IntN(4), 1+c.s.IntN(6)) }),
		on("catch up", 20, up, (*simHost).catchUp),
		on("tend", 20, up, (*simHost).tend),
		on("apply", 25, up, (*simHost).apply),
		{Name: "time passes", Weight: 12, Do: c.pass},
		{Name: "a long time passes", Weight: 2, Do: c.passLong},
		on("clock jumps", 3, func(h *simHost) bool { return !h.dead && !h.left }, (*simHost).jump),
		{Name: "trouble", Weight: 6, Do: c.trouble},
		{Name: "operator", Weight: 5, Do: c.operate},
		on("attach", 6, up, func(h *simHost) { h.attach(c.s.Chance(60)) }),
		on("cut off", 3, up, func(h *simHost) { h.cut = !h.cut; h.client.Away = h.cut }),
		on("kill -9", 3, up, func(h *simHost) { h.stop() }),
		on("start", 5, func(h *simHost) bool { return !h.up && !h.dead && !h.left }, func(h *simHost) { h.start() }),
		on("die", 1, up, func(h *simHost) { h.stop(); h.dead = true }),
		on("leave", 1, up, (*simHost).leave),
	}
}

// catchUp applies all events.
func (h *simHost) catchUp() {
	for table := range 4 {
		h.follow(table, 1<<30)
	}
}

func (c *cluster) pass() {
	c.passes(1 + c.s.IntN(6))
	if c.s.Chance(5) {
		calm := c.calm
		c.calm = true
		c.work(2) // each host that reaches the store reads it and writes its own data in less time
		c.calm = calm
		c.s.Pass(rebuildTime)
	}
}

// passes lets 3 s pass for all sessions, and repeats this the given number of times.
func (c *cluster) passes(times int) {
	for range times {
		c.keep()
		c.s.Pass(3 * time.Second)
		c.store.Expire()
	}
}

func (c *cluster) keep() {
	for _, h := range c.hosts {
		if h.up {
			h.keep()
		}
	}
}

// passLong lets hours pass while agents renew their sessions. If a host is cut off or stopped for
// the longest of these times, it may lose its blocks.
func (c *cluster) passLong() {
	calm := c.calm
	c.calm = true
	defer func() { c.calm = calm }()
	c.work(2)
	c.keep()
	c.s.Pass([]time.Duration{time.Hour, 20 * time.Hour, longTTL(reclaimAfter) + time.Minute}[c.s.IntN(3)])
	c.keep()
	c.store.Expire()
	c.work(1)
}

// jump sets a host's clock: to the right time, an hour back, a day or a year ahead, or
// 1970.
func (h *simHost) jump() {
	const day = 24 * time.Hour
	h.clock = []time.Duration{0, -time.Hour, day + time.Hour, 365 * day, time.Until(time.Unix(0, 0))}[h.c.s.IntN(5)]
	h.c.s.Say("  by %v", h.clock)
}

// trouble makes the store fail in some way.
func (c *cluster) trouble() {
	switch c.s.IntN(8) {
	case 0, 1:
		c.s.Say("  the store is emptied")
		c.wipe(c.store.Empty)
	case 2:
		c.s.Say("  backup")
		c.backup = c.store.Backup()
	case 3:
		if c.backup != nil {
			c.s.Say("  the store is restored")
			c.wipe(func() { c.store.Restore(c.backup) })
		}
	case 4:
		c.s.Say("  compaction")
		c.store.Compact()
	case 5:
		c.s.Say("  a wide block")
		of := c.hosts[c.s.IntN(len(c.hosts))]
		c.put("blocks", store.Block{Network: "lan", Prefix: prefix("10.200.0.0/25"), Node: of.agent.ID()})
	case 6:
		c.s.Say("  objects of a newer Patchbay")
		c.store.Put("blocks", "lan/10.200.0.128-26", []byte(`{"schema":99}`))
		c.store.Put("networks", "newer", []byte(`{"schema":99}`))
		c.store.Put("nodes", "newer", []byte(`{"schema":99}`))
	case 7:
		c.restoreAhead()
	}
}

// restoreAhead restores a backup with a higher revision. The first host that notices it tells all
// others. So a schedule needs a host that can notice it: one that knows a later change of an object in
// the backup. Without such a host, the loss would look like a removal.
func (c *cluster) restoreAhead() {
	by := c.some(func(h *simHost) bool {
		return h.up && !h.cut && h.agent.mirror.synced && c.store.Changed(c.backup, h.agent.mirror.cache.Seen)
	})
	if by == nil {
		return
	}
	compact := c.s.Chance(50)
	c.s.Say("  the store is restored ahead, compacted: %v", compact)
	calm := c.calm
	c.calm = true
	defer func() { c.calm = calm }()
	c.wipe(func() { c.store.RestoreAhead(c.backup, compact) })
	by.live = false
	by.follow(0, 1)
	if by.agent.mirror.cache.Doubted.IsZero() {
		c.broken = fmt.Errorf("%s read a store that went back, and did not notice it", by.name)
	}
}

func (c *cluster) put(table string, o store.Object) {
	data, err := json.Marshal(map[string]any{"schema": 1, "object": o})
	check(err)
	c.store.Put(table, o.Key(), data)
}

// operate runs a command of the operator.
func (c *cluster) operate() {
	switch c.s.IntN(7) {
	case 0:
		c.create("net", 0)
	case 1:
		if len(c.hosts) < 6 {
			c.join()
		}
	case 2:
		for _, name := range netNames() { // after a loss
			if n, ok := c.wanted[name]; ok {
				err := Admin{Store: c.client}.Create(context.Background(), n)
				c.s.Say("  create %s again: %v", name, err)
			}
		}
	case 3:
		c.forget()
	case 4:
		if c.s.Chance(30) {
			c.remove("lan")
		}
		c.remove([]string{"net", "few"}[c.s.IntN(2)])
	case 5:
		for i, name := range netNames() {
			if _, ok := c.wanted[name]; !ok {
				c.create(name, 1+i+c.s.IntN(2))
			}
		}
	case 6: // with another subnet, or the same
		name := netNames()[c.s.IntN(3)]
		c.remove(name)
		c.create(name, c.s.IntN(3))
	}
}

func (c *cluster) forget() {
	h := c.some(func(h *simHost) bool { return !h.up || h.cut })
	if h == nil {
		return
	}
	before := c.client.Before
	c.client.Before = func(call string) (bool, error) { c.take(call); return before(call) }
	c.client.Deleted = func(table, key string, data []byte) { c.deleted(h, table, key, data) }
	gone, err := Admin{Store: c.client}.Forget(context.Background(), h.name)
	c.client.Before, c.client.Deleted = before, nil
	if c.s.Say("  forget %s: %v, %v", h.name, gone, err); err == nil || errors.Is(err, errKeptBlocks) || len(gone) > 0 {
		h.forget = true
	} else if errors.Is(err, store.ErrUnreadable) && !errors.Is(err, store.ErrNotFound) {
		c.broken = fmt.Errorf("forget %s: an unreadable object stops it: %w", h.name, err)
	}
}

// take gives a block that is about to be deleted to another host.
func (c *cluster) take(call string) {
	key, ok := strings.CutPrefix(call, "delete blocks ")
	if !ok || !c.s.Chance(20) {
		return
	}
	for _, b := range c.stored() {
		if b.Key() == key {
			for _, h := range c.hosts {
				h.forget = h.forget || h.agent.ID() == b.Node // the store says so from now on
			}
			b.Node = c.hosts[c.s.IntN(len(c.hosts))].agent.ID()
			c.put("blocks", b)
		}
	}
}

func (h *simHost) leave() {
	h.stop()
	h.left = true // from the first change on, even if it fails
	client := h.c.store.Client()
	client.Away = h.cut
	client.Deleted = h.client.Deleted
	client.Before = func(call string) (bool, error) { h.c.take(call); return false, nil }
	err := Leaving{
		Store: client, Paths: h.paths(), ConfDir: h.dir + "/net.d", Force: true,
		Clear: func(context.Context) error { clear(h.Routes); return nil }, Log: h.c.s.Say, links: h.links.open,
	}.Do(context.Background())
	h.c.s.Say("  %s leaves: %v", h.name, err)
}

// Calm ends all trouble. The operator creates the networks that are wanted. If only a host
// remembers a network, the operator creates and removes that network.
func (c *cluster) Calm() error {
	c.calm = true
	for _, h := range c.hosts {
		if h.cut, h.client.Away = false, false; !h.up && !h.dead && !h.left {
			h.start()
		}
		h.attach(false)
	}
	c.s.Say("calm")
	_ = Admin{Store: c.client}.Remove(context.Background(), "newer", true) // it may not exist
	for range 2 {                                                          // a host that reads late reports its missing networks late
		c.work(4)
		c.operateCalmly()
	}
	c.passes(int(rebuildTime / (3 * time.Second)))
	err := c.settles()
	if err != nil { // without events a host does not notice a change, until hosts renew their records
		c.passes(int(time.Hour / (3 * time.Second)))
		err = c.settles()
	}
	if err != nil {
		return err
	}
	return errors.Join(c.Laws(), c.attaches())
}

// settles lets all agents work until they agree. If they do not, it returns the difference.
func (c *cluster) settles() (err error) {
	for range 10 {
		c.work(1)
		if err = c.agreed(); err == nil {
			return nil
		}
	}
	return err
}

func (c *cluster) work(rounds int) {
	for range rounds {
		for _, h := range c.hosts {
			if h.up {
				h.catchUp()
				h.tend()
				c.contest()
				h.catchUp()
				h.apply()
			}
		}
		c.s.Pass(3 * time.Second)
		c.store.Expire()
	}
}

func (c *cluster) operateCalmly() {
	admin, ctx := Admin{Store: c.client}, context.Background()
	for _, name := range netNames() {
		if n, ok := c.wanted[name]; ok {
			_ = admin.Create(ctx, n) // it may exist
		}
	}
	for _, h := range c.hosts {
		for _, n := range h.agent.mirror.missing().Networks {
			if _, ok := c.wanted[n.Name]; !ok && h.up {
				c.removed[n.Name] = true
				err := fmt.Sprint(admin.Create(ctx, n), admin.Remove(ctx, n.Name, true))
				c.s.Say("  remembered %s is created and removed: %s", n.Name, err)
			}
		}
	}
}
