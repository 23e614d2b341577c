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

	"github.com/patchbay-net/patchbay/docker/engine"
	"github.com/patchbay-net/patchbay/docker/state"
)

// Engine asks Docker. It is never used in a call that Docker waits for.
type Engine interface {
	Root(context.Context) (string, error)
	Networks(context.Context) ([]engine.Network, error)
	Endpoints(ctx context.Context, network string) (all map[string]engine.Endpoint, known bool, err error)
}

// dockerView is what Docker has. The driver asks before it judges anything, and holds no
// lock: Docker may wait for a call that waits for the lock. It is nil for a caller that
// may not ask.
type dockerView struct {
	before    time.Time // Docker may not know things newer than this
	networks  []engine.Network
	endpoints map[string]map[string]engine.Endpoint // by network; for others the endpoints are unknown
	addresses []engine.Endpoint                     // endpoints that may have our addresses
	silent    bool                                  // some of addresses are missing
}

// inDoubt is the least age of a thing that Docker is reported not to have: Docker stores
// a network only after the driver made it.
const inDoubt = 10 * time.Second

// errNotAsked is wrapped when Docker's answer is missing.
var errNotAsked = errors.New("Docker was not asked what it has")

// askDocker asks Docker what it has. A missing part is unknown in the view, and in the
// error.
func (d *Driver) askDocker(ctx context.Context, grace time.Duration) (*dockerView, error) {
	s := &dockerView{before: time.Now().Add(-max(grace, d.opts.doubt)), endpoints: map[string]map[string]engine.Endpoint{}}
	err := d.isOurs(ctx)
	if err == nil {
		s.networks, err = d.opts.Engine.Networks(ctx)
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", errNotAsked, err)
	}
	all, _ := d.store.Endpoints.List() // the collector reports those that it cannot read
	return s, s.askEndpoints(ctx, d.opts.Engine, all)
}

// isOurs refuses the answers of another daemon of this host, or of a program that only
// looks like Docker: all our networks would look deleted.
func (d *Driver) isOurs(ctx context.Context) error {
	root, err := d.opts.Engine.Root(ctx)
	if err != nil {
		return err
	}
	if resolved(root) != resolved(d.opts.DataRoot) {
		return fmt.Errorf("the daemon that answers has its data in %s, not in %s (--docker, --data-root)", root, d.opts.DataRoot)
	}
	return nil
}

func resolved(path string) string {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	return filepath.Clean(path)
}

// askEndpoints asks for the endpoints of networks that have some of ours, or that may
// have our addresses.
func (s *dockerView) askEndpoints(ctx context.Context, docker Engine, ours []*state.Endpoint) error {
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

// knows says whether Docker must know a thing of that time.
func (s *dockerView) knows(then time.Time) bool { return then.Before(s.before) }

// listing is Docker's answer about a thing that changed at that time.
func (s *dockerView) listing(listed bool, changed time.Time) listing {
	switch {
	case listed:
		return has
	case s.knows(changed):
		return hasNot
	}
	return notAsked
}

func (s *dockerView) ofNetwork(n *state.Network) listing {
	if s == nil {
		return notAsked
	}
	return s.listing(slices.ContainsFunc(s.networks, func(x engine.Network) bool { return x.ID == n.ID }), n.Since)
}

// ofEndpoint is notAsked if Docker does not have the network: the network is judged as a
// whole.
func (s *dockerView) ofEndpoint(e *state.Endpoint) listing {
	if s == nil {
		return notAsked
	}
	theirs, known := s.endpoints[e.Network]
	if !known {
		return notAsked
	}
	_, listed := theirs[e.ID]
	return s.listing(listed, e.Changed)
}

// ofLease checks the containers of all networks, of any driver.
func (s *dockerView) ofLease(l *state.Lease) listing {
	if s == nil || s.silent {
		return notAsked
	}
	return s.listing(slices.ContainsFunc(s.addresses, func(e engine.Endpoint) bool { return mayBeOf(e, l) }), l.Since)
}

// mayBeOf says whether a lease may belong to an endpoint. The MAC address would be
// enough, but some drivers show none.
func mayBeOf(e engine.Endpoint, l *state.Lease) bool {
	return leaseID(l.Network, e.MAC) == l.ID || slices.ContainsFunc(e.Addrs, func(a netip.Addr) bool { return slices.Contains(l.Given, a) })
}

// ofPool checks for a network, of any driver, that was created with the same --ipam-opt.
func (s *dockerView) ofPool(p *state.Pool) listing {
	if s == nil {
		return notAsked
	}
	return s.listing(slices.ContainsFunc(s.networks, func(n engine.Network) bool {
		o := n.IPAM.Options
		return o[optNetwork] == p.Network || len(p.Options) > 0 && maps.Equal(o, p.Options) || len(p.Options) == 0 && o[optConf] != ""
	}), p.Since)
}
