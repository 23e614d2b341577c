// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hostlocal

import (
	"encoding/json"
	"os"
	"path/filepath"

	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/ipam"
	"github.com/patchbay-net/patchbay/netns"
	"github.com/patchbay-net/patchbay/plugin"
)

// gone returns the proof that a reservation's attachment is dead. Where its
// namespace was stands in our record, or in libcni's cache for an attachment
// the reference made. When that path is no namespace any more it is gone, when
// it is one it is alive; when nobody knows the path, a reservation from before
// the node booted is gone, because no namespace survives that.
//
// prior is our record as it was before this call wrote its own.
func gone(r *plugin.Request, prior *record.Record) func(ipam.Reservation) bool {
	return func(res ipam.Reservation) bool {
		path := ""
		if prior != nil && res.Owner == ownerIn(prior) {
			path = prior.NetNS
		} else {
			path = recordedNetNS(r, res.Owner)
		}
		if path == "" {
			path = cachedNetNS(r, res.Owner)
		}
		if path == "" {
			return res.EarlierBoot
		}
		return !namespaceAt(path)
	}
}

func ownerIn(rec *record.Record) ipam.Owner {
	return ipam.Owner{ID: rec.ContainerID, IfName: rec.IfName}
}

// recordedNetNS is empty for the owner of this very request: the record is
// our own by now.
func recordedNetNS(r *plugin.Request, o ipam.Owner) string {
	key := owner.Of(r.Network, o.ID, o.IfName)
	if key == r.Owner {
		return ""
	}
	rec, err := kernel.Of(r).Records.Read(r.Network, key, name)
	if err != nil || rec == nil {
		return ""
	}
	return rec.NetNS
}

// cachedNetNS reads libcni's cache, whose format is its own (libcni/api.go).
func cachedNetNS(r *plugin.Request, o ipam.Owner) string {
	file := filepath.Join(r.Session.Paths.CNI, "results", r.Network+"-"+o.ID+"-"+o.IfName)
	data, err := os.ReadFile(file)
	if err != nil {
		return ""
	}
	var cached struct {
		Kind        string `json:"kind"`
		ContainerID string `json:"containerId"`
		NetNS       string `json:"netns"`
	}
	if json.Unmarshal(data, &cached) != nil || cached.ContainerID != o.ID {
		return ""
	}
	return cached.NetNS
}

func namespaceAt(path string) bool {
	ns, err := netns.Open(path)
	if err != nil {
		return !netns.Gone(err)
	}
	ns.Close() //nolint:errcheck // read only
	return true
}
