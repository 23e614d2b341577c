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

	"github.com/patchbay-net/patchbay/store"
)

// endpoints are those of this host by key: its presence, and the containers here on
// networks of the store. What hangs on one lease is called by the lease's name,
// so that those of the next can stand beside it until it is taken away, and no
// name is gone meanwhile.
func (a *Agent) endpoints(w *world, here []container) map[string]store.Endpoint {
	out := map[string]store.Endpoint{}
	add := func(e store.Endpoint) {
		e.Node, e.ID = a.self.ID, e.ID+"."+a.run
		out[e.Key()] = e
	}
	add(store.Endpoint{Network: presence, ID: "host"})
	add(store.Endpoint{Network: lasting, ID: "host"})
	for i := range here {
		if e, ok := endpointOf(w, &here[i]); ok {
			add(e)
		}
	}
	return out
}

// endpointOf is a container as an endpoint, false when it is on no network of
// the store. Addresses that are not the network's are nobody else's business.
func endpointOf(w *world, c *container) (store.Endpoint, bool) {
	i := slices.IndexFunc(w.Networks, func(n store.Network) bool { return n.Name == c.Network })
	if i < 0 {
		return store.Endpoint{}, false
	}
	e := store.Endpoint{Network: c.Network, ID: c.ID, MAC: c.MAC, Container: c.Docker, Names: c.Names}
	for _, addr := range c.Addrs {
		if slices.ContainsFunc(w.Networks[i].Subnets, func(p netip.Prefix) bool { return p.Contains(addr) }) {
			e.Addrs = append(e.Addrs, addr)
		}
	}
	return e, len(e.Addrs) > 0
}

// publish makes the store's endpoints of this host be those of its containers. A
// store that was late once is asked for nothing more: each call may take callTime.
// Without a lease nothing is put: it would stay when this host is gone.
func (a *Agent) publish(ctx context.Context, w *world) error {
	here, known := a.known()
	want, may := a.endpoints(w, here), a.mayUnpublish(known)
	var errs []error
	late := func(err error) bool {
		errs = append(errs, err)
		return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, store.ErrLeaseOver)
	}
	if (time.Since(a.checked) >= reconcileEvery || !a.checked.After(w.Doubted)) && late(a.check(ctx, w)) {
		return errors.Join(errs...)
	}
	for _, key := range slices.Sorted(maps.Keys(want)) { // presence first
		e := want[key]
		if was, ok := a.published[key]; ok && reflect.DeepEqual(was.Object, e) {
			continue
		}
		if late(a.put(ctx, key, e)) {
			break
		}
	}
	if err := errors.Join(errs...); err != nil {
		return err // nothing goes before its successor is there
	}
	for _, key := range slices.Sorted(maps.Keys(a.published)) {
		was := a.published[key].Object
		if _, ok := want[key]; !ok && may.endpoint(&was) && late(a.drop(ctx, key)) {
			return errors.Join(errs...)
		}
	}
	var others []store.Endpoint
	for _, e := range w.Endpoints {
		if _, ok := want[e.Key()]; !ok && e.Node == a.self.ID && may.endpoint(&e) {
			others = append(others, e)
		}
	}
	a.said.tell("id", a.twin(others, time.Now()))
	for _, e := range others {
		if late(a.dropOther(ctx, e)) {
			break
		}
	}
	return errors.Join(errs...)
}

// twinAfter is more than a change needs to be heard of, twinOver more than the
// other host needs to put again what this one removed: it looks each reconcileEvery.
const twinAfter, twinOver = 15 * time.Second, 3 * reconcileEvery

// twin hears of the endpoints of this host that are not wanted, such as those that
// hang on another lease. Those of the agent before this one are removed once; if
// they come again, another host has the same id, as copies of a machine do. It is
// said until they have not come for twinOver.
func (a *Agent) twin(others []store.Endpoint, now time.Time) error {
	for _, e := range others {
		run := e.ID[strings.LastIndexByte(e.ID, '.')+1:]
		if run == a.run {
			continue
		}
		if first, seen := a.others[run]; !seen {
			a.others[run] = now
		} else if now.Sub(first) >= twinAfter {
			a.twinSeen = now
		}
	}
	if now.Sub(a.twinSeen) >= twinOver {
		return nil
	}
	return fmt.Errorf("another host has the id %s of this one: stop the agent on one of them, remove %s there, and start it", a.self.ID, filepath.Join(a.dir, identityFile))
}

// check reads what the store has of this host on its lease: somebody may have
// deleted it.
func (a *Agent) check(ctx context.Context, w *world) error {
	published := map[string]store.Item[store.Endpoint]{}
	for _, network := range append([]store.Network{{Name: presence}, {Name: lasting}}, w.Networks...) {
		ctx, cancel := context.WithTimeout(ctx, callTime)
		prefix := network.Name + "/" + a.self.ID + "/"
		items, _, err := a.opts.Store.Endpoints().List(ctx, prefix)
		if cancel(); errors.Is(err, store.ErrUnreadable) { // what is on this lease is put or dropped, whatever it says
			for key := range a.published {
				if strings.HasPrefix(key, prefix) {
					published[key] = store.Item[store.Endpoint]{}
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

// put creates or changes one endpoint.
func (a *Agent) put(ctx context.Context, key string, e store.Endpoint) error {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	table := a.opts.Store.Endpoints()
	at := a.published[key].Revision
	var err error
	if at != "" {
		at, err = table.Update(ctx, e, at)
	}
	if at == "" || errors.Is(err, store.ErrConflict) {
		at, err = table.Create(ctx, e, a.leaseOf(&e))
	}
	if errors.Is(err, store.ErrLeaseOver) { // it may be long until it is found so by itself
		a.endLease()
		a.lease = nil
	}
	if errors.Is(err, store.ErrExists) { // the answer to an earlier call was lost
		was, err := table.Get(ctx, key)
		if errors.Is(err, store.ErrUnreadable) { // only this host writes there
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
	a.published[key] = store.Item[store.Endpoint]{Object: e, Revision: at}
	return nil
}

func (a *Agent) leaseOf(e *store.Endpoint) store.Lease {
	if e.Network == lasting {
		return a.long
	}
	return a.lease
}

// drop removes what hangs on this lease. What is not as it was put is another
// one's by now, and looked at with those.
func (a *Agent) drop(ctx context.Context, key string) error {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	err := a.opts.Store.Endpoints().Delete(ctx, key, a.published[key].Revision)
	if err != nil && !errors.Is(err, store.ErrConflict) {
		return err
	}
	delete(a.published, key)
	return nil
}

// dropOther removes an endpoint that hangs on another lease, as it was heard. One
// that has changed since will be heard again, and one that cannot be read goes
// with its lease.
func (a *Agent) dropOther(ctx context.Context, e store.Endpoint) error {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	err := deleteAsRead(ctx, a.opts.Store.Endpoints(), e)
	if errors.Is(err, store.ErrConflict) || errors.Is(err, store.ErrUnreadable) {
		return nil
	}
	return err
}
