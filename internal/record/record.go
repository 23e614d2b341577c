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

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/life"
	"github.com/patchbay-net/patchbay/internal/lightjson"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/owner"
	"github.com/patchbay-net/patchbay/spec"
)

// Schema is the version of the record format. This program does not read a newer version.
const Schema = 1

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
	Sends   *Policed `json:"sends,omitempty"`   // policy, for a container that no policy can select: only its addresses and from where it sends count

	Remote json.RawMessage `json:"remote,omitempty"` // patchbay-cnm: what it requested from an external driver, in the format of cnm/remote
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

// Life reports whether the namespace of the attachment still exists.
func (r *Record) Life(proc string) (state life.State, why string) {
	return life.At(r.NetNS, r.NetNSMark, proc)
}

// OfOther reports whether another runtime than the named one may have made the attachment.
func (r *Record) OfOther(runtime string) bool { return r.Runtime == "" || r.Runtime != runtime }

// Dir is a directory of records.
type Dir struct {
	Path string

	// CheckOnce means that each directory is checked only once, because the process ends soon. If Path
	// exists and only this process's user can write to it, no other user can make or replace what is below it.
	CheckOnce bool

	locks locks
}

// New returns the store in a run directory.
func New(runDir string) *Dir { return &Dir{Path: runDir} }

const attachments = "attachments"

func (d *Dir) path(network string, o owner.Key, plugin string) string {
	return filepath.Join(d.Path, attachments, network, string(o)+"."+plugin)
}

// guard returns an error if another user could have made the directories or can write to them.
func (d *Dir) guard(below ...string) error {
	if !d.CheckOnce {
		return durable.CheckDir(d.Path, below...)
	}
	base := d.checked("")
	if !base {
		if err := durable.CheckDir(d.Path); err != nil {
			return err
		}
		if base = versionAt(d.Path) != (version{}); base {
			d.check("")
		}
	}
	for i := range below {
		if err := d.guardOne(base, filepath.Join(below[:i]...), below[i]); err != nil {
			return err
		}
	}
	return nil
}

// guardOne checks one directory, unless it was checked before. If base is set, d.Path exists.
func (d *Dir) guardOne(base bool, parent, name string) error {
	path := filepath.Join(parent, name)
	if d.checked(path) {
		return nil
	}
	err := durable.CheckBelow(filepath.Join(d.Path, parent), name)
	if err == nil && base {
		d.check(path)
	}
	return err
}

// Ready returns an error if no record of the network can be written.
func (d *Dir) Ready(network string) error {
	if err := d.guard(attachments, network); err != nil {
		return err
	}
	return durable.WritableDir(filepath.Join(d.Path, attachments, network))
}

// Write stores r and replaces an earlier record of the same plugin and owner. The record stays
// locked until the Dir is closed or the record is removed. network, owner and plugin are
// validated names, so the path cannot leave the directory.
func (d *Dir) Write(r *Record) error {
	for {
		if err := d.Rewrite(r); err != nil || !d.yield(r.Network, r.Owner) {
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
	path := d.path(r.Network, r.Owner, r.Plugin)
	was, known := d.known(path)
	create := known && was == (version{})
	if !create {
		d.lock(path, patience)
		if known && was != versionAt(path) {
			return fmt.Errorf("write record: %s: %w", path, ErrChanged)
		}
	}
	err := d.write(r, create)
	if errors.Is(err, fs.ErrExist) {
		err = fmt.Errorf("write record: %s: %w", path, ErrChanged)
	}
	if err == nil && d.yield(r.Network, r.Owner) {
		return d.Write(r)
	}
	return err
}

// Rewrite works like Write for a DEL that keeps what it could not finish. Rewrite does not
// wait for a gc, because the gc may have called the DEL.
func (d *Dir) Rewrite(r *Record) error { return d.write(r, false) }

// write replaces a record. If create is set, it makes a new record and fails if one exists.
func (d *Dir) write(r *Record, create bool) error {
	r.Schema = Schema
	data, err := lightjson.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode record: %w", err)
	}
	if len(data) > maxFile {
		return fmt.Errorf("write record: %d bytes, of %d at most", len(data), maxFile)
	}
	if err := d.guard(attachments, r.Network); err != nil {
		return fmt.Errorf("write record: %w", err)
	}
	path := d.path(r.Network, r.Owner, r.Plugin)
	place := durable.CreateLocked
	if !create {
		place = durable.WriteLocked
		d.lock(path, patience) // another process may work with an earlier record
	}
	if err := d.placeBy(place, path, data); err != nil {
		return fmt.Errorf("write record: %w", err)
	}
	return nil
}

// placeBy writes a file with place and keeps the file locked.
func (d *Dir) placeBy(place func(string, []byte) (int, error), path string, data []byte) (err error) {
	for range 10 { // another process may remove the directory with the network's last record
		var fd int
		fd, err = place(path, data)
		if err == nil {
			d.keep(path, fd)
		}
		// ext4 answers EPERM if the directory goes between the lookup and the new file.
		if !errors.Is(err, fs.ErrNotExist) && !errors.Is(err, unix.EPERM) {
			return err
		}
		if err := durable.Mkdir(filepath.Dir(path)); err != nil {
			return fmt.Errorf("make directory of records: %w", err)
		}
	}
	return err
}

// Read returns the record of a plugin. If there is none, Read returns nil. If the record cannot
// be used, because it is cut short or has a newer schema, the error wraps ErrBroken. The caller
// should report such an error and find the objects by names.
func (d *Dir) Read(network string, o owner.Key, plugin string) (*Record, error) {
	if err := d.guard(attachments, network); err != nil {
		return nil, fmt.Errorf("read record: %w: %w", ErrBroken, err)
	}
	return d.readKnown(d.path(network, o, plugin))
}

// Exists reports whether a plugin has a record, readable or not.
func (d *Dir) Exists(network string, o owner.Key, plugin string) bool {
	return versionAt(d.path(network, o, plugin)) != version{}
}

// readKnown reads a record and stores the file's version.
func (d *Dir) readKnown(path string) (*Record, error) {
	v, err := lookAt(path) // first the version, then the content: a record that is written in between has another version
	d.know(path, v)
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
	paths, err := filepath.Glob(d.path("*", o, plugin))
	if err != nil || len(paths) == 0 {
		return nil, err
	}
	return d.Read(filepath.Base(filepath.Dir(paths[0])), o, plugin)
}

// ErrBroken means that a record exists but cannot be used.
var ErrBroken = errors.New("broken record")

// maxFile is the size of the largest record, in bytes. A published port needs about 700 bytes,
// and telephony software publishes ten thousand ports.
const maxFile = 128 << 20

func read(path string) (*Record, error) {
	data, err := durable.ReadUpTo(path, maxFile)
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
	if r.Schema > Schema || !r.Owner.Valid() {
		return nil, fmt.Errorf("read record %s: %w: schema %d, this program reads up to %d", path, ErrBroken, r.Schema, Schema)
	}
	if !r.belongs(path) {
		return nil, fmt.Errorf("read record %s: %w: it is another attachment's", path, ErrBroken)
	}
	return r, nil
}

// belongs reports whether the names in r match its path. These names lead to other paths, so they
// must be the names that were validated when the record was written.
func (r *Record) belongs(path string) bool {
	dir, file := filepath.Split(path)
	return r.Owner == owner.Of(r.Network, r.ContainerID, r.IfName) &&
		file == string(r.Owner)+"."+r.Plugin && filepath.Base(dir) == r.Network &&
		spec.ValidateContainerID(r.ContainerID) == nil && spec.ValidateIfName(r.IfName) == nil
}

// readFound reads a record whose directory was found by a glob pattern.
func (d *Dir) readFound(path string) (*Record, error) {
	if err := d.guard(attachments, filepath.Base(filepath.Dir(path))); err != nil {
		return nil, fmt.Errorf("read record %s: %w: %w", path, ErrBroken, err)
	}
	return read(path)
}

// Remove deletes the record of a plugin. With the last record it deletes the network's directory.
// Remove deletes only the file that this Dir last read, wrote or locked. So a late DEL leaves the
// record of a newer ADD alone, even if the DEL found no record itself. Remove accepts that the
// record is missing.
func (d *Dir) Remove(network string, o owner.Key, plugin string) error {
	if err := d.guard(attachments, network); err != nil {
		return fmt.Errorf("remove record: %w", err)
	}
	path := d.path(network, o, plugin)
	defer d.unlock(path)
	was, known := d.known(path)
	if known && was == (version{}) { // an ADD may write a record at any time
		d.removeNetwork(network)
		return nil
	}
	if known && was != versionAt(path) {
		return nil
	}
	if err := durable.Remove(path); err != nil {
		return fmt.Errorf("remove record: %w", err)
	}
	d.know(path, version{})
	d.removeNetwork(network)
	return nil
}

// removeEmpty removes a directory if it is empty. rmdir itself checks this, so no file of
// another process can be lost.
func removeEmpty(dir string) { _ = unix.Rmdir(dir) }

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
