// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"context"
	"errors"
	"slices"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/internal/life"
	"github.com/patchbay-net/patchbay/internal/owner"
)

// Judged are the attachments of one network, living ones included.
type Judged struct {
	Attachments []*Attachment
	Nameless    []*Attachment // without a known network, and not dead: mostly links

	world *world
}

// Judge examines the whole node and judges the attachments of one network as Run does, for
// a GC of that network. It removes nothing. The error has everything that could not be
// read; the list covers all the rest.
func Judge(ctx context.Context, o Options, network string) (*Judged, error) {
	c := &collector{Options: o, seen: loadSeen(o.Paths.Run)}
	report, err := c.look(ctx)
	j := &Judged{world: c.world}
	for _, a := range append(report.alive, report.Attachments...) {
		switch {
		case a.Network == "" && a.State != Dead:
			j.Nameless = append(j.Nameless, a)
		case a.Network == network && a.pendingDriver == "": // else its driver must detach it
			j.Attachments = append(j.Attachments, a)
		}
	}
	return j, errors.Join(err, c.seen.save(o.Paths.Run))
}

// Links names the attachment's links on the host.
func (a *Attachment) Links() (names []string) {
	for _, l := range a.links {
		names = append(names, l.name)
	}
	return names
}

// Lives judges a dead attachment again, by what its cached result says now.
func (j *Judged) Lives(c *chain.Cached) bool {
	a := &Attachment{Network: c.Network, ContainerID: c.ContainerID, IfName: c.IfName, Owner: owner.Of(c.Network, c.ContainerID, c.IfName)}
	if i := slices.IndexFunc(j.Attachments, func(x *Attachment) bool { return x.Owner == a.Owner }); i >= 0 {
		a = j.Attachments[i]
	}
	a.at(c.NetNS, nil)
	a.seen(c.Since)
	state, _ := j.world.life(a)
	return state != life.Dead && !j.world.earlier(a)
}
