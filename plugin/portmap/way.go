// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package portmap

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/plugin/kernel"
)

// way is the host's interface towards a container, for CHECK: when its route is gone, a
// default route leads to the container through another interface, whose settings decide
// nothing.
type way struct {
	to      netip.Addr
	by, now string // at ADD, and now; "" without a route
	gone    bool   // by does not exist any more
}

// asRecorded gives the plan the interface of the record. When another attachment with the
// same address came later, the route is that one's; and when that one is gone, no route is
// expected.
func (p *plan) asRecorded(k *kernel.Kernel, env *netstate.Env, rec *record.Record) netstate.State {
	var ways []string
	for _, fact := range rec.Shared {
		if by, ok := strings.CutPrefix(fact, factLocalNet); ok {
			ways = append(ways, by)
		}
	}
	if len(ways) == 0 || len(p.addrs) == 0 || slices.Contains(ways, p.route) {
		return nil
	}
	if _, err := k.Records.Fact(factLocalNet + p.route); err == nil {
		return nil
	}
	w := way{to: p.addrs[0].Addr(), by: ways[0], now: p.route}
	p.route, p.port = w.by, ""
	if _, err := env.Link(netstate.Host, w.by); nl.IsNotFound(err) {
		p.route, w.gone = "", true
	}
	return netstate.State{w}
}

// String names the expected interface.
func (w way) String() string { return fmt.Sprintf("host: reach %s by %s", w.to, w.by) }

// Ensure does nothing: the plugin before portmap made the route.
func (way) Ensure(context.Context, *netstate.Env) (netstate.Undo, error) { return nil, nil }

// Diff compares both.
func (w way) Diff(context.Context, *netstate.Env) (string, error) {
	switch w.now {
	case w.by:
		return "", nil
	case "":
		return fmt.Sprintf("the host does not reach %s, which was behind %s", w.to, w.by), nil
	}
	if w.gone {
		return fmt.Sprintf("127.0.0.1 does not reach published ports: the host reached %s by %s, which is gone, and does by %s (run patchbay repair)", w.to, w.by, w.now), nil
	}
	return fmt.Sprintf("the host reaches %s by %s instead of %s", w.to, w.now, w.by), nil
}
