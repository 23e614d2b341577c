// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"context"
	"path/filepath"
	"slices"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/daemons/hosts/store"
	"github.com/patchbay-net/patchbay/internal/mesh"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/resident"
)

// StateDir returns the agent's directory.
func StateDir(p paths.Paths) string { return filepath.Join(p.State, "hosts") }

// KeyDir returns the directory of this host's key for WireGuard.
func KeyDir(p paths.Paths) string { return filepath.Join(StateDir(p), "wireguard") }

// encrypts reports whether the packets of a network are encrypted between the hosts.
func encrypts(n *store.Network) bool { return n.Transport == store.WireGuard }

// encrypted reports whether a network is.
func (w *world) encrypted() bool {
	return slices.ContainsFunc(w.Networks, func(n store.Network) bool { return encrypts(&n) })
}

// encryption is what the agent knows of this host's key.
type encryption struct {
	asked bool     // the fabric was asked for the key
	key   mesh.Key // the last one that the fabric had
}

// encrypt asks the fabric for this host's key if a network is encrypted. The other hosts then get the key
// with this host's record. encrypt returns an error if this host cannot encrypt.
func (a *Agent) encrypt(ctx context.Context, w *world) (err error) {
	var key mesh.Key
	if w.encrypted() {
		key, err = a.opts.Fabric.Encrypt(ctx)
		a.note(key)
	}
	a.problems.Set("encryption", err)
	return err
}

// note stores the answer of the fabric. If it is news, the other hosts get it. A key stays published if the
// fabric fails later, because the failure may pass.
func (a *Agent) note(key mesh.Key) {
	a.mu.Lock()
	defer a.mu.Unlock()
	was := a.encryption
	a.encryption.asked = true
	if key != (mesh.Key{}) {
		a.encryption.key = key
	}
	if a.encryption != was {
		resident.Signal(a.upstream)
	}
}

// keyUnknown reports whether this host needs a key, and the fabric was not asked for it yet.
func (a *Agent) keyUnknown(w *world) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return w.encrypted() && !a.encryption.asked
}

// publicKey returns the key for this host's record, and the port. Without a key it returns neither.
func (a *Agent) publicKey() (key string, port uint16) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.encryption.key == (mesh.Key{}) {
		return "", 0
	}
	return a.encryption.key.String(), a.opts.WirePort
}

// ofWireGuard reports whether a link is the fabric's WireGuard device, which has addresses of this host's
// blocks.
func ofWireGuard(link netlink.Link) bool {
	return link.Type() == "wireguard" && link.Attrs().Name == mesh.DefaultWireDevice
}
