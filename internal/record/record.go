// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package record stores in /run/patchbay which objects an attachment has and where they are. A
// plugin writes its record before it changes anything. DEL, GC, `ps` and `repair` read the
// record. A record never contains standard input or annotations. A record is a hint; the truth is
// in the kernel. If a record is lost or broken, a DEL finds the objects by names derived from the
// owner.
package record

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"path/filepath"

	"github.com/patchbay-net/patchbay/internal/claim"
	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/life"
	"github.com/patchbay-net/patchbay/internal/lightjson"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/owner"
)

// Record lists what one plugin made for one attachment. One type serves all plugins, because
// their keys share one JSON object, and repair, doctor and gc read them without the plugin
// (docs/adr/0056). The fields of the last group are each for the plugins named there.
type Record struct {
	Schema      int       `json:"schema"`
	Plugin      string    `json:"plugin"`
	Owner       owner.Key `json:"owner"`
	Network     string    `json:"network"`
	ContainerID string    `json:"containerID"`
	IfName      string    `json:"ifname"`
	NetNS       string    `json:"netns,omitempty"`
	Pod         string    `json:"pod,omitempty"` // Kubernetes pod: "namespace/name"

	// NetNSMark distinguishes the namespace from a later one at the same path.
	NetNSMark *life.Mark `json:"netnsMark,omitempty"`

	Runtime string       `json:"runtime,omitempty"` // name of the process that called the ADD; "" if it is not known
	Caller  *life.Caller `json:"caller,omitempty"`  // of a pod's ADD, if it is containerd

	Links    []string      `json:"links,omitempty"`    // links in the host's namespace
	Elements []nft.Element `json:"elements,omitempty"` // elements of this attachment only
	Shared   []string      `json:"shared,omitempty"`   // facts that the attachment holds

	// Displaced lists attachments whose elements this attachment replaced, because the keys were
	// the same. This happens for a port of the same container, or if another network assigned the
	// same address. When this attachment ends, its DEL restores the elements of the last
	// attachment in the list.
	Displaced []owner.Key `json:"displaced,omitempty"`

	// Noted means that Displaced is complete. Noted is false in records that were reconstructed after a loss.
	Noted bool `json:"noted,omitempty"`

	Bridge  string  `json:"bridge,omitempty"`  // bridge, firewall
	DataDir string  `json:"dataDir,omitempty"` // host-local, tuning
	Socket  string  `json:"socket,omitempty"`  // dhcp: socket of the keeper that has the lease
	Device  *Device `json:"device,omitempty"`  // host-device: device of the host that is now in the container

	// firewall: the firewalld zone to which Sources, single addresses, were added, and the zones
	// of earlier ADDs of the same attachment.
	Zone       string         `json:"zone,omitempty"`
	Sources    []netip.Prefix `json:"sources,omitempty"`
	OtherZones []ZoneSources  `json:"otherZones,omitempty"`

	// firewall: single addresses that are accepted if an iptables-nft FORWARD chain drops
	// packets. With Open, new connections to them are accepted too. The rules of the operator's
	// AdminChain come first.
	Accepts    []netip.Prefix `json:"accepts,omitempty"`
	Open       bool           `json:"open,omitempty"`
	AdminChain string         `json:"adminChain,omitempty"`

	Rules []Rule `json:"rules,omitempty"` // sbr, in the container's namespace
	VRF   *VRF   `json:"vrf,omitempty"`   // vrf, in the container's namespace

	Policed *Policed `json:"policed,omitempty"` // policy
	Sends   *Policed `json:"sends,omitempty"`   // policy, for a container that no policy can select: only its addresses and where its packets enter count

	Remote json.RawMessage `json:"remote,omitempty"` // patchbay-cnm: what it requested from an external driver, in the format of daemons/cnm/remote
}

// VRF is the virtual router that the interface belongs to.
type VRF struct {
	Name string `json:"name"`
	Made bool   `json:"made,omitempty"` // the ADD made the VRF
}

// Rule sends packets from an address of the container to a routing table.
type Rule struct {
	Src   netip.Addr `json:"src"`
	Table int        `json:"table"`
	Own   bool       `json:"own,omitempty"` // no other attachment uses the table
}

// Head returns the part of r that other programs read, or nil if r is nil.
func (r *Record) Head() *claim.Head {
	if r == nil {
		return nil
	}
	return &claim.Head{
		Schema: r.Schema, Plugin: r.Plugin, Owner: r.Owner, Network: r.Network, ContainerID: r.ContainerID, IfName: r.IfName,
		NetNS: r.NetNS, NetNSMark: r.NetNSMark, Pod: r.Pod, Runtime: r.Runtime, Caller: r.Caller,
	}
}

// Dir is a directory of records. What processes that work on one attachment need to wait for each other is in
// the embedded claim.Dir.
type Dir struct{ claim.Dir }

// New returns the store in a run directory.
func New(runDir string) *Dir { return &Dir{claim.Dir{Path: runDir}} }

// Ready returns an error if no record of the network can be written.
func (d *Dir) Ready(network string) error {
	if err := d.Guard(claim.Attachments, network); err != nil {
		return err
	}
	return durable.WritableDir(filepath.Join(d.Path, claim.Attachments, network))
}

// Write stores r and replaces an earlier record of the same plugin and owner. The record stays
// locked until the Dir is closed or the record is removed. network, owner and plugin are
// validated names, so the path cannot leave the directory.
func (d *Dir) Write(r *Record) error {
	for {
		if err := d.Rewrite(r); err != nil || !d.Yield(r.Network, r.Owner) {
			return err
		}
	}
}

// ErrChanged means that another process wrote the record. WriteOver returns it, wrapped.
var ErrChanged = errors.New("another process wrote the record")

// WriteOver works like Write for a caller that has copied the earlier record into r, or found no
// earlier record. If the file has changed since then, WriteOver writes nothing and returns
// ErrChanged.
func (d *Dir) WriteOver(r *Record) error {
	path := d.File(r.Network, r.Owner, r.Plugin)
	was, known := d.SeenVersion(path)
	create := known && was == (claim.Version{})
	if !create {
		d.LockFile(path, claim.Patience)
		if known && was != claim.VersionAt(path) {
			return fmt.Errorf("write record: %s: %w", path, ErrChanged)
		}
	}
	err := d.write(r, create)
	if errors.Is(err, fs.ErrExist) {
		err = fmt.Errorf("write record: %s: %w", path, ErrChanged)
	}
	if err == nil && d.Yield(r.Network, r.Owner) {
		return d.Write(r)
	}
	return err
}

// Rewrite works like Write for a DEL that keeps what it could not finish. Rewrite does not
// wait for a gc, because the gc may have called the DEL.
func (d *Dir) Rewrite(r *Record) error { return d.write(r, false) }

// write replaces a record. If create is set, it makes a new record and fails if one exists.
func (d *Dir) write(r *Record, create bool) error {
	r.Schema = claim.Schema
	data, err := lightjson.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode record: %w", err)
	}
	if len(data) > claim.MaxFile {
		return fmt.Errorf("write record: %d bytes, of %d at most", len(data), claim.MaxFile)
	}
	if err := d.Guard(claim.Attachments, r.Network); err != nil {
		return fmt.Errorf("write record: %w", err)
	}
	path := d.File(r.Network, r.Owner, r.Plugin)
	place := durable.CreateLocked
	if !create {
		place = durable.WriteLocked
		d.LockFile(path, claim.Patience) // another process may work with an earlier record
	}
	if err := d.Place(place, path, data); err != nil {
		return fmt.Errorf("write record: %w", err)
	}
	return nil
}

// Read returns the record of a plugin. If there is none, Read returns nil. If the record cannot
// be used, because it is cut short or has a newer schema, the error wraps ErrBroken. The caller
// should report such an error and find the objects by names.
func (d *Dir) Read(network string, o owner.Key, plugin string) (*Record, error) {
	if err := d.Guard(claim.Attachments, network); err != nil {
		return nil, fmt.Errorf("read record: %w: %w", ErrBroken, err)
	}
	return d.readVersioned(d.File(network, o, plugin))
}

// readVersioned reads a record and stores the file's version.
func (d *Dir) readVersioned(path string) (*Record, error) {
	v, err := claim.StatVersion(path) // read the version first: a record that is written before the content is read has another version
	d.SetSeenVersion(path, v)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	return read(path)
}

// Find returns the record of a plugin for an owner whose network is not known. Find returns
// nil if there is none.
func (d *Dir) Find(o owner.Key, plugin string) (*Record, error) {
	if !o.Valid() {
		return nil, nil
	}
	paths, err := filepath.Glob(d.File("*", o, plugin))
	if err != nil || len(paths) == 0 {
		return nil, err
	}
	return d.Read(filepath.Base(filepath.Dir(paths[0])), o, plugin)
}

// ErrBroken means that a record exists but cannot be used.
var ErrBroken = errors.New("broken record")

func read(path string) (*Record, error) {
	data, err := durable.ReadUpTo(path, claim.MaxFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	r := new(Record)
	if err == nil {
		err = lightjson.Unmarshal(data, r)
	}
	if err != nil {
		return nil, fmt.Errorf("read record %s: %w: %w", path, ErrBroken, err)
	}
	if err := r.Head().Check(path); err != nil {
		return nil, fmt.Errorf("read record %s: %w: %w", path, ErrBroken, err)
	}
	return r, nil
}

// readFound reads a record whose directory was found by a glob pattern.
func (d *Dir) readFound(path string) (*Record, error) {
	if err := d.Guard(claim.Attachments, filepath.Base(filepath.Dir(path))); err != nil {
		return nil, fmt.Errorf("read record %s: %w: %w", path, ErrBroken, err)
	}
	return read(path)
}

// Remove deletes the record of a plugin. With the last record it deletes the network's directory.
// Remove deletes only the file that this Dir last read, wrote or locked. So a late DEL leaves the
// record of a newer ADD alone, even if the DEL found no record itself. Remove accepts that the
// record is missing.
func (d *Dir) Remove(network string, o owner.Key, plugin string) error {
	if err := d.Guard(claim.Attachments, network); err != nil {
		return fmt.Errorf("remove record: %w", err)
	}
	path := d.File(network, o, plugin)
	defer d.UnlockFile(path)
	was, known := d.SeenVersion(path)
	if known && was == (claim.Version{}) { // an ADD may write a record at any time
		d.RemoveNetwork(network)
		return nil
	}
	if known && was != claim.VersionAt(path) {
		return nil
	}
	if err := durable.Remove(path); err != nil {
		return fmt.Errorf("remove record: %w", err)
	}
	d.SetSeenVersion(path, claim.Version{})
	d.RemoveNetwork(network)
	return nil
}

// ZoneSources are addresses in a firewalld zone.
type ZoneSources struct {
	Zone    string         `json:"zone"`
	Sources []netip.Prefix `json:"sources"`
}

// Zones returns all firewalld zones in the record.
func (r *Record) Zones() (zones []ZoneSources) {
	if len(r.Sources) > 0 {
		zones = append(zones, ZoneSources{r.Zone, r.Sources})
	}
	return append(zones, r.OtherZones...)
}

// Policed is a pod, or another container, to whose addresses network policies apply. Every ADD of
// plugin policy writes it, also if no policy selects the pod: the agent learns the addresses of new
// pods from it.
type Policed struct {
	Namespace string            `json:"namespace"`
	Name      string            `json:"name,omitempty"`
	UID       string            `json:"uid,omitempty"`   // as the runtime passed it; a static pod has another one in the API
	Labels    map[string]string `json:"labels,omitzero"` // from the configuration; nil for a pod, whose labels the API has
	Link      string            `json:"link,omitempty"`  // of this attachment alone, on the host, at no bridge
	Port      string            `json:"port,omitempty"`  // of a bridge, of this attachment alone
	Addrs     []netip.Addr      `json:"addrs,omitempty"`
	Checked   bool              `json:"checked,omitempty"` // the ADD had the sources of its packets checked

	Early bool `json:"early,omitempty"` // no policies were known at the ADD, so it closed the pod

	// Former are addresses of earlier ADDs of this attachment. They may still be closed, so DEL opens
	// them. No policy applies to them.
	Former []netip.Addr `json:"former,omitempty"`
}
