// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"context"
	"errors"
	"net/netip"

	"github.com/patchbay-net/patchbay/internal/conntrack"
	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/plugin"
)

// endFormer ends connections of a former pod with an address of this one, once the new pod is closed.
// The kernel accepts packets of a connection whatever is closed, and one over UDP exists as long as
// its client sends. If an agent runs, it has done this itself, unless the former pod ended just now, or
// before that agent started.
func endFormer(r *plugin.Request, env *netstate.Env, c *closed) {
	p := r.Session.Paths
	if r.Session.Dry != nil || !hadFormer(p, c.Addrs) {
		return
	}
	r.Session.OnFlush(func(context.Context) error { endNow(r, env, c); return nil })
}

// endNow ends the connections of a former pod.
func endNow(r *plugin.Request, env *netstate.Env, c *closed) {
	var err error
	if c.Close != [2]bool{} && (c.purge || c.reused || hadFormerBefore(r.Session.Paths, c.Addrs)) {
		err = env.Host.Do(func() error { return endFlows(c.Addrs) })
	}
	if err = errors.Join(err, forgetFormer(r.Session.Paths, c.Addrs)); err != nil {
		kernel.Warn(r, errors.New("connections of a former pod may go on: "+err.Error()))
	}
}

func endFlows(addrs []netip.Addr) error {
	former := make(map[netip.Addr]bool)
	for _, a := range addrs {
		former[a] = true
	}
	flows, err := conntrack.Among(former, func(conntrack.Flow) bool { return true })
	if err != nil {
		return err
	}
	return conntrack.End(flows)
}
