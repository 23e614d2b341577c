// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import "github.com/patchbay-net/patchbay/internal/nl"

// Space creates a namespace with nothing but its loopback: a container that a plugin has
// yet to attach.
func (n *Node) Space(name string) *Space {
	n.t.Helper()
	return n.space(name)
}

// Conn is the netlink socket of the namespace.
func (s *Space) Conn() *nl.Conn { return s.conn }
