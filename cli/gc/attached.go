// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"cmp"
	"errors"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/internal/life"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/owner"
)

// Attached is what files say about one attachment, dead or alive. `ps`, doctor and gc begin
// with it.
type Attached struct {
	chain.Cached // if no runtime has cached a result, only the names and the namespace
	InCache      bool
	Records      []*record.Record
	Drivers      []DriverRecord
}

// DriverRecord is a record of patchbay-cnm, with what the plugin requested from a driver.
type DriverRecord struct {
	*record.Record
	Asked *record.Driver
}

// Files is what the files of a node say about its attachments.
type Files struct {
	Attached          []*Attached   // in any order
	Torn, TornDrivers []record.Torn // records that cannot be used
	Err               error         // what else cannot be read
}

// ReadFiles joins the results that runtimes have cached, our records, and those of patchbay-cnm
// unless drivers is nil.
func ReadFiles(rt *chain.Runtime, records, drivers *record.Dir) (f Files) {
	all := make(map[owner.Key]*Attached)
	get := func(c chain.Cached) *Attached {
		key := owner.Of(c.Network, c.ContainerID, c.IfName)
		if all[key] == nil {
			all[key] = &Attached{Cached: c}
			f.Attached = append(f.Attached, all[key])
		}
		all[key].NetNS = cmp.Or(all[key].NetNS, c.NetNS)
		return all[key]
	}
	of := func(r *record.Record) *Attached {
		return get(chain.Cached{Network: r.Network, Attachment: chain.Attachment{ContainerID: r.ContainerID, IfName: r.IfName, NetNS: r.NetNS}})
	}
	cached, err := rt.Attachments("")
	for _, c := range cached {
		get(c).InCache = true
	}
	list, torn, rerr := records.Scan("")
	for _, r := range list {
		a := of(r)
		a.Records = append(a.Records, r)
	}
	f.Torn, f.Err = torn, errors.Join(err, rerr)
	if drivers == nil {
		return f
	}
	list, f.TornDrivers, err = drivers.Scan("")
	for _, r := range list {
		d, err := r.DriverOf()
		if d == nil {
			f.TornDrivers = append(f.TornDrivers, record.Torn{Network: r.Network, Owner: r.Owner, Plugin: r.Plugin, Err: err})
			continue
		}
		a := of(r)
		a.Drivers = append(a.Drivers, DriverRecord{r, d})
	}
	f.Err = errors.Join(f.Err, err)
	return f
}

// Errors returns all that cannot be read or used.
func (f *Files) Errors() error {
	err := f.Err
	for _, t := range append(f.Torn, f.TornDrivers...) {
		err = errors.Join(err, t.Err)
	}
	return err
}

// Pod returns the Kubernetes pod of the attachment, from the cached result or a record.
func (a *Attached) Pod() string {
	pod := a.Cached.Pod()
	for _, r := range a.Records {
		pod = cmp.Or(pod, r.Pod)
	}
	return pod
}

// Mark returns what distinguishes the attachment's namespace from a later one at its path, or
// nil if no record has it.
func (a *Attached) Mark() (mark *life.Mark) {
	for _, r := range a.Records {
		if r.NetNS == a.NetNS && r.NetNSMark != nil {
			mark = r.NetNSMark
		}
	}
	return mark
}
