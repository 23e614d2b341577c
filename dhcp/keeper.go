// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package dhcp is the keeper of DHCP leases: it gets an address for an attachment, renews
// it for as long as the interface exists, and releases it. Its leases are on disk (package
// store), so that the next keeper continues after a kill. Each address has a goroutine, and
// no thread stays in a container's namespace.
package dhcp

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/patchbay-net/patchbay/dhcp/client"
	"github.com/patchbay-net/patchbay/internal/clock"
	"github.com/patchbay-net/patchbay/internal/dhcprpc"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/spec"
)

// Options of a keeper. The zero value of a time is the reference's default.
type Options struct {
	RunDir        string
	Proc          string        // the mount point of procfs
	HostPrefix    string        // put before the paths of namespaces
	Broadcast     bool          // ask DHCPv4 servers to broadcast their answers
	Timeout       time.Duration // of one request: 10s
	ResendMax     time.Duration // the longest wait between two requests: 62s
	ResendTimeout time.Duration // how long an ADD tries: 208s
	Watch         time.Duration // how often an interface is checked: 30s
	ReleaseTime   time.Duration // how long a DEL waits: 2s
	Clock         Clock         // the machine's
	Log           func(format string, args ...any)
}

// Keeper keeps leases.
type Keeper struct {
	opts  Options
	files *files

	ctx  context.Context // of the upkeep
	stop context.CancelFunc

	mu      sync.Mutex
	entries map[owner.Key]*entry

	adopting sync.WaitGroup
}

// errUnknown is the answer for an attachment without a lease.
var errUnknown = errors.New("no lease is held")

// New returns a keeper that continues with the leases on disk.
func New(opts Options) (*Keeper, error) {
	setDefault(&opts.Timeout, 10*time.Second)
	setDefault(&opts.ResendMax, 62*time.Second)
	setDefault(&opts.ResendTimeout, 208*time.Second)
	setDefault(&opts.Watch, 30*time.Second)
	setDefault(&opts.ReleaseTime, 2*time.Second)
	if opts.Clock == nil {
		opts.Clock = machine{}
	}
	st, err := openFiles(opts.RunDir, opts.Proc)
	if err != nil {
		return nil, err
	}
	k := &Keeper{opts: opts, files: st, entries: map[owner.Key]*entry{}}
	k.ctx, k.stop = context.WithCancel(context.Background())
	records, err := st.list()
	if err != nil {
		opts.Log("%v", err)
	}
	for _, r := range records {
		k.adopt(r)
	}
	return k, nil
}

func setDefault(d *time.Duration, def time.Duration) {
	if *d <= 0 {
		*d = def
	}
}

// Close ends the upkeep and releases nothing: the next keeper continues.
func (k *Keeper) Close() {
	k.stop()
	k.adopting.Wait()
	k.mu.Lock()
	entries := make([]*entry, 0, len(k.entries))
	for _, e := range k.entries {
		entries = append(entries, e)
	}
	k.mu.Unlock()
	for _, e := range entries {
		e.end()
	}
}

// Held is how many attachments have leases or are requesting them.
func (k *Keeper) Held() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.entries)
}

// adopt continues with a lease of the last keeper.
func (k *Keeper) adopt(r *record) {
	r.Place.Proc = k.opts.Proc
	e := k.newEntry(r)
	if err := e.restore(); err != nil {
		k.opts.Log("%s: take up lease: %v", e, err)
		return
	}
	close(e.ready)
	k.entries[r.Owner] = e
	k.opts.Log("%s: lease taken up, %s", e, e.describe())
	e.upkeep()
}

// Allocate returns the lease of an attachment, and requests one if there is none. When ctx
// ends before a server has answered, nothing is kept.
func (k *Keeper) Allocate(ctx context.Context, a *dhcprpc.Args) (*spec.Result, error) {
	r, conf, err := k.record(a)
	if err != nil {
		return nil, err
	}
	p, err := client.Find(k.opts.HostPrefix+a.NetNS, a.IfName)
	if err != nil {
		return nil, err
	}
	p.Proc = k.opts.Proc
	r.Place = *p
	for {
		e, mine := k.claim(r)
		if mine {
			return k.acquire(ctx, e, conf)
		}
		select {
		case <-e.ready:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if e.failed() {
			continue
		}
		if e.rec.Place.Same(p) {
			return e.result()
		}
		if err := k.forget(ctx, e); err != nil { // another interface of the same name: the old one is gone
			return nil, err
		}
	}
}

// record reads the attachment of a call.
func (k *Keeper) record(a *dhcprpc.Args) (*record, *dhcprpc.IPAM, error) {
	conf, err := dhcprpc.Parse(a.Config)
	if err != nil {
		return nil, nil, err
	}
	opts, err := conf.Options(a.Args)
	if err != nil {
		return nil, nil, err
	}
	network, err := dhcprpc.Network(a.Config)
	if err != nil {
		return nil, nil, err
	}
	for _, err := range []error{spec.ValidateContainerID(a.ContainerID), spec.ValidateIfName(a.IfName), spec.ValidateNetworkName(network)} {
		if err != nil {
			return nil, nil, err
		}
	}
	return &record{
		Owner: owner.Of(network, a.ContainerID, a.IfName), Network: network, ContainerID: a.ContainerID, IfName: a.IfName,
		Begun: time.Now().Round(0), Options: *opts, Priority: conf.Priority,
	}, conf, nil
}

// claim returns the entry of r's attachment; mine means that it is new.
func (k *Keeper) claim(r *record) (e *entry, mine bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if e := k.entries[r.Owner]; e != nil {
		return e, false
	}
	e = k.newEntry(r)
	k.entries[r.Owner] = e
	return e, true
}

// acquire fills a new entry. Calls that wait for the entry get its error too.
func (k *Keeper) acquire(ctx context.Context, e *entry, conf *dhcprpc.IPAM) (*spec.Result, error) {
	k.opts.Log("%s: acquiring lease", e)
	err := e.acquire(ctx, conf)
	if err == nil {
		err = k.files.write(e.rec)
	}
	if err != nil {
		e.release(context.WithoutCancel(ctx))
		k.drop(e)
		e.err = err
		close(e.ready)
		return nil, err
	}
	k.opts.Log("%s: lease acquired, %s", e, e.describe())
	result, err := e.result()
	close(e.ready)
	e.upkeep()
	return result, err
}

// drop removes an entry, unless another has replaced it.
func (k *Keeper) drop(e *entry) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.entries[e.rec.Owner] == e {
		delete(k.entries, e.rec.Owner)
	}
}

// Release releases an attachment's leases, also while they are being requested. An
// attachment without any is no error.
func (k *Keeper) Release(ctx context.Context, a *dhcprpc.Args) error {
	network, err := dhcprpc.Network(a.Config)
	if err != nil {
		return err
	}
	o := owner.Of(network, a.ContainerID, a.IfName)
	k.mu.Lock()
	e := k.entries[o]
	k.mu.Unlock()
	if e == nil {
		return k.files.remove(o)
	}
	return k.forget(ctx, e)
}

// forget ends an entry's upkeep, releases it at the servers and removes the file.
func (k *Keeper) forget(ctx context.Context, e *entry) error {
	e = k.leave(e)
	e.end()
	<-e.ready
	e.release(context.WithoutCancel(ctx))
	err := k.files.remove(e.rec.Owner)
	k.drop(e)
	return err
}

// Check returns the lease that is held, without asking a server.
func (k *Keeper) Check(_ context.Context, a *dhcprpc.Args) (*spec.Result, error) {
	network, err := dhcprpc.Network(a.Config)
	if err != nil {
		return nil, err
	}
	k.mu.Lock()
	e := k.entries[owner.Of(network, a.ContainerID, a.IfName)]
	k.mu.Unlock()
	if e == nil {
		return nil, errUnknown
	}
	if !e.settled() {
		return nil, fmt.Errorf("%w yet: it is being requested", errUnknown)
	}
	if err := e.rec.Place.Look(); err != nil {
		return nil, err
	}
	return e.result()
}

// Collect releases the leases of a network that a GC configuration does not list. A
// configuration without a list releases nothing. A lease that is newer than the list cannot
// be on it, nor can that of an ADD that still waits for it.
func (k *Keeper) Collect(ctx context.Context, a *dhcprpc.Args) error {
	head, err := spec.ParseConf(a.Config)
	if err != nil {
		return err
	}
	list, ok := head.Valid()
	if !ok {
		return nil
	}
	listed, ok := clock.Listed(a.Config)
	if !ok {
		listed = time.Now() // the runtime keeps ADDs out meanwhile
	}
	valid := map[spec.Attachment]bool{}
	for _, at := range list {
		valid[at] = true
	}
	k.mu.Lock()
	var stale []*entry
	for _, e := range k.entries {
		known := valid[spec.Attachment{ContainerID: e.rec.ContainerID, IfName: e.rec.IfName}]
		if e.rec.Network == head.Name && !known && e.settled() && !e.rec.Begun.After(listed) {
			stale = append(stale, e)
		}
	}
	k.mu.Unlock()
	var errs []error
	for _, e := range stale {
		errs = append(errs, k.forget(ctx, e))
	}
	return errors.Join(errs...)
}
