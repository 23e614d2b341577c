// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"cmp"
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/life"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/spaces"
)

// newWorld returns the facts about this node. For some facts gc must look into every namespace or
// process. It looks once at most, when it first needs the fact.
func (c *collector) newWorld() *world {
	proc := c.Paths.Proc
	w := &world{now: time.Now(), boot: c.boot.Since, grace: c.Grace, carries: c.carries, seesAll: life.SeesProcesses}
	j := spaces.Judge(c.Paths)
	w.namespace, w.forgotten = j.At, j.Forgotten
	if c.Live != nil {
		w.listed = func(id string) bool { return c.Live[id] }
	}
	w.driver = func(id string) bool { return c.driver[id] }
	w.firstSeen = func(a *Candidate) time.Time { return c.seen.since(a.Owner, w.now) }
	links := sync.OnceValues(func() (map[string]string, error) { return spaces.Links(proc) })
	w.marked = func(o owner.Key) (string, error) {
		where, err := links()
		if at, ok := where[o.Alias()]; ok {
			return at, err
		}
		return where[o.LinkName("veth", 0)], err
	}
	all := sync.OnceValues(func() (map[netip.Addr]string, error) { return spaces.Addresses(proc) })
	w.inUse = func(addrs []netip.Addr) (string, error) {
		where, err := all()
		for _, a := range addrs {
			if at, ok := where[a]; ok {
				return at, nil
			}
		}
		return "", err
	}
	return w
}

// carries returns a link of the attachment that is the host's end of a veth in use.
func (c *collector) carries(a *Candidate) (link string, err error) { return c.pairOf(a, false) }

// pairOf does the work of carries. If ending is true, it also returns a veth whose namespace no
// process and no mount holds any more.
func (c *collector) pairOf(a *Candidate, ending bool) (link string, err error) {
	if len(a.links) == 0 {
		return "", nil
	}
	s := c.NewSession()
	defer s.Close()
	host, err := kernel.OfSession(s).Host()
	if err != nil {
		return "", err
	}
	for _, l := range a.links {
		now, err := host.LinkAt(l.index)
		if nl.IsNotFound(err) {
			continue
		}
		if err != nil {
			return "", err
		}
		if now.Attrs().Name == l.name && (ending && netstate.Carries(now) || kernel.PairLives(host, now)) {
			return l.name, nil
		}
	}
	return "", nil
}

// settle waits for the kernel to delete veths that are the only sign of a living namespace. If
// such a veth then still has a carrier, its namespace exists, but this process cannot see it.
func (c *collector) settle(ctx context.Context, all []*Candidate) {
	end := time.Now().Add(cmp.Or(c.SettleTime, kernel.SettleTime))
	for _, a := range all {
		if len(a.links) == 0 {
			continue
		}
		if v := c.world.evidence(a).Namespace(); v.State != life.Dead && v.Why != "" || v.Forgotten != "" {
			continue
		}
		kernel.AwaitEnd(ctx, end, func() bool {
			link, err := c.pairOf(a, true)
			return link != "" || err != nil
		})
	}
}
