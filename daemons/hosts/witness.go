// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"context"
	"errors"
	"fmt"

	"github.com/patchbay-net/patchbay/daemons/hosts/store"
)

// witness holds the revisions of the networks, nodes and blocks that this host has seen, by table and
// key. A store that was restored from a backup may have a higher revision than before. But an
// object in it that was changed after the backup has its earlier revision again, which no change
// can give it (docs/adr/0077). Each host changes its node at least every hour, and after each
// block that it claims. Endpoints are left out: they are many, and their hosts write them again.
type witness map[string]store.Revision

// witnessKey returns the key of an object, or "" for an object that is not in a witness.
func witnessKey(o store.Object) string {
	switch o.(type) {
	case store.Network:
		return "networks/" + o.Key()
	case store.Node:
		return "nodes/" + o.Key()
	case store.Block:
		return "blocks/" + o.Key()
	}
	return ""
}

// see notes the revision of an object.
func (w *witness) see(o store.Object, at store.Revision) {
	key := witnessKey(o)
	if key == "" {
		return
	}
	if *w == nil {
		*w = witness{}
	}
	(*w)[key] = at
}

// drop forgets an object that was deleted.
func (w witness) drop(o store.Object) { delete(w, witnessKey(o)) }

// errWentBack means that the store has an older state than before.
var errWentBack = errors.New("the store went back to an earlier state, as if a backup was restored")

// wentBack returns an error if a reading has an object with an earlier revision than this host knows.
// A revision after the reading's own shows nothing: the object was changed while the tables were read.
func (w witness) wentBack(r *reading) error {
	for key, was := range w {
		if now, there := r.seen[key]; there && now.Before(was) && !r.at[0].Before(was) {
			return fmt.Errorf("%w: %s was changed at revision %s, and has %s", errWentBack, key, was, now)
		}
	}
	return nil
}

// readSound reads the whole store. If the store went back, it gives the history another name, and
// reads it again. So this host and all others notice it, even if they read later.
func (m *mirror) readSound(ctx context.Context, s store.Store) (*reading, error) {
	r, err := m.read(ctx, s)
	if r == nil {
		return nil, err
	}
	m.mu.Lock()
	back := m.cache.Seen.wentBack(r)
	if m.suspect {
		back = errWentBack
	}
	if m.suspect = false; !r.at[last].Follows(m.cache.Heard) {
		back = nil // another host has noticed it, or the revision shows it
	}
	m.mu.Unlock()
	if back == nil {
		return r, err
	}
	if err := s.Fork(ctx, r.at[last]); err != nil {
		return nil, errors.Join(back, err)
	}
	return m.read(ctx, s)
}

// verify reads this host's record. If it is an earlier one than this host wrote, verify makes the
// mirror read the store again: a watch does not notice that the store went back if the store keeps
// its history and has a higher revision.
func (a *Agent) verify(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	now, err := a.opts.Store.Nodes().Get(ctx, a.self)
	if errors.Is(err, store.ErrNotFound) || errors.Is(err, store.ErrUnreadable) {
		return nil // putNode writes it again
	}
	if err == nil && a.older(now.Revision) {
		err = a.rewound(now.Revision)
	}
	return err
}

// older reports whether this host's record is an earlier one than this host wrote. After the mirror has
// noticed another history, the record's revision shows nothing.
func (a *Agent) older(at store.Revision) bool {
	return at.Before(a.writtenAt) && a.mirror.history() == a.writtenIn
}

// history returns the name of the history that the mirror follows.
func (m *mirror) history() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	_, name, _ := m.cache.Heard.Split()
	return name
}

// rewound makes the mirror read the store again, after this host's record was found at an earlier
// revision than this host wrote. Then this host writes the record again.
func (a *Agent) rewound(to store.Revision) error {
	a.written, a.writtenAt = store.Node{}, to
	a.mirror.readAgain()
	return errWentBack
}
