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

	"github.com/patchbay-net/patchbay/hosts/store"
)

// errUnread is wrapped when the agent could not read whether this host can take part in a
// network.
var errUnread = errors.New("this host's links and addresses cannot be read")

// removal decides what the agent may remove from this host or from the store; each removal
// asks it. Only a whole world that this process has read from the store shows what no
// longer exists: a cached world may lack newer objects. A failed read never allows a
// removal.
type removal struct {
	whole  bool
	unread map[string]bool // networks for which this host could not be examined

	// known reports whether all containers of this host are known, there whether the driver
	// has a file for an endpoint.
	known bool
	there func(endpoint string) bool
}

// mayRemove covers this host. wrong has the reasons why it takes no part in networks.
func mayRemove(synced bool, wrong map[string]error) *removal {
	r := &removal{whole: synced, unread: map[string]bool{}}
	for network, err := range wrong {
		if errors.Is(err, errUnread) {
			r.unread[network] = true
		}
	}
	return r
}

// network reports whether this host may remove what it no longer needs of a network: the
// configuration, the bridge and the bridge's addresses.
func (r *removal) network(name string) bool { return r.whole && !r.unread[name] }

// sets reports whether the agent may apply whole sets, which removes all that a set lacks:
// the routes to other hosts, and the addresses that answer names. It may not while it could
// not examine this host for some network, which may have running containers. A cached world
// is enough for a set: it was whole when it was saved.
func (r *removal) sets() bool { return len(r.unread) == 0 }

// endpoint reports whether the store's record of an unknown container of this host may be
// removed.
func (r *removal) endpoint(e *store.Endpoint) bool {
	id, _, _ := strings.Cut(e.ID, ".") // the rest names the lease
	return r.whole && (r.known || !r.there(id))
}

// mayUnpublish covers the store's records of this host's containers.
func (a *Agent) mayUnpublish(known bool) *removal {
	return &removal{whole: true, known: known, there: func(endpoint string) bool {
		_, err := os.Lstat(filepath.Join(a.opts.Paths.State, "docker", "endpoints", filepath.Base(endpoint)))
		return !errors.Is(err, fs.ErrNotExist)
	}}
}

// free reports whether no container of this host has an address of blocks, so that the
// blocks may be given back or their addresses removed. After an error nothing may.
func (a *Agent) free(network string, blocks ...netip.Prefix) (bool, error) {
	used, err := a.used(network, blocks)
	return err == nil && used == 0, err
}
