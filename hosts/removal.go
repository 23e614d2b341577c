// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/patchbay-net/patchbay/store"
)

// errUnread is wrapped when it could not be read whether this host can take part in a
// network.
var errUnread = errors.New("this host cannot be looked at")

// removal says what may be taken away, from this host or from the store: whatever the
// agent removes asks here. Only a whole world tells what is no more, which the store
// itself has said since this process began: what is only remembered is not complete.
// And nothing is gone because it could not be read.
type removal struct {
	whole  bool
	unread map[string]bool // networks of which this host could not be looked at

	// known says whether the containers of this host are all known, and there whether
	// the driver has a file of an endpoint.
	known bool
	there func(endpoint string) bool
}

// mayRemove is for what this host has. wrong says why it takes no part in networks.
func mayRemove(synced bool, wrong map[string]error) *removal {
	r := &removal{whole: synced, unread: map[string]bool{}}
	for network, err := range wrong {
		if errors.Is(err, errUnread) {
			r.unread[network] = true
		}
	}
	return r
}

// network says whether what this host has of a network, and has no more to have, may
// go: its configuration, its bridge, addresses of that.
func (r *removal) network(name string) bool { return r.whole && !r.unread[name] }

// sets says whether the agent may apply what it hands over as a whole set, which takes
// away all that is not in the set: the ways to other hosts, and the addresses where
// names are answered. A network that the agent could not look at may have running
// containers. A remembered world was whole.
func (r *removal) sets() bool { return len(r.unread) == 0 }

// endpoint says whether the store's record of a container of this host may go, that is
// none of those that are known.
func (r *removal) endpoint(e *store.Endpoint) bool {
	id, _, _ := strings.Cut(e.ID, ".") // the rest names the lease
	return r.whole && (r.known || !r.there(id))
}

// mayUnpublish is for what the store has of this host's containers.
func (a *Agent) mayUnpublish(known bool) *removal {
	return &removal{whole: true, known: known, there: func(endpoint string) bool {
		_, err := os.Lstat(filepath.Join(a.opts.Paths.State, "docker", "endpoints", filepath.Base(endpoint)))
		return !errors.Is(err, fs.ErrNotExist)
	}}
}

// free says whether no container of this host has an address of blocks, so that they
// may be given back, or their addresses go. With an error nothing may.
func (a *Agent) free(network string, blocks ...netip.Prefix) (bool, error) {
	used, err := a.used(network, blocks)
	return err == nil && used == 0, err
}
