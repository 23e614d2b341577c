// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package remote

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"time"

	"github.com/patchbay-net/patchbay/daemons/cnm"
	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/life"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// DriverState records what a driver was asked for one attachment. It is written before the first
// call, so that a later request can undo everything. The program patchbay reads a part of it as
// record.Driver.
type DriverState struct {
	Owner       owner.Key `json:"-"`
	ContainerID string    `json:"-"`
	IfName      string    `json:"-"`
	NetNS       string    `json:"-"`

	mark    *life.Mark // identifies NetNS
	runtime string     // name of the process that called the ADD; "" if it is not known

	Driver cnm.DriverAddr `json:"driver"`
	Boot   string         `json:"boot,omitempty"`
	// Ended means that the attachment has ended. The driver may not know this yet.
	Ended bool `json:"ended,omitempty"`

	NetworkID  string `json:"networkId,omitempty"`
	EndpointID string `json:"endpointId,omitempty"`
	Created    bool   `json:"created,omitempty"` // CreateEndpoint was called, or is about to be
	Joined     bool   `json:"joined,omitempty"`  // Join was called, or is about to be
	Opened     bool   `json:"opened,omitempty"`  // ProgramExternalConnectivity was called, or is about to be
	Link       *Link  `json:"link,omitempty"`

	Interface *cnm.Interface `json:"interface,omitempty"` // the endpoint's interface, as far as it is known

	Addresses []Address `json:"addresses,omitempty"` // addresses from an IPAM driver
}

// Link is a link on the host that a driver made for a container.
type Link struct {
	Name  string `json:"name"`            // its name on the host
	Alias string `json:"alias,omitempty"` // its alias on the host
}

// Address is an address from a pool.
type Address struct {
	PoolID  string       `json:"poolId"`
	Address netip.Prefix `json:"address"`
	Gateway netip.Addr   `json:"gateway,omitzero"`
}

// New returns the attachment of a request, without writing its record.
func (d *Dir) New(r *plugin.Request, at cnm.DriverAddr) *DriverState {
	return &DriverState{
		Owner: r.Owner, ContainerID: r.ContainerID, IfName: r.IfName, NetNS: r.NetNS, Driver: at, Boot: d.boot,
		mark: life.MarkOf(r.NetNS, d.boot, life.CookieOf), runtime: kernel.Of(r).Runtime(),
	}
}

// Write writes the record of an attachment, and locks it until the session ends.
func (d *Dir) Write(network, pluginName string, a *DriverState) error {
	rec, err := a.record(network, pluginName)
	if err != nil {
		return err
	}
	return d.Records.Write(rec)
}

func (a *DriverState) record(network, pluginName string) (*record.Record, error) {
	data, err := json.Marshal(a)
	if err != nil {
		return nil, fmt.Errorf("encode record: %w", err)
	}
	return &record.Record{
		Plugin: pluginName, Owner: a.Owner, Network: network,
		ContainerID: a.ContainerID, IfName: a.IfName, NetNS: a.NetNS, NetNSMark: a.mark, Runtime: a.runtime, Remote: data,
	}, nil
}

// Begin writes the record for an ADD.
func (d *Dir) Begin(r *plugin.Request, pluginName string, a *DriverState) error {
	if err := r.Step("record " + pluginName); err != nil {
		return err
	}
	return d.Write(r.Network, pluginName, a)
}

// ReadLocked reads and locks the record for a DEL. If there is no record, ReadLocked returns nil. If the
// record exists but cannot be read, torn is true.
func (d *Dir) ReadLocked(r *plugin.Request, pluginName string) (a *DriverState, torn bool) {
	rec, err := d.Records.ReadLocked(r.Network, r.Owner, pluginName)
	if err == nil && rec != nil {
		a, err = fromRecord(rec)
	}
	if err != nil {
		kernel.Warn(r, err)
	}
	return a, err != nil
}

// Read works like ReadLocked, but does not lock the record. If the record cannot be read, Read returns the error.
func (d *Dir) Read(r *plugin.Request, pluginName string) (*DriverState, error) {
	rec, err := d.Records.Read(r.Network, r.Owner, pluginName)
	if err != nil || rec == nil {
		return nil, err
	}
	return fromRecord(rec)
}

func fromRecord(rec *record.Record) (*DriverState, error) {
	a := new(DriverState)
	if err := json.Unmarshal(rec.Remote, a); err != nil {
		return nil, fmt.Errorf("record of %s/%s: %w: %w", rec.ContainerID, rec.IfName, record.ErrBroken, err)
	}
	a.Owner, a.ContainerID, a.IfName, a.NetNS, a.mark, a.runtime = rec.Owner, rec.ContainerID, rec.IfName, rec.NetNS, rec.NetNSMark, rec.Runtime
	return a, nil
}

// Dead reports whether an attachment has ended, even without a DEL: its container's namespace is
// gone, or the node has booted since its ADD.
func (d *Dir) Dead(a *DriverState) bool {
	if d.ended(a) {
		return true
	}
	state, _ := d.judge.At(a.NetNS, a.mark)
	return state == life.Dead
}

// ended does the part of Dead that does not examine the namespace.
func (d *Dir) ended(a *DriverState) bool { return a.Ended || a.Boot != d.boot }

// over reports whether an ADD of the same attachment may begin anew. The runtime says that the container is new, so a
// process that still holds the earlier namespace does not matter.
func (d *Dir) over(a *DriverState) bool {
	state, _ := d.judge.AtPath(a.NetNS, a.mark)
	return d.ended(a) || state == life.Dead
}

// Fresh prepares an ADD. If a dead attachment has the same name, Fresh calls end. If a living
// attachment has the same name, Fresh returns an error.
func (d *Dir) Fresh(r *plugin.Request, pluginName string, end func(*DriverState) error) error {
	old, err := d.Read(r, pluginName)
	if err != nil {
		kernel.Warn(r, err) // counts as no record; Write replaces the file
	}
	if old == nil {
		return nil
	}
	if !d.over(old) {
		return spec.Errorf(spec.CodeInternal, "%s: container %s has interface %s already", pluginName, r.ContainerID, r.IfName)
	}
	return end(old)
}

// List reads the attachments of a network. torn has the owners of the attachments whose records
// cannot be read.
func (d *Dir) List(network, pluginName string) (list []*DriverState, torn []owner.Key, err error) {
	records, broken, err := d.Records.Scan(network)
	for _, rec := range records {
		if rec.Plugin != pluginName {
			continue
		}
		a, ferr := fromRecord(rec)
		if ferr != nil {
			torn = append(torn, rec.Owner)
			continue
		}
		list = append(list, a)
	}
	for _, t := range broken {
		if t.Plugin == pluginName {
			torn = append(torn, t.Owner)
		}
	}
	return list, torn, err
}

// Members returns the number of attachments of a network. It counts records that cannot be read too.
func (d *Dir) Members(network, pluginName string) (int, error) {
	list, torn, err := d.List(network, pluginName)
	return len(list) + len(torn), err
}

// Collect calls end for the attachments that a GC request does not list as valid, and for those
// that have ended. It leaves out attachments on which an ADD or DEL is working; this GC gives none of their
// addresses back. If the request has no list, ok is false, and Collect calls end for none.
func (d *Dir) Collect(r *plugin.Request, pluginName string, end func(*DriverState) error) (ok bool, err error) {
	keep, ok := r.Valid()
	if !ok {
		return false, nil
	}
	valid, _ := r.Head.Valid()
	living := make(map[owner.Key]bool, len(valid))
	for _, v := range valid {
		living[owner.Of(r.Network, v.ContainerID, v.IfName)] = true
	}
	list, torn, err := d.List(r.Network, pluginName)
	errs := []error{err}
	for _, o := range torn {
		list = append(list, &DriverState{Owner: o})
	}
	for _, a := range list {
		kept := living[a.Owner] || a.ContainerID != "" && keep(a.ContainerID, a.IfName)
		if !a.Ended && kept {
			continue
		}
		var now *DriverState
		if a.Ended || d.unlisted(r, a, pluginName) {
			now = d.claim(r, pluginName, a)
		}
		if now == nil {
			r.Spare(a.names())
			continue
		}
		errs = append(errs, end(now))
	}
	return true, errors.Join(errs...)
}

// unlisted reports whether an attachment that is not on a GC's list is dead.
func (d *Dir) unlisted(r *plugin.Request, a *DriverState, pluginName string) bool {
	now := record.CurrentRecord{Plugin: pluginName, Since: d.Records.Since(r.Network, a.Owner, pluginName)}
	if a.ContainerID != "" {
		now.Record = &record.Record{Network: r.Network, Owner: a.Owner, ContainerID: a.ContainerID, IfName: a.IfName, NetNS: a.NetNS, NetNSMark: a.mark, Runtime: a.runtime}
	}
	return kernel.Of(r).Dead(r, kernel.Suspect{Owner: a.Owner, Names: a.names()}, []record.CurrentRecord{now})
}

func (a *DriverState) names() spec.AttachmentKey {
	return spec.AttachmentKey{ContainerID: a.ContainerID, IfName: a.IfName}
}

// othersTime limits the time in which an ADD begins to end other attachments.
const othersTime = 5 * time.Second

// EndOthers calls end for the attachments that earlier DELs could not end, now that the driver
// answers. An earlier attachment of the same name may be among them, if the driver did not answer
// yet when Fresh ran. If the driver is slow, a later ADD or GC ends the rest.
func (d *Dir) EndOthers(r *plugin.Request, pluginName string, end func(*DriverState) error) {
	list, _, err := d.List(r.Network, pluginName)
	if err != nil {
		kernel.Warn(r, err)
	}
	start := time.Now()
	for _, a := range list {
		if !a.Ended || time.Since(start) > othersTime {
			continue
		}
		if a = d.claim(r, pluginName, a); a == nil {
			continue
		}
		if err := end(a); err != nil {
			kernel.Warn(r, err)
		}
	}
}

// claim locks another attachment's record and reads it again. If another process is working on
// the attachment, or if the record has changed, claim returns nil.
func (d *Dir) claim(r *plugin.Request, pluginName string, a *DriverState) *DriverState {
	rec, ok, err := d.Records.TryReadLocked(r.Network, a.Owner, pluginName, 0)
	if !ok {
		return nil
	}
	if a.ContainerID == "" && err != nil {
		return a // it still cannot be read
	}
	if err != nil || rec == nil {
		return nil
	}
	now, err := fromRecord(rec)
	if err != nil || now.Ended != a.Ended {
		return nil
	}
	return now
}

// Finish removes the record of an attachment after the driver has ended the attachment. If the
// driver could not be reached, unreached says why, and the record stays for later. Finish returns
// only errors of this program.
func (d *Dir) Finish(r *plugin.Request, pluginName string, a *DriverState, unreached error, forget bool) error {
	if !cnm.Unanswered(unreached) || forget {
		if unreached != nil {
			kernel.Warn(r, unreached)
		}
		return d.Records.Remove(r.Network, a.Owner, pluginName)
	}
	kernel.Warn(r, fmt.Errorf("%w; a later ADD or GC of network %s tries again", unreached, r.Network))
	if a.ContainerID == "" {
		return nil // an unreadable record stays as it is
	}
	return d.rewriteEnded(r, pluginName, a)
}

// MarkEnded writes into the record that an attachment has ended. Call it before asking the
// driver to end the attachment: from then on, the driver may give the attachment's addresses to
// another one. If the attachment has no record, MarkEnded does nothing.
func (d *Dir) MarkEnded(r *plugin.Request, pluginName string, a *DriverState) {
	if a.Ended || a.ContainerID == "" {
		return
	}
	if err := d.rewriteEnded(r, pluginName, a); err != nil { // DEL must not fail because the disk is full
		kernel.Warn(r, err)
	}
}

func (d *Dir) rewriteEnded(r *plugin.Request, pluginName string, a *DriverState) error {
	a.Ended = true
	rec, err := a.record(r.Network, pluginName)
	if err != nil {
		return err
	}
	return d.Records.Rewrite(rec)
}
