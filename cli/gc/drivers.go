// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/patchbay-net/patchbay/internal/order"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/invoke"
	"github.com/patchbay-net/patchbay/spec"
)

// Attachments of Docker's drivers belong to patchbay-cnm: it keeps the records, in a
// directory of its own that outlives a reboot, and only it speaks the drivers' protocol.
// So gc judges by those records and calls its plugins, as a runtime would.

// readDrivers reads the records of patchbay-cnm, torn ones included.
func (ev *evidence) readDrivers() {
	store := record.OfDrivers(ev.paths.State)
	records, torn, err := store.Scan("")
	ev.fail(err)
	age := func(a *Attachment, plugin string) {
		a.seen(ev.mtime(filepath.Join(store.Dir, "attachments", a.Network, string(a.Owner)+"."+plugin)))
	}
	for _, r := range records {
		d, err := r.DriverOf()
		if err != nil || d == nil {
			torn = append(torn, record.Torn{Network: r.Network, Owner: r.Owner, Plugin: r.Plugin, Err: err})
			continue
		}
		a := ev.get(r.Network, r.ContainerID, r.IfName)
		a.attached(d, r)
		age(a, r.Plugin)
	}
	for _, t := range torn {
		a := ev.tornOwner(t)
		a.drivers = append(a.drivers, t.Plugin)
		a.addObject("torn record", t.Plugin, false)
		age(a, t.Plugin)
	}
}

// attached adds the evidence in a record of patchbay-cnm.
func (a *Attachment) attached(d *record.Driver, r *record.Record) {
	a.drivers = append(a.drivers, r.Plugin)
	a.at(r.NetNS, r.NetNSMark)
	a.addObject("record", fmt.Sprintf("%s (driver %s)", r.Plugin, d), false)
	for _, p := range d.Prefixes() {
		a.addr(p.Addr())
	}
	if d.Ended {
		a.pendingDriver = d.String()
	}
}

// seizeDrivers seizes the records of patchbay-cnm and hands their locks to its plugins;
// the claim still keeps ADDs out.
func (r *remover) seizeDrivers() (release func(), keep string, err error) {
	if len(r.a.drivers) == 0 {
		return func() {}, "", nil
	}
	store := record.OfDrivers(r.Paths.State)
	drop, keep, err := store.Seize(r.a.Network, r.a.Owner, r.recheck)
	if err != nil || keep != "" {
		return nil, keep, err
	}
	for _, p := range r.a.drivers {
		store.Unlock(r.a.Network, r.a.Owner, p)
	}
	return func() { drop(); store.Close() }, "", nil
}

// delDrivers calls the plugins of patchbay-cnm, the one of the interface first. An
// unreachable driver does not fail DEL, so a remaining record shows that it has not been
// called; the driver's objects on the host then stay until it is back.
func (r *remover) delDrivers(ctx context.Context) (why string, err error) {
	order.By(r.a.drivers, func(x, y string) int { return len(x) - len(y) }) // cnm, cnm-ipam
	for _, name := range r.a.drivers {
		conf, err := json.Marshal(map[string]any{"cniVersion": spec.Current, "name": r.a.Network, "type": name, "ipam": map[string]string{}})
		if err != nil {
			return "", err
		}
		call := &spec.Call{Verb: spec.Del, ContainerID: r.a.ContainerID, IfName: r.a.IfName, Config: conf, Path: r.Runtime.Path}
		_, err = r.Invoke(ctx, name, call)
		switch {
		case errors.Is(err, invoke.ErrNotFound):
			return fmt.Sprintf("only patchbay-cnm can call its driver: %v; patchbay-cnm install DIR", err), nil
		case err != nil:
			return "", fmt.Errorf("plugin %s: %w", name, err)
		}
		rec, err := record.OfDrivers(r.Paths.State).Read(r.a.Network, r.a.Owner, name)
		if rec != nil || err != nil {
			return fmt.Sprintf("the driver that plugin %s uses is unreachable; a later gc, ADD or GC calls it", name), nil
		}
	}
	return "", nil
}
