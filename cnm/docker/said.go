// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"github.com/patchbay-net/patchbay/cnm/docker/engine"
	"github.com/patchbay-net/patchbay/cnm/docker/state"
)

// Engine is what is asked of Docker, never within a call that Docker waits for.
type Engine interface {
	Root(context.Context) (string, error)
	Networks(context.Context) ([]engine.Network, error)
	Endpoints(ctx context.Context, network string) (all map[string]engine.Endpoint, known bool, err error)
}

// said is what Docker has. It is asked before anything is judged, with no lock held:
// Docker may wait for a call that waits for the lock. It is nil for a caller that may not ask.
type said struct {
	before    time.Time // what is not from before then, Docker may not know yet
	networks  []engine.Network
	endpoints map[string]map[string]engine.Endpoint // by network; nothing is known of others
	addresses []engine.Endpoint                     // those that may have our addresses
	silent    bool                                  // Docker did not tell all of these
}

// inDoubt is the least age of what Docker is said not to have: it stores a
// network after the driver made it.
const inDoubt = 10 * time.Second

// errNotAsked is wrapped when Docker's word is missing.
var errNotAsked = errors.New("Docker is not asked what it has")

// hear asks Docker what it has. What it could not tell is unknown in said, and in the
// error.
func (d *Driver) hear(ctx context.Context, grace time.Duration) (*said, error) {
	s := &said{before: time.Now().Add(-max(grace, d.opts.doubt)), endpoints: map[string]map[string]engine.Endpoint{}}
	err := d.isOurs(ctx)
	if err == nil {
		s.networks, err = d.opts.Engine.Networks(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNotAsked, err)
	}
	all, _ := d.store.Endpoints() // the collector reports those that it cannot read
	return s, s.hearAll(ctx, d.opts.Engine, all)
}

// isOurs refuses the answers of another daemon of this host, or of what only
// looks like Docker: to it every network would look deleted.
func (d *Driver) isOurs(ctx context.Context) error {
	root, err := d.opts.Engine.Root(ctx)
	if err != nil {
		return err
	}
	if resolved(root) != resolved(d.opts.DataRoot) {
		return fmt.Errorf("the one that answers has its data in %s, not in %s (--docker, --data-root)", root, d.opts.DataRoot)
	}
	return nil
}

func resolved(path string) string {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	return filepath.Clean(path)
}

// hearAll asks for the endpoints of networks that have some of ours, or that may
// have our addresses.
func (s *said) hearAll(ctx context.Context, docker Engine, ours []*state.Endpoint) error {
	var errs []error
	for i := range s.networks {
		n := &s.networks[i]
		addresses := n.IPAM.Options[optNetwork] != "" || n.IPAM.Options[optConf] != "" // RequestPool refuses others
		if !addresses && !slices.ContainsFunc(ours, func(e *state.Endpoint) bool { return e.Network == n.ID && s.knows(e.Changed) }) {
			continue
		}
		theirs, known, err := docker.Endpoints(ctx, n.ID)
		errs = append(errs, err)
		if err == nil && known {
			s.endpoints[n.ID] = theirs
		}
		if addresses {
			s.silent = s.silent || err != nil
			s.addresses = slices.AppendSeq(s.addresses, maps.Values(theirs))
		}
	}
	return errors.Join(errs...)
}

// knows says whether Docker knows of something that is from then.
func (s *said) knows(then time.Time) bool { return then.Before(s.before) }

// word is Docker's of something that changed then.
func (s *said) word(listed bool, changed time.Time) word {
	switch {
	case listed:
		return has
	case s.knows(changed):
		return hasNot
	}
	return notAsked
}

func (s *said) ofNetwork(n *state.Network) word {
	if s == nil {
		return notAsked
	}
	return s.word(slices.ContainsFunc(s.networks, func(x engine.Network) bool { return x.ID == n.ID }), n.Since)
}

// ofEndpoint is silent where Docker has not the network: that is judged as a whole.
func (s *said) ofEndpoint(e *state.Endpoint) word {
	if s == nil {
		return notAsked
	}
	theirs, known := s.endpoints[e.Network]
	if !known {
		return notAsked
	}
	_, listed := theirs[e.ID]
	return s.word(listed, e.Changed)
}

// ofLease looks at the containers of all networks, whatever driver those are of.
func (s *said) ofLease(l *state.Lease) word {
	if s == nil || s.silent {
		return notAsked
	}
	return s.word(slices.ContainsFunc(s.addresses, func(e engine.Endpoint) bool { return mayBeOf(e, l) }), l.Since)
}

// mayBeOf says whether an endpoint may be the one that a lease is of. Its MAC address
// would do, but that some drivers have none to show.
func mayBeOf(e engine.Endpoint, l *state.Lease) bool {
	return leaseID(l.Network, e.MAC) == l.ID || slices.ContainsFunc(e.Addrs, func(a netip.Addr) bool { return slices.Contains(l.Given, a) })
}

// ofPool looks for a network, of whatever driver, that was made with the same
// --ipam-opt.
func (s *said) ofPool(p *state.Pool) word {
	if s == nil {
		return notAsked
	}
	return s.word(slices.ContainsFunc(s.networks, func(n engine.Network) bool {
		o := n.IPAM.Options
		return o[optNetwork] == p.Network || len(p.Options) > 0 && maps.Equal(o, p.Options) || len(p.Options) == 0 && o[optConf] != ""
	}), p.Since)
}
