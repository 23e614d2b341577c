// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package ptp

import (
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/spec"
)

// Lacking is what `patchbay repair` restores on the host for a living attachment: its
// routes, where none leads to the address. It leaves another attachment's route alone.
func Lacking(env *netstate.Env, rec *record.Record, result *spec.Result) (s netstate.State, err error) {
	if len(rec.Links) == 0 || result == nil {
		return nil, nil
	}
	link, err := env.Link(netstate.Host, rec.Links[0])
	if err != nil || link.Attrs().Alias != rec.Owner.Alias() {
		return nil, nil //nolint:nilerr // without the link there is nothing to route to
	}
	for _, ip := range result.IPs {
		if in := result.Of(ip); in == nil || in.Name != rec.IfName || in.Sandbox == "" {
			continue
		}
		route := routeTo(rec.Links[0], ip.Address.Addr())
		there, err := route.Served(env)
		if err != nil {
			return nil, err
		}
		if !there {
			s = append(s, route)
		}
	}
	return s, nil
}

// repairable makes CHECK advise `patchbay repair`.
func repairable(s netstate.State) {
	for i, o := range s {
		if route, ok := o.(netstate.Route); ok && route.Where == netstate.Host {
			route.Repairable = true
			s[i] = route
		}
	}
}
