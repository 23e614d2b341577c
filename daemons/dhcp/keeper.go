// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package dhcp is the keeper of DHCP leases. The keeper requests an address for an attachment,
// renews its lease while the interface exists, and releases it. The leases are in files. After a
// kill, the next keeper continues to renew them. Each address has a goroutine. No thread stays in a
// container's namespace.
package dhcp

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/patchbay-net/patchbay/daemons/dhcp/client"
	"github.com/patchbay-net/patchbay/internal/clock"
	"github.com/patchbay-net/patchbay/internal/dhcprpc"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/spec"
)

// Options configures a keeper.
type Options struct {
	RunDir        string
	Proc          string        // the mount point of procfs
	HostPrefix    string        // is put before the paths of namespaces
	Broadcast     bool          // ask DHCPv4 servers to broadcast their answers
	Timeout       time.Duration // how long to wait for the answer to one request
	ResendMax     time.Duration // the longest wait between two requests
	ResendTimeout time.Duration // how long an ADD tries
	Watch         time.Duration // how often an interface is checked
	ReleaseTime   time.Duration // how long a DEL waits until the release is sent
	Clock         Clock         // nil means the machine's clock
	Log           func(format string, args ...any)
}

// Keeper keeps leases.
type Keeper struct {
	opts  Options
	files *files

	ctx  context.Context // the context of all upkeep
	stop context.CancelFunc

	mu      sync.Mutex
	entries map[owner.Key]*entry

	adopting sync.WaitGroup
}

// errUnknown means that an attachment has no lease.
var errUnknown = errors.New("no lease is held")

// New returns a keeper that continues with the leases on disk.
func New(opts Options) (*Keeper, error) {
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
		k.resume(r)
	}
	return k, nil
}

// resume continues to renew a lease that the last keeper stored.
func (k *Keeper) resume(r *leaseFile) {
	r.Place.Proc = k.opts.Proc
	e := k.newEntry(r)
	if err := e.restore(); err != nil {
		k.opts.Log("%s: take up lease: %v", e, err)
		return
	}
	k.entries[r.Owner] = e
	k.opts.Log("%s: lease taken up, %s", e, e.describe())
	e.upkeep()
	close(e.ready)
}

// Serve keeps leases for the plugins that call it on l, until l is closed. Then Serve ends the
// calls that are running, and releases what they were granted. The other leases stay for the next
// keeper.
func (k *Keeper) Serve(l net.Listener) error {
	defer k.Close()
	return serve(l, k, k.opts.Log)
}

// Close stops the upkeep. It releases no lease, because the next keeper continues to renew them.
func (k *Keeper) Close() {
	k.stop()
	k.adopting.Wait()
	k.mu.Lock()
	entries := slices.Collect(maps.Values(k.entries))
	k.mu.Unlock()
	for _, e := range entries {
		e.work.Wait()
	}
}

// Attachments returns how many attachments have leases or are requesting them.
func (k *Keeper) Attachments() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.entries)
}

// Allocate returns the lease of an attachment. If there is none, it requests one. If ctx ends
// before a server has answered, no lease is kept.
func (k *Keeper) Allocate(ctx context.Context, a *dhcprpc.Args) (*spec.Result, error) {
	r, err := k.request(a)
	if err != nil {
		return nil, err
	}
	p, err := k.place(a.Netns, a.IfName)
	if err != nil {
		return nil, err
	}
	r.Place = *p
	for {
		e, mine := k.claim(r)
		if mine {
			return k.acquire(ctx, e)
		}
		select {
		case <-e.ready:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if e.err != nil {
			continue
		}
		if e.isAt(p) {
			return e.result()
		}
		if err := e.forget(ctx); err != nil { // another interface has the name now, so the lease's interface is gone
			return nil, err
		}
	}
}

// place finds an interface. netNS is the namespace's path as the plugin sees it.
func (k *Keeper) place(netNS, ifName string) (*client.Place, error) {
	return client.Find(k.opts.Proc, k.opts.HostPrefix+netNS, ifName)
}

// request returns a lease file with what a call asks for. The file has no address and no place yet.
func (k *Keeper) request(a *dhcprpc.Args) (*leaseFile, error) {
	conf, err := dhcprpc.Parse(a.StdinData)
	if err != nil {
		return nil, err
	}
	opts, err := conf.Options(a.Args)
	if err != nil {
		return nil, err
	}
	network, err := dhcprpc.Network(a.StdinData)
	if err != nil {
		return nil, err
	}
	for _, err := range []error{spec.ValidateContainerID(a.ContainerID), spec.ValidateIfName(a.IfName), spec.ValidateNetworkName(network)} {
		if err != nil {
			return nil, err
		}
	}
	r := &leaseFile{
		Owner: owner.Of(network, a.ContainerID, a.IfName), Network: network, ContainerID: a.ContainerID, IfName: a.IfName,
		Begun: time.Now().Round(0), Options: *opts, Priority: conf.Priority,
	}
	if conf.V4() {
		r.V4 = new(storedAddress)
	}
	if conf.DHCPv6 {
		r.V6 = new(storedAddress)
	}
	return r, nil
}

// claim returns the entry of r's attachment. If claim made the entry, mine is true.
func (k *Keeper) claim(r *leaseFile) (e *entry, mine bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if e := k.entries[r.Owner]; e != nil {
		return e, false
	}
	e = k.newEntry(r)
	k.entries[r.Owner] = e
	return e, true
}

// acquire requests the leases of a new entry. If acquire fails, other calls that wait for the
// entry get the same error.
func (k *Keeper) acquire(ctx context.Context, e *entry) (*spec.Result, error) {
	defer close(e.ready)
	k.opts.Log("%s: acquiring lease", e)
	err := e.acquire(ctx)
	if err == nil {
		err = k.files.write(e.rec)
	}
	if err != nil {
		e.release(context.WithoutCancel(ctx))
		k.drop(e)
		e.err = err
		return nil, err
	}
	k.opts.Log("%s: lease acquired, %s", e, e.describe())
	result, err := e.result()
	e.upkeep()
	return result, err
}

// drop removes an entry, unless another entry has replaced it.
func (k *Keeper) drop(e *entry) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.entries[e.rec.Owner] == e {
		delete(k.entries, e.rec.Owner)
	}
}

// find returns the entry of the attachment that a call names, or nil. It reads only the names,
// because other parts of the configuration may be invalid by now.
func (k *Keeper) find(a *dhcprpc.Args) (owner.Key, *entry, error) {
	network, err := dhcprpc.Network(a.StdinData)
	if err != nil {
		return "", nil, err
	}
	o := owner.Of(network, a.ContainerID, a.IfName)
	return o, k.entry(o), nil
}

func (k *Keeper) entry(o owner.Key) *entry {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.entries[o]
}

// Release releases an attachment's leases, even while an ADD still requests them. An attachment
// without leases is no error.
func (k *Keeper) Release(ctx context.Context, a *dhcprpc.Args) error {
	o, e, err := k.find(a)
	switch {
	case err != nil:
		return err
	case e == nil:
		return k.files.remove(o)
	}
	return e.forget(ctx)
}

// Check returns the lease of an attachment, without asking a server.
func (k *Keeper) Check(_ context.Context, a *dhcprpc.Args) (*spec.Result, error) {
	_, e, err := k.find(a)
	switch {
	case err != nil:
		return nil, err
	case e == nil:
		return nil, errUnknown
	case !e.settled():
		return nil, fmt.Errorf("%w yet: it is being requested", errUnknown)
	}
	at := e.place()
	if err := at.Check(); err != nil {
		return nil, err
	}
	return e.result()
}

// Collect releases the leases of a network that are not on the list in a GC's configuration.
// Without a list it releases nothing. It keeps a lease that was made after the list, and the
// lease of an ADD that still waits, because the list cannot name these.
func (k *Keeper) Collect(ctx context.Context, a *dhcprpc.Args) error {
	head, err := spec.ParseConf(a.StdinData)
	if err != nil {
		return err
	}
	list, ok := head.Valid()
	if !ok {
		return nil
	}
	listed, ok := clock.Listed(a.StdinData)
	if !ok {
		listed = time.Now() // this runtime runs no ADD during a GC
	}
	k.mu.Lock()
	var stale []*entry
	for _, e := range k.entries {
		known := slices.Contains(list, spec.AttachmentKey{ContainerID: e.rec.ContainerID, IfName: e.rec.IfName})
		if e.rec.Network == head.Name && !known && e.settled() && !e.rec.Begun.After(listed) {
			stale = append(stale, e)
		}
	}
	k.mu.Unlock()
	var errs []error
	for _, e := range stale {
		errs = append(errs, e.forget(ctx))
	}
	return errors.Join(errs...)
}
