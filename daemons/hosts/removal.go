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

	"github.com/patchbay-net/patchbay/daemons/hosts/store"
)

// errUnread means that the agent could not read whether this host can take part in a network.
var errUnread = errors.New("this host's links and addresses cannot be read")

// removal decides what the agent may remove from this host or from the store. Every function that
// removes something asks it first. Only a whole world that this process has read from the store shows that an
// object no longer exists; a cached world may lack newer objects. A failed read never allows a removal.
type removal struct {
	whole  bool
	unread map[string]bool // networks for which the state of this host could not be read

	// complete reports whether the agent could read all containers of this host. hasFile reports
	// whether the driver has a file for an endpoint.
	complete bool
	hasFile  func(endpoint string) bool
}

// mayRemove returns the removal for this host's own objects. wrong has the reasons why this
// host takes no part in networks.
func mayRemove(synced bool, wrong map[string]error) *removal {
	r := &removal{whole: synced, unread: map[string]bool{}}
	for network, err := range wrong {
		if errors.Is(err, errUnread) {
			r.unread[network] = true
		}
	}
	return r
}

// network reports whether the agent may remove what this host no longer needs of a network: the
// configuration, the bridge, and the bridge's addresses.
func (r *removal) network(name string) bool { return r.whole && !r.unread[name] }

// sets reports whether the agent may apply whole sets: the routes to other hosts, and the
// addresses at which the resolver listens. To apply a set removes everything that the set lacks.
// If the state of this host could not be read for some network, that network may have running
// containers, and no set may be applied. A cached world is enough for a set, because it was whole
// when it was saved.
func (r *removal) sets() bool { return len(r.unread) == 0 }

// endpoint reports whether the agent may remove from the store an endpoint whose container it
// does not know.
func (r *removal) endpoint(e *store.Entry) bool {
	id, _, _ := strings.Cut(e.ID, ".") // what follows the dot names the session
	return r.whole && (r.complete || !r.hasFile(id))
}

// mayUnpublish returns the removal that decides which endpoints of this host the agent may delete from the store.
func (a *Agent) mayUnpublish(complete bool) *removal {
	return &removal{whole: true, complete: complete, hasFile: func(endpoint string) bool {
		_, err := os.Lstat(filepath.Join(a.opts.Paths.State, "docker", "endpoints", filepath.Base(endpoint)))
		return !errors.Is(err, fs.ErrNotExist)
	}}
}

// free reports whether no container of this host has an address of the blocks. Only then may the
// blocks be given back or their addresses be removed. After an error neither is allowed.
func (a *Agent) free(network string, blocks ...netip.Prefix) (bool, error) {
	used, err := a.used(network, blocks)
	return err == nil && used == 0, err
}
