// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"sync"
	"time"

	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/life"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/spaces"
)

// newWorld returns the facts about this node. For some facts gc must look into every namespace or
// process. It looks once at most, when it first needs the fact.
func (c *collector) newWorld() *world {
	proc := c.Paths.Proc
	w := &world{now: time.Now(), boot: c.boot.Since, grace: c.Grace, carries: c.carries, seesAll: life.SeesProcesses}
	w.settling.Time, w.inUse = c.SettleTime, spaces.NewFinder(proc)
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
	return w
}

// carries returns a link of the attachment that is the host's end of a veth in use.
func (c *collector) carries(a *Candidate, ending bool) (link string, err error) {
	if len(a.links) == 0 {
		return "", nil
	}
	s := c.NewSession()
	defer s.Close()
	return kernel.OfSession(s).LivingPair(a.Owner, a.Links(), ending)
}
