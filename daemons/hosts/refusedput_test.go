// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/daemons/hosts/store"
)

// picky is a store that refuses the endpoint of one container.
type picky struct{ store.Store }

type pickyEntries struct{ store.Table[store.Entry] }

func (p picky) Entries() store.Table[store.Entry] { return pickyEntries{p.Store.Entries()} }

func (t pickyEntries) Create(ctx context.Context, e store.Entry, l store.Session) (store.Revision, error) {
	if strings.HasPrefix(e.ID, "bad") {
		return "", errors.New("it has too many bytes")
	}
	return t.Table.Create(ctx, e, l)
}

// The endpoint of one container cannot be put. The names of other containers go when these end.
func TestOneEndpointRefused(t *testing.T) {
	s := picky{openStore(t)}
	must(t, Admin{s}.Create(t.Context(), lan()))
	h := newHost(t, s, 1)
	h.start()
	first := h.block("lan").Addr().Next().Next()
	h.attach("e1", "lan", first.String(), "web")
	until(t, "the name is published", func() bool { return slices.Equal(endpointNames(t, s), []string{"web"}) })
	h.attach("bad", "lan", first.Next().String(), "huge")
	until(t, "it is reported", h.reports("it has too many bytes"))
	h.detach("e1", "lan", first.String())
	until(t, "the name is gone", func() bool { return len(endpointNames(t, s)) == 0 })
}
