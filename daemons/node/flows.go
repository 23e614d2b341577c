// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"net"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/patchbay-net/patchbay/daemons/internal/flows"
	"github.com/patchbay-net/patchbay/internal/policy/enforce"
	"github.com/patchbay-net/patchbay/internal/sight"
)

// Flows are the choices for what `patchbay flows` shows.
type Flows struct {
	Group    uint16       // of NFLOG, to which the kernel tells new connections while somebody follows; 0: there are no flows
	Listener net.Listener // where clients ask for them; nil: nowhere

	Every time.Duration // the shortest time between two dumps of conntrack; 0: 10 s
}

// newFlows returns what makes flows of this node's connections, or nil if they are off.
func (a *Agent) newFlows() *flows.Service {
	if a.opts.Flows.Group == 0 {
		return nil
	}
	n := flowNames{node: a.opts.Node, run: a.opts.Paths.Run, witness: a.policy.witness}
	if a.opts.NetworkPolicy.Off {
		n.witness = nil
	}
	return flows.New(flows.Options{
		Group: a.opts.Flows.Group, Listener: a.opts.Flows.Listener, Every: a.opts.Flows.Every, Space: space, Ends: n.all, End: n.one,
		Failed: func(err error) { a.trouble.set(flowsUnread, unread(err)) },
	})
}

func unread(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("patchbay flows lacks connections: %w", err)
}

// flowNames names the ends of connections: by what the agent knows for network policies, or, without these, by the records
// of this node's pods.
type flowNames struct {
	node, run string
	witness   *witness              // nil: policies are off
	recorded  atomic.Pointer[names] // of the last dump
}

// all implements flows.Options.Ends.
func (n *flowNames) all() func(netip.Addr) sight.End {
	if n.witness != nil {
		return n.witness.directory().end
	}
	known := recordedNames(n.node, n.run)
	n.recorded.Store(&known)
	return known.end
}

// one implements flows.Options.End.
func (n *flowNames) one(a netip.Addr) sight.End {
	if n.witness == nil {
		if known := n.recorded.Load(); known != nil {
			return known.end(a)
		}
		return sight.End{Address: a}
	}
	n.witness.mu.Lock()
	defer n.witness.mu.Unlock()
	return n.witness.end(a)
}

// recordedNames returns what this node knows by itself. What cannot be read has no name.
func recordedNames(node, run string) names {
	known := names{}
	local, _ := enforce.NodeReach()
	for _, a := range local {
		known[a] = name{node, true}
	}
	list, _, _, _ := attachments(run)
	for _, p := range list {
		for _, a := range p.Addresses {
			known[a] = name{text: p.Namespace + "/" + p.Name}
		}
	}
	return known
}
