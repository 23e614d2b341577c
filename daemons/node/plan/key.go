// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package plan

import (
	"cmp"
	"maps"

	"github.com/patchbay-net/patchbay/internal/mesh"
)

// KeyAnnotation is the annotation with a Node's public WireGuard key, in base64.
const KeyAnnotation = AnnotationPrefix + "wireguard-key"

// KeepKey returns the Node with the WireGuard key of its earlier version. Use it if the Node's new
// key is the key of another Node, holder, which would otherwise lose its peers.
func (n Node) KeepKey(old Node, holder string) Node {
	n.Annotations = maps.Clone(n.Annotations)
	n.Annotations[KeyAnnotation], n.KeyOf = old.Annotations[KeyAnnotation], holder
	return n
}

// key returns the key that encrypts packets to a peer. ok is false if the transport needs a key,
// and the Node has none or only the key of another Node. Then the peer gets no route, and the
// cluster's unreachable routes refuse packets to it.
func (m *maker) key(n Node) (k mesh.Key, ok bool) {
	if m.Transport != mesh.WireGuard || n.Name == m.Node {
		return k, true
	}
	about := []string{n.Name}
	if n.KeyOf != "" {
		m.duplicateKey(n.Name, n.KeyOf, "the one that it had before stays in use")
	}
	text := n.Annotations[KeyAnnotation]
	if text == "" {
		m.problem(NoKey, "Node %s has published no WireGuard key, and nothing is sent to its pods unencrypted: run its agent with --transport wireguard", about, n.Name)
		return k, false
	}
	k, err := mesh.ParseKey(text)
	if err != nil {
		m.problem(BadKey, "Node %s: annotation %s: %v, not %q: remove the annotation, and its agent writes it again", about, n.Name, KeyAnnotation, err, text[:min(len(text), longKey)])
		return k, false
	}
	if other := m.keys[k]; other != "" {
		m.duplicateKey(n.Name, other, "its pods are unreachable")
		return k, false
	}
	m.keys[k] = n.Name
	return k, true
}

// longKey is how many bytes of a wrong key a problem's text shows.
const longKey = 64

func (m *maker) duplicateKey(node, holder, result string) {
	m.problem(DuplicateKey, "Node %s has published the WireGuard key of Node %s, which keeps it; %s: if one is a copy of the other's disk, remove /var/lib/patchbay/node/wireguard on it and restart its agent",
		[]string{node, cmp.Or(holder, node)}, node, holder, result)
}
