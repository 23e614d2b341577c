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

	"github.com/patchbay-net/patchbay/dhcp/client"
	"github.com/patchbay-net/patchbay/internal/dhcprpc"
	"github.com/patchbay-net/patchbay/spec"
)

// entry is one attachment.
type entry struct {
	k   *Keeper
	rec *record // its Place, Away and names never change

	ready chan struct{} // closed when it has leases, or err
	err   error

	ctx  context.Context // ends with the entry
	stop context.CancelFunc
	work sync.WaitGroup

	mu    sync.Mutex // guards rec.V4, rec.V6, the addresses' grant, and gone
	addrs []*address
	gone  bool // the interface is gone, and the file too

	next    *entry // the entry that replaces this one at another place; guarded by Keeper.mu
	leaving bool   // it is being released; guarded by Keeper.mu
}

// address is what one protocol has granted to an entry.
type address struct {
	name  string // for the log
	proto client.Protocol
	held  *held
	grant *client.Grant // nil while there is none
}

func (k *Keeper) newEntry(r *record) *entry {
	e := &entry{k: k, rec: r, ready: make(chan struct{})}
	e.ctx, e.stop = context.WithCancel(k.ctx)
	return e
}

// String names the attachment as its client id does.
func (e *entry) String() string {
	return client.ClientID(e.rec.ContainerID, e.rec.Network, e.rec.IfName)
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

func (e *entry) failed() bool { return e.err != nil }

func (e *entry) add(name string, proto client.Protocol, held *held) {
	e.addrs = append(e.addrs, &address{name: name, proto: proto, held: held})
}

func (e *entry) v4() client.Protocol {
	return &client.V4{ID: e.String(), Options: e.rec.Options, Broadcast: e.k.opts.Broadcast}
}

func (e *entry) v6() client.Protocol { return &client.V6{ID: e.String()} }

// restore makes grants from the stored messages.
func (e *entry) restore() error {
	if e.rec.V4 != nil {
		e.add("DHCPv4", e.v4(), e.rec.V4)
	}
	if e.rec.V6 != nil {
		e.add("DHCPv6", e.v6(), e.rec.V6)
	}
	for _, a := range e.addrs {
		if len(a.held.Raw) == 0 {
			continue
		}
		var err error
		if a.grant, err = a.proto.Parse(a.held.Raw); err != nil {
			return err
		}
	}
	return nil
}

// acquire requests what the configuration asks for, both families at once. All must
// succeed.
func (e *entry) acquire(ctx context.Context, conf *dhcprpc.IPAM) error {
	if conf.V4() {
		e.rec.V4 = new(held)
		e.add("DHCPv4", e.v4(), e.rec.V4)
	}
	if conf.DHCPv6 {
		e.rec.V6 = new(held)
		e.add("DHCPv6", e.v6(), e.rec.V6)
	}
	ctx, cancel := e.k.within(ctx, e.k.opts.ResendTimeout, errNoMoreTries)
	defer cancel()
	defer context.AfterFunc(e.ctx, cancel)() // a DEL meanwhile
	errs := make([]error, len(e.addrs))
	var both sync.WaitGroup
	for i, a := range e.addrs {
		both.Go(func() {
			if errs[i] = e.ask(ctx, a); errs[i] != nil {
				cancel()
			}
		})
	}
	both.Wait()
	return worst(errs)
}

// worst leaves out errors that only followed from another one.
func worst(errs []error) error {
	var first error
	for _, err := range errs {
		if err != nil && (first == nil || errors.Is(first, context.Canceled)) {
			first = err
		}
	}
	return first
}

// accept records a new grant.
func (e *entry) accept(a *address, g *client.Grant) {
	e.mu.Lock()
	defer e.mu.Unlock()
	a.grant = g
	a.held.Raw, a.held.Since = g.Raw, e.k.opts.Clock.Since()
}

// age is how long ago the grant was.
func (e *entry) age(a *address) time.Duration { return e.k.opts.Clock.Since() - a.held.Since }

// setup is what a plugin made from a grant.
func (e *entry) setup(g *client.Grant) *client.Setup {
	s := &client.Setup{Address: g.Address, Gateway: g.Gateway}
	for _, r := range g.Routes {
		s.Routes = append(s.Routes, withPriority(r, e.rec.Priority))
	}
	return s
}

func withPriority(r spec.Route, priority int) spec.Route {
	if priority != 0 {
		r.Priority = priority
	}
	return r
}

// result is the leases in the form of an ADD's result.
func (e *entry) result() (*spec.Result, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := &spec.Result{}
	for _, a := range e.addrs {
		g := a.grant
		if g == nil {
			return nil, fmt.Errorf("the %s lease was lost; a server is being looked for", a.name)
		}
		out.IPs = append(out.IPs, spec.IPConfig{Address: g.Address, Gateway: g.Gateway})
		for _, r := range g.Routes {
			out.Routes = append(out.Routes, withPriority(r, e.rec.Priority))
		}
		out.DNS.Nameservers = append(out.DNS.Nameservers, g.DNS.Nameservers...)
		out.DNS.Search = append(out.DNS.Search, domains(g.DNS.Search)...)
		if out.DNS.Domain == "" && isDomain(g.DNS.Domain) {
			out.DNS.Domain = g.DNS.Domain
		}
	}
	return out, nil
}

// describe names for the log what is held and for how long.
func (e *entry) describe() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	var out []string
	for _, a := range e.addrs {
		if a.grant == nil {
			out = append(out, a.name+" lost")
			continue
		}
		left := max(0, a.grant.Valid-e.age(a))
		out = append(out, fmt.Sprintf("%s %s for %v", a.name, a.grant.Address, left.Round(time.Second)))
	}
	return strings.Join(out, ", ")
}

// save writes the current record.
func (e *entry) save() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.gone {
		return
	}
	if err := e.k.files.write(e.rec); err != nil {
		e.k.opts.Log("%s: %v", e, err)
	}
}

// release releases the addresses at the servers that can be reached.
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

// end stops the upkeep and waits for it.
func (e *entry) end() {
	e.stop()
	e.work.Wait()
}
