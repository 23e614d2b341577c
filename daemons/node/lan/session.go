// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package lan

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"
)

// Server is the API server, as far as addresses need it. Each call fails with ErrConflict if the object is no longer as the caller has seen it.
type Server interface {
	// Session returns the session of a node from the Lease itself, not from a copy. If the node has no Lease, both are "".
	Session(ctx context.Context, node string) (id, version string, err error)
	// Renew writes the node's Lease. Version "" creates it.
	Renew(ctx context.Context, node, id, version string, lasts time.Duration) (newer string, err error)
	// End deletes the node's Lease.
	End(ctx context.Context, node, version string) error

	// Put writes the Lease of an address, and returns it as it is then. Version "" creates it.
	Put(ctx context.Context, l Holding) (Holding, error)
	// Remove deletes the Lease of an address.
	Remove(ctx context.Context, l Holding) error
	// Write writes status.loadBalancer of a Service.
	Write(ctx context.Context, s *Service, status []netip.Addr) error
}

// ErrConflict means that an object was changed meanwhile.
var ErrConflict = errors.New("the object was changed meanwhile")

// errLapsed means that a renewal came too late.
var errLapsed = errors.New("the API server answered after the node's Lease had ended")

const (
	// Lasts is how long a renewal of a node's Lease is good for. A Lease has whole seconds.
	Lasts = 2 * time.Second

	renewEvery = 500 * time.Millisecond
	renewTime  = time.Second            // for one request
	renewRetry = 100 * time.Millisecond // after a failure
	endTime    = time.Second
)

// session is this node's session.
type session struct {
	node   string
	server Server
	now    func() time.Duration

	mu      sync.Mutex
	id      string
	version string // of the node's Lease; "": not known
	until   time.Duration
}

// current returns the session's name, or "" if there is none, or it has ended.
func (s *session) current() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.now() >= s.until {
		return ""
	}
	return s.id
}

// renew continues the session, or begins one. The time counts from before the request. An answer that comes after the end continues nothing:
// another node may have taken the addresses already.
func (s *session) renew(ctx context.Context) error {
	id, version := s.current(), s.version
	begins := id == ""
	if begins {
		id = s.node + "/" + rand.Text()
	}
	ctx, cancel := context.WithTimeout(ctx, renewTime)
	defer cancel()
	var err error
	if version == "" {
		if _, version, err = s.server.Session(ctx, s.node); err != nil {
			return fmt.Errorf("read the Lease of this node: %w", err)
		}
	}
	sent := s.now()
	version, err = s.server.Renew(ctx, s.node, id, version, Lasts)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version = version
	switch now := s.now(); {
	case err != nil:
		s.version = ""
		return fmt.Errorf("renew the Lease of this node: %w", err)
	case !begins && now >= s.until, now >= sent+Lasts:
		s.id = ""
		return errLapsed
	}
	s.id, s.until = id, sent+Lasts
	return nil
}

// end ends the session at once, and then says so to the others.
func (s *session) end(ctx context.Context) error {
	s.mu.Lock()
	had, version := s.id != "", s.version
	s.id, s.until, s.version = "", 0, ""
	s.mu.Unlock()
	if !had || version == "" {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, endTime)
	defer cancel()
	if err := s.server.End(ctx, s.node, version); err != nil {
		return fmt.Errorf("delete the Lease of this node: %w: others take its addresses when it has ended", err)
	}
	return nil
}
