// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/daemons/hosts/store"
)

// late is a store that fails and counts each call for one endpoint.
type late struct {
	store.Store
	store.Table[store.Entry]
	asked *int
	err   error
}

func (l late) Entries() store.Table[store.Entry] { return l }

func (l late) Create(context.Context, store.Entry, store.Session) (store.Revision, error) {
	*l.asked++
	return "", fmt.Errorf("the store: %w", l.err)
}

func (l late) Delete(context.Context, string, store.Revision) error {
	*l.asked++
	return fmt.Errorf("the store: %w", l.err)
}

func (l late) Get(context.Context, string) (store.Item[store.Entry], error) {
	*l.asked++
	return store.Item[store.Entry]{}, fmt.Errorf("the store: %w", l.err)
}

// A store does not answer, so each call takes long. The agent makes one call in each pass.
// Otherwise it would notice nothing for minutes.
func TestPublishStops(t *testing.T) {
	w, a := crowded()
	asked := 0
	a.opts.Store = late{asked: &asked, err: context.DeadlineExceeded}
	look := func(what string) {
		t.Helper()
		asked = 0
		if err := a.publish(t.Context(), w); !errors.Is(err, context.DeadlineExceeded) || asked != 1 {
			t.Errorf("%s: asked %d times: %v", what, asked, err)
		}
	}
	look("all are new")
	for key, e := range a.endpoints(w, a.containers) {
		a.published[key] = store.Item[store.Entry]{Object: e, Revision: "1"}
		e.ID = "gone-" + e.ID
		w.Endpoints = append(w.Endpoints, e)
	}
	look("of the agent before")
	a.containers = nil
	look("all are gone")
	if n := len(a.published); n != 22 {
		t.Errorf("%d are known, want all 22: none was removed", n)
	}
}

// The first endpoint finds out that a session is over. The others wait for the next session,
// because without one they would outlive this host.
func TestPublishStopsWithoutSession(t *testing.T) {
	w, a := crowded()
	asked, ended := 0, 0
	a.endSession = func() { ended++ }
	a.opts.Store = late{asked: &asked, err: store.ErrSessionOver}
	if err := a.publish(t.Context(), w); !errors.Is(err, store.ErrSessionOver) || asked != 1 || ended != 1 {
		t.Errorf("asked %d times, ended %d sessions: %v", asked, ended, err)
	}
}

// crowded is a host with 20 containers that the store does not have.
func crowded() (*world, *Agent) {
	a := &Agent{self: "me", run: "x", checked: time.Now(), others: map[string]time.Time{}, published: map[string]store.Item[store.Entry]{}}
	for n := range byte(20) {
		addr := netip.AddrFrom4([4]byte{10, 200, 1, 2 + n})
		a.containers = append(a.containers, container{Network: "lan", ID: fmt.Sprint("e", n), Addrs: []netip.Addr{addr}})
	}
	return &world{Networks: []store.Network{lan()}}, a
}
