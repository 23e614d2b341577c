// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/patchbay-net/patchbay/daemons/hosts/store"
)

// endpoints returns, by key, the endpoints of this host itself and the endpoints of its containers
// that are on networks of the store. The ids of the endpoints on a session end in that session's
// name. So the endpoints of the next session can be created before the old ones are removed. Every
// name exists all the time.
func (a *Agent) endpoints(w *world, here []container) map[string]store.Entry {
	out := map[string]store.Entry{}
	add := func(e store.Entry) {
		e.Node, e.ID = a.self, e.ID+"."+a.run
		out[e.Key()] = e
	}
	add(store.Entry{Network: presence, ID: "host"})
	add(store.Entry{Network: lasting, ID: "host"})
	for i := range here {
		if e, ok := endpointOf(w, &here[i]); ok {
			add(e)
		}
	}
	return out
}

// endpointOf converts a container to an endpoint. It returns false if the container is on no
// network of the store. It leaves out addresses outside the network, because they do not
// concern other hosts.
func endpointOf(w *world, c *container) (store.Entry, bool) {
	i := slices.IndexFunc(w.Networks, func(n store.Network) bool { return n.Name == c.Network })
	if i < 0 {
		return store.Entry{}, false
	}
	e := store.Entry{Network: c.Network, ID: c.ID, MAC: c.MAC, Container: c.Docker, Names: c.Names}
	for _, addr := range c.Addrs {
		if slices.ContainsFunc(w.Networks[i].Subnets, func(p netip.Prefix) bool { return p.Contains(addr) }) {
			e.Addrs = append(e.Addrs, addr)
		}
	}
	return e, len(e.Addrs) > 0
}

// publish makes this host's endpoints in the store equal to the endpoints of its containers. If a
// call runs out of time, publish makes no further calls, because each may take callTime. Without a
// session publish creates nothing, because an object without a session would stay after this host
// is gone.
func (a *Agent) publish(ctx context.Context, w *world) error {
	here, complete := a.localContainers()
	want, may := a.endpoints(w, here), a.mayUnpublish(complete)
	var errs []error
	failed := map[string]bool{} // endpoints that could not be put
	late := func(err error) bool {
		errs = append(errs, err)
		return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, store.ErrSessionOver)
	}
	if (time.Since(a.checked) >= reconcileEvery || !a.checked.After(w.Doubted)) && late(a.check(ctx, w)) {
		return errors.Join(errs...)
	}
	for _, key := range slices.Sorted(maps.Keys(want)) { // the endpoint of presence sorts first
		e := want[key]
		if was, ok := a.published[key]; ok && reflect.DeepEqual(was.Object, e) {
			continue
		}
		switch err := a.put(ctx, key, e); {
		case late(err):
			return errors.Join(errs...)
		case err != nil:
			failed[containerKey(&e)] = true
		}
	}
	for _, key := range slices.Sorted(maps.Keys(a.published)) {
		was := a.published[key].Object
		if _, ok := want[key]; !ok && may.endpoint(&was) && late(a.drop(ctx, key)) {
			return errors.Join(errs...)
		}
	}
	var others []store.Entry
	for _, e := range w.Endpoints {
		if _, ok := want[e.Key()]; !ok && e.Node == a.self && may.endpoint(&e) && !failed[containerKey(&e)] { // the successor must exist
			others = append(others, e)
		}
	}
	a.problems.Set("id", a.duplicateID(others, time.Now()))
	for _, e := range others {
		if late(a.dropOther(ctx, e)) {
			break
		}
	}
	return errors.Join(errs...)
}

// containerKey returns the part of an endpoint's key that is the same on all sessions of its host.
func containerKey(e *store.Entry) string {
	id, _, _ := strings.Cut(e.ID, ".")
	return e.Network + "/" + id
}

// duplicateAfter is longer than an event takes to arrive. Another host with this id creates its
// endpoints again after this host has removed them; duplicateExpiry is longer than that takes.
// (An agent checks its endpoints every reconcileEvery.)
const duplicateAfter, duplicateExpiry = 15 * time.Second, 3 * reconcileEvery

// duplicateID looks for another host with this host's id, as copies of a machine have. others are
// the endpoints of this host that this agent does not want. Endpoints of this host's former agent
// are removed and do not come back. If endpoints of the same other session come back, another
// host creates them. duplicateID reports this until none have come for duplicateExpiry.
func (a *Agent) duplicateID(others []store.Entry, now time.Time) error {
	for _, e := range others {
		run := e.ID[strings.LastIndexByte(e.ID, '.')+1:]
		if run == a.run {
			continue
		}
		if first, seen := a.others[run]; !seen {
			a.others[run] = now
		} else if now.Sub(first) >= duplicateAfter {
			a.duplicateSeen = now
		}
	}
	if now.Sub(a.duplicateSeen) >= duplicateExpiry {
		return nil
	}
	return fmt.Errorf("another host has the id %s of this one: stop the agent on one of them, remove %s there, and start it", a.self, filepath.Join(a.dir, identityFile))
}

// check reads which endpoints the store has on this host's session, because another program may
// have deleted some.
func (a *Agent) check(ctx context.Context, w *world) error {
	if err := a.verify(ctx); err != nil {
		return err
	}
	published := map[string]store.Item[store.Entry]{}
	for _, network := range append([]store.Network{{Name: presence}, {Name: lasting}}, w.Networks...) {
		ctx, cancel := context.WithTimeout(ctx, callTime)
		prefix := network.Name + "/" + a.self + "/"
		items, _, err := a.opts.Store.Entries().List(ctx, prefix)
		if cancel(); errors.Is(err, store.ErrUnreadable) { // put or drop handles the endpoints of this session, also unreadable ones
			for key := range a.published {
				if strings.HasPrefix(key, prefix) {
					published[key] = store.Item[store.Entry]{}
				}
			}
		} else if err != nil {
			return err
		}
		for _, i := range items {
			if strings.HasSuffix(i.Object.ID, "."+a.run) {
				published[i.Object.Key()] = i
			}
		}
	}
	a.published, a.checked = published, time.Now()
	return nil
}

// put creates or updates one endpoint.
func (a *Agent) put(ctx context.Context, key string, e store.Entry) error {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	table := a.opts.Store.Entries()
	at := a.published[key].Revision
	var err error
	if at != "" {
		at, err = table.Update(ctx, e, at)
	}
	if at == "" || errors.Is(err, store.ErrConflict) {
		at, err = table.Create(ctx, e, a.sessionOf(&e))
	}
	if errors.Is(err, store.ErrSessionOver) { // the session itself may notice much later that it is over
		a.endSession()
		a.session = nil
	}
	if errors.Is(err, store.ErrExists) { // an earlier call created it, but its answer was lost
		was, err := table.Get(ctx, key)
		if errors.Is(err, store.ErrUnreadable) { // only this host writes this key
			err = table.Delete(ctx, key, "")
			delete(a.published, key)
			return errors.Join(fmt.Errorf("%s could not be read, and is put again", key), err)
		}
		if err != nil {
			return err
		}
		if at, err = table.Update(ctx, e, was.Revision); err != nil {
			return err
		}
	} else if err != nil {
		return err
	}
	a.published[key] = store.Item[store.Entry]{Object: e, Revision: at}
	return nil
}

func (a *Agent) sessionOf(e *store.Entry) store.Session {
	if e.Network == lasting {
		return a.long
	}
	return a.session
}

// drop removes an endpoint on this session. If the endpoint has changed since put wrote it,
// another agent owns it, and dropOther removes it.
func (a *Agent) drop(ctx context.Context, key string) error {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	err := a.opts.Store.Entries().Delete(ctx, key, a.published[key].Revision)
	if err != nil && !errors.Is(err, store.ErrConflict) {
		return err
	}
	delete(a.published, key)
	return nil
}

// dropOther removes an endpoint on another session, in the version that the watch delivered. If
// the endpoint has changed since, the event for that change leads to another try. If the endpoint
// cannot be read, it disappears with its session.
func (a *Agent) dropOther(ctx context.Context, e store.Entry) error {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	err := deleteAsRead(ctx, a.opts.Store.Entries(), e)
	if errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrUnreadable) {
		return nil
	}
	return err
}
