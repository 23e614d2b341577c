// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package lan

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	served "github.com/patchbay-net/patchbay/daemons/node/services"
	"github.com/patchbay-net/patchbay/internal/services"
)

// slowServer answers renewals after a time, of a clock that only it moves.
type slowServer struct {
	Server
	now, before, after time.Duration
	err                error
	ids                []string
}

func (s *slowServer) Session(context.Context, string) (id, version string, err error) {
	return "", "", nil
}

func (s *slowServer) Renew(_ context.Context, _, id, _ string, _ time.Duration) (string, error) {
	s.now += s.before + s.after
	s.ids = append(s.ids, id)
	return "1", s.err
}

func (s *slowServer) End(context.Context, string, string) error { return s.err }

// TestSession: a session is good from before the request, and an answer after its end does not continue it.
func TestSession(t *testing.T) {
	srv := &slowServer{now: time.Hour, after: 800 * time.Millisecond}
	s := session{node: "a", server: srv, now: func() time.Duration { return srv.now }}
	renew := func(want error) {
		t.Helper()
		if err := s.renew(t.Context()); !errors.Is(err, want) {
			t.Fatalf("got %v, want %v", err, want)
		}
	}
	renew(nil)
	if want := time.Hour + Lasts; s.until != want {
		t.Errorf("it is good until %v, want %v", s.until, want)
	}
	first := s.current()
	srv.now = s.until - time.Second
	renew(nil)
	if s.current() != first || NodeOf(first) != "a" {
		t.Errorf("it was %s and is %s", first, s.current())
	}
	srv.now = s.until - time.Millisecond
	renew(errLapsed)
	if s.current() != "" {
		t.Error("a late answer continues it")
	}
	renew(nil)
	if s.current() == first {
		t.Error("the next session has the name of the last one")
	}
	srv.now = s.until
	if s.current() != "" {
		t.Error("it has no end")
	}
	srv.err = ErrConflict
	renew(ErrConflict)
	if s.current() != "" {
		t.Error("a refusal begins one")
	}
}

// TestOldEvents: what the API server sends of before this node's last write does not count, until the session is another one.
func TestOldEvents(t *testing.T) {
	c := NewCluster("a", Classes{}, func() time.Duration { return 0 }, served.New("a", services.Options{}), true)
	a := netip.MustParseAddr("192.0.2.10")
	holder := func(version, holder string) string {
		c.put(Holding{Addr: a, Holder: holder, Version: version}, false)
		return c.leases[LeaseName(a)].Holder
	}
	holder("4", "a/1")
	c.put(Holding{Addr: a, Version: "6"}, true) // released
	if got := holder("5", "a/1"); got != "" {
		t.Errorf("an old event gives the address back to %s", got)
	}
	if got := holder("7", "b/1"); got != "b/1" {
		t.Errorf("a new event counts as %q", got)
	}
	c.removed(Holding{Addr: a, Version: "7"})
	if holder("7", "b/1"); len(c.leases) > 0 {
		t.Error("an old event brings a removed Lease back")
	}
	c.forget()
	if got := holder("2", "c/1"); got != "c/1" {
		t.Errorf("after a restore of the API server's data, the Lease is %q", got)
	}
}

// TestSeenOnce: a version of a node's Lease that comes again, as in a list, is no renewal. A new one is.
func TestSeenOnce(t *testing.T) {
	now := time.Hour
	c := NewCluster("a", Classes{}, func() time.Duration { return now }, served.New("a", services.Options{}), true)
	for _, step := range []struct {
		at      time.Duration
		version string
		seen    time.Duration
	}{{time.Hour, "5", time.Hour}, {2 * time.Hour, "5", time.Hour}, {3 * time.Hour, "6", 3 * time.Hour}} {
		now = step.at
		text, err := Session{ID: "b/1", Version: step.version, Lasts: Lasts}.JSON("b", time.Now())
		if err == nil {
			err = c.Set(Leases, text)
		}
		if s := c.sessions[SessionName("b")]; err != nil || s.Seen != step.seen || s.Lasts != Lasts || s.Version != step.version {
			t.Errorf("at %v it is %+v, %v; want that it was seen at %v", step.at, s, err, step.seen)
		}
	}
}
