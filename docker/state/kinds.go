// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package state

import "time"

// SaveNetwork writes a network. It is on the disk when this returns.
func (s *Store) SaveNetwork(n *Network) error { return save(s, networks, n.ID, n) }

// Network reads a network; the error wraps ErrUnknown when there is none.
func (s *Store) Network(id string) (*Network, error) { return load[Network](s, networks, id) }

// DropNetwork forgets a network. A missing one is no error.
func (s *Store) DropNetwork(id string) error { return s.drop(networks, id) }

// Networks lists all networks that can be read; the error names the others.
func (s *Store) Networks() ([]*Network, error) { return list[Network](s, networks) }

// SaveEndpoint writes an endpoint and sets its time. After a power loss the file has this
// or the previous content: an endpoint's phase means nothing after a reboot.
func (s *Store) SaveEndpoint(e *Endpoint) error {
	e.Changed = time.Now().UTC().Round(0)
	return save(s, endpoints, e.ID, e)
}

// Endpoint reads an endpoint; the error wraps ErrUnknown when there is none.
func (s *Store) Endpoint(id string) (*Endpoint, error) { return load[Endpoint](s, endpoints, id) }

// DropEndpoint forgets an endpoint. A missing one is no error.
func (s *Store) DropEndpoint(id string) error { return s.drop(endpoints, id) }

// Endpoints lists all endpoints that can be read; the error names the others. The caller
// must not change them.
func (s *Store) Endpoints() ([]*Endpoint, error) { return list[Endpoint](s, endpoints) }

// SavePool writes a pool. It is on the disk when this returns.
func (s *Store) SavePool(p *Pool) error { return save(s, pools, p.ID, p) }

// Pool reads a pool; the error wraps ErrUnknown when there is none.
func (s *Store) Pool(id string) (*Pool, error) { return load[Pool](s, pools, id) }

// DropPool forgets a pool. A missing one is no error.
func (s *Store) DropPool(id string) error { return s.drop(pools, id) }

// Pools lists all pools that can be read; the error names the others.
func (s *Store) Pools() ([]*Pool, error) { return list[Pool](s, pools) }

// SaveLease writes a lease, with SaveEndpoint's guarantee.
func (s *Store) SaveLease(l *Lease) error { return save(s, leases, l.ID, l) }

// Lease reads a lease; the error wraps ErrUnknown when there is none.
func (s *Store) Lease(id string) (*Lease, error) { return load[Lease](s, leases, id) }

// DropLease forgets a lease. A missing one is no error.
func (s *Store) DropLease(id string) error { return s.drop(leases, id) }

// Leases lists all leases that can be read; the error names the others.
func (s *Store) Leases() ([]*Lease, error) { return list[Lease](s, leases) }
