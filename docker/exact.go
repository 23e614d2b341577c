// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/docker/state"
	"github.com/patchbay-net/patchbay/internal/nl"
)

// exact makes the link in a sandbox as it was in the holding namespace: it adds further
// addresses, neighbours, and the routes that Join cannot express. It may be repeated.
func exact(c *nl.Conn, index int, want *state.Snapshot, internal bool) error {
	link, err := c.LinkAt(index)
	if err != nil {
		return err
	}
	have, err := snapshot(c, link)
	if err != nil {
		return err
	}
	for _, a := range want.Addrs {
		if slices.ContainsFunc(have.Addrs, func(x netip.Prefix) bool { return x.Addr() == a.Addr() }) {
			continue
		}
		if err := addAddr(c, link, a); err != nil {
			return err
		}
	}
	for _, n := range want.Neighbours {
		if err := addNeighbour(c, index, n); err != nil {
			return err
		}
	}
	return exactRoutes(c, index, have.Routes, wantedRoutes(want, have, internal))
}

// wantedRoutes are the routes that no address makes. A default route is only wanted if
// Docker has chosen this endpoint for it.
func wantedRoutes(want, have *state.Snapshot, internal bool) (out []state.Route) {
	for i := range want.Routes {
		r := want.Routes[i]
		v6 := r.Dst.Addr().Is6()
		if r.Kernel || isMainDefault(&r, v6) && (internal || !hasDefault(have, v6)) {
			continue
		}
		out = append(out, r)
	}
	return out
}

// hasDefault says whether Docker has given a link a family's default route.
func hasDefault(s *state.Snapshot, v6 bool) bool {
	return slices.ContainsFunc(s.Routes, func(r state.Route) bool { return isMainDefault(&r, v6) && r.Metric != spareMetric })
}

func isMainDefault(r *state.Route, v6 bool) bool {
	return r.Dst.Bits() == 0 && r.Dst.Addr().Is6() == v6 && r.Table == unix.RT_TABLE_MAIN
}

// exactRoutes adds its route before it removes libnetwork's, so that there is always a
// route.
func exactRoutes(c *nl.Conn, index int, have, want []state.Route) error {
	for i := range want {
		w := &want[i]
		if contains(have, w) {
			continue
		}
		if err := c.RouteReplace(toKernel(w, index)); err != nil {
			return fmt.Errorf("add route to %s in table %d: %w", w.Dst, w.Table, err)
		}
		for j := range have {
			h := &have[j]
			if h.Dst != w.Dst || h.Table != w.Table || h.Metric == w.Metric || contains(want, h) {
				continue // another route, or already replaced
			}
			if err := c.RouteDel(toKernel(h, index)); err != nil && !nl.IsNotFound(err) {
				return fmt.Errorf("remove route to %s with metric %d: %w", h.Dst, h.Metric, err)
			}
		}
	}
	return nil
}

// contains compares routes without their protocol: libnetwork makes its own routes from the
// answer to Join.
func contains(list []state.Route, r *state.Route) bool {
	return slices.ContainsFunc(list, func(x state.Route) bool {
		x.Protocol = r.Protocol
		return x == *r
	})
}

func addNeighbour(c *nl.Conn, index int, n state.Neighbour) error {
	mac, err := net.ParseMAC(n.MAC)
	if err != nil {
		return err
	}
	err = c.NeighSet(&netlink.Neigh{LinkIndex: index, State: unix.NUD_PERMANENT, IP: n.Addr.AsSlice(), HardwareAddr: mac})
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("add neighbour %s: %w", n.Addr, err)
	}
	return nil
}
