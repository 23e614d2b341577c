// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package dhcp

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/patchbay-net/patchbay/daemons/dhcp/client"
	"github.com/patchbay-net/patchbay/internal/dhcprpc"
	"github.com/patchbay-net/patchbay/spec"
)

// entry is one attachment and its leases.
type entry struct {
	k   *Keeper
	rec *leaseFile // the names in it never change

	ready chan struct{} // closed when the entry has its leases, or err is set
	err   error

	ctx   context.Context // cancelled when the entry ends
	stop  context.CancelFunc
	work  sync.WaitGroup // the goroutines of upkeep
	pause context.CancelFunc

	turn sync.Mutex // held while the entry is moved or released

	mu      sync.Mutex // protects rec, removed, and the grant of each address
	addrs   []*address
	removed bool // the entry was released or its interface no longer exists, and its file is removed
}

// address is an address that one protocol has granted to an entry.
type address struct {
	*storedAddress
	name  string // for the log
	proto client.Protocol
	grant *client.Lease // nil if no address is granted now
}

func (k *Keeper) newEntry(r *leaseFile) *entry {
	e := &entry{k: k, rec: r, ready: make(chan struct{})}
	e.ctx, e.stop = context.WithCancel(k.ctx)
	if r.V4 != nil {
		v4 := &client.V4{ID: e.String(), Options: r.Options, Priority: r.Priority, Broadcast: k.opts.Broadcast}
		e.addrs = append(e.addrs, &address{storedAddress: r.V4, name: "DHCPv4", proto: v4})
	}
	if r.V6 != nil {
		e.addrs = append(e.addrs, &address{storedAddress: r.V6, name: "DHCPv6", proto: &client.V6{ID: e.String()}})
	}
	return e
}

// String returns the attachment's name in the same form as its client id.
func (e *entry) String() string {
	return client.ID(e.rec.ContainerID, e.rec.Network, e.rec.IfName)
}

// settled reports whether the entry's ADD has ended.
func (e *entry) settled() bool {
	select {
	case <-e.ready:
		return true
	default:
		return false
	}
}

// place returns where the interface is.
func (e *entry) place() client.Place {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.rec.Place
}

func (e *entry) isAt(p *client.Place) bool {
	at := e.place()
	return at.Same(p)
}

// restore parses the stored messages into grants.
func (e *entry) restore() error {
	for _, a := range e.addrs {
		if len(a.Raw) == 0 {
			continue
		}
		var err error
		if a.grant, err = a.proto.Parse(a.Raw); err != nil {
			return err
		}
	}
	return nil
}

// acquire requests the addresses of both families at the same time. If one of them is not
// granted, acquire fails.
func (e *entry) acquire(ctx context.Context) error {
	ctx, cancel := e.k.within(ctx, e.k.opts.ResendTimeout, errNoMoreTries)
	defer cancel()
	defer context.AfterFunc(e.ctx, cancel)() // a DEL may end the entry meanwhile
	both, ctx := errgroup.WithContext(ctx)
	for _, a := range e.addrs {
		both.Go(func() error { return e.ask(ctx, a) })
	}
	return both.Wait()
}

// accept stores a new grant.
func (e *entry) accept(a *address, g *client.Lease) {
	e.mu.Lock()
	defer e.mu.Unlock()
	a.grant = g
	a.Raw, a.Since = g.Raw, e.k.opts.Clock.Since()
}

// age returns how long ago the address was granted.
func (e *entry) age(a *address) time.Duration { return e.k.opts.Clock.Since() - a.Since }

// result returns the leases in the form of an ADD's result.
func (e *entry) result() (*spec.Result, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := &spec.Result{}
	for _, a := range e.addrs {
		g := a.grant
		if g == nil {
			return nil, fmt.Errorf("the %s lease was lost; the keeper is searching for a server", a.name)
		}
		out.IPs = append(out.IPs, spec.IPConfig{Address: g.Address, Gateway: g.Gateway})
		out.Routes = append(out.Routes, g.Routes...)
		out.DNS.Nameservers = append(out.DNS.Nameservers, g.DNS.Nameservers...)
		for _, d := range g.DNS.Search {
			if isDomain(d) {
				out.DNS.Search = append(out.DNS.Search, d)
			}
		}
		if out.DNS.Domain == "" && isDomain(g.DNS.Domain) {
			out.DNS.Domain = g.DNS.Domain
		}
	}
	return out, nil
}

// isDomain reports whether a domain from a server consists of valid labels (RFC 1035). A label
// may also contain the "_" of Active Directory. Runtimes write the domain to resolv.conf, where a
// server could add a line by a newline in the domain.
func isDomain(s string) bool {
	s = strings.TrimSuffix(s, ".")
	if len(s) > 253 {
		return false
	}
	for label := range strings.SplitSeq(s, ".") {
		if label == "" || len(label) > 63 || strings.ContainsFunc(label, foreign) {
			return false
		}
	}
	return true
}

// foreign reports whether a character is not allowed in a label.
func foreign(r rune) bool {
	return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && r != '-' && r != '_'
}

// describe returns the addresses and their times, for the log.
func (e *entry) describe() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	var out []string
	for _, a := range e.addrs {
		if a.grant == nil {
			out = append(out, a.name+" lost")
			continue
		}
		remaining := max(0, a.grant.Valid-e.age(a))
		out = append(out, fmt.Sprintf("%s %s for %v", a.name, a.grant.Address, remaining.Round(time.Second)))
	}
	return strings.Join(out, ", ")
}

// save writes the current record.
func (e *entry) save() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.removed {
		return
	}
	if err := e.k.files.write(e.rec); err != nil {
		e.k.opts.Log("%s: %v", e, err)
	}
}

// release gives the addresses back to the servers. It skips a server that cannot be reached.
func (e *entry) release(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, e.k.opts.ReleaseTime)
	defer cancel()
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, a := range e.addrs {
		if a.grant == nil {
			continue
		}
		e.k.opts.Log("%s: releasing %s lease", e, a.name)
		if err := a.proto.Release(ctx, &e.rec.Place, a.grant); err != nil {
			e.k.opts.Log("%s: failed to release %s lease: %v", e, a.name, err)
		}
		a.grant = nil
	}
}

// forget stops an entry's upkeep, releases its addresses and removes its file.
func (e *entry) forget(ctx context.Context) error {
	e.stop() // also ends the ADD of the entry
	e.turn.Lock()
	defer e.turn.Unlock()
	<-e.ready
	e.work.Wait()
	e.release(context.WithoutCancel(ctx))
	return e.remove()
}

// remove ends the entry. Only the first call does something. After it removed the entry's file,
// nothing writes the file again.
func (e *entry) remove() error {
	e.stop()
	e.mu.Lock()
	again := e.removed
	e.removed = true
	e.mu.Unlock()
	if again {
		return nil
	}
	defer e.k.drop(e)
	return e.k.files.remove(e.rec.Owner)
}

// vanish drops the lease of an interface that was removed. Without the interface it cannot reach the
// server, where the lease expires.
func (e *entry) vanish(why error) {
	e.k.opts.Log("%s: %v: lease dropped", e, why)
	if err := e.remove(); err != nil {
		e.k.opts.Log("%s: %v", e, err)
	}
}

// awayTime is how long an interface may be missing while a program moves it.
const awayTime = 5 * time.Minute

// Move follows an interface that a program moves to another namespace or renames. a.Netns is the
// new namespace, and a.Path the new name. If a.Netns is empty, the interface is about to move.
// For the next five minutes the keeper then renews nothing, and a missing interface does not
// count as removed. The attachment keeps the name a.IfName.
func (k *Keeper) Move(ctx context.Context, a *dhcprpc.Args) error {
	_, e, err := k.find(a)
	if err != nil {
		return err
	}
	if e == nil {
		return errUnknown
	}
	select {
	case <-e.ready:
	case <-ctx.Done():
		return ctx.Err()
	}
	if e.err != nil {
		return errUnknown
	}
	if a.Netns == "" {
		return e.move(nil)
	}
	at, err := k.place(a.Netns, a.Path)
	if err != nil {
		return err
	}
	return e.move(at)
}

// move continues the upkeep at another place. If to is nil, move pauses the upkeep.
func (e *entry) move(to *client.Place) error {
	e.turn.Lock()
	defer e.turn.Unlock()
	if to != nil && e.rec.Away == 0 && e.isAt(to) {
		return nil
	}
	e.pause()
	e.work.Wait()
	e.mu.Lock()
	if e.removed {
		e.mu.Unlock()
		return fmt.Errorf("%w: it is being released", errUnknown)
	}
	if to == nil {
		e.rec.Away = e.k.opts.Clock.Since() + awayTime
	} else {
		e.rec.Away, e.rec.Place = 0, *to
	}
	e.mu.Unlock()
	e.save()
	e.upkeep()
	return nil
}

// wait ends the entry if its interface does not arrive in time.
func (e *entry) wait(ctx context.Context) {
	for ctx.Err() == nil {
		remaining := e.rec.Away - e.k.opts.Clock.Since()
		if remaining <= 0 {
			e.vanish(errors.New("the interface was moved, and did not arrive"))
			return
		}
		e.k.opts.Clock.Sleep(ctx, min(remaining, e.k.opts.Watch)) // sleeps in short steps, because timers stop while the machine is suspended
	}
}
