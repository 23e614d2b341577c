// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/docker/state"
	"github.com/patchbay-net/patchbay/internal/nl"
)

// spareMetric is the metric of a restored default route. Docker does not know of that
// route, and adds its own with the kernel's metric, which would fail if the metrics were
// equal.
const spareMetric = 1 << 20

var families = [...]int{unix.AF_INET, unix.AF_INET6}

// gateways are the default routes that a container uses.
func (d *Driver) gateways(sandbox string) (out []state.Gateway, err error) {
	c, err := d.inside(sandbox)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	for _, family := range families {
		g, err := defaultOf(c, family)
		if err != nil {
			return nil, fmt.Errorf("look for the default route in %s: %w", sandbox, err)
		}
		out = append(out, g...)
	}
	return out, nil
}

// defaultOf is the default route of a family, if there is one.
func defaultOf(c *nl.Conn, family int) ([]state.Gateway, error) {
	index, err := c.DefaultLink(family, true)
	if err != nil || index == 0 {
		return nil, err
	}
	link, err := c.LinkAt(index)
	if err != nil {
		return nil, err
	}
	all, err := routes(c, index)
	i := slices.IndexFunc(all, func(r state.Route) bool { return isMainDefault(&r, family == unix.AF_INET6) })
	if err != nil || i < 0 {
		return nil, err
	}
	return []state.Gateway{{Link: link.Attrs().Name, Route: all[i]}}, nil
}

// restoreGateways restores the default routes that a container had when an endpoint joined.
// The endpoint's interface, which has them now, is about to be removed: Docker has given up
// connecting the endpoint after the gateway moved, and 20.10 does not move it back. The
// container would reach nothing, and could not be reached at its ports, which Sweep
// publishes again for the endpoint that has the route.
func (d *Driver) restoreGateways(c *nl.Conn, e *state.Endpoint) {
	link, err := find(c, e)
	if err != nil {
		return // there is no interface to remove
	}
	for i := range e.Gateways {
		g := &e.Gateways[i]
		if is, err := leads(c, link.Attrs().Index, g.Route.Dst.Addr().Is6()); err != nil || !is || g.Link == link.Attrs().Name {
			continue
		}
		if err := putSpare(c, g); err != nil {
			d.opts.Log("endpoint %.12s: its container has no default route: %v", e.ID, err)
			continue
		}
		d.opts.Log("endpoint %.12s: restored its container's default route via %s", e.ID, g.Link)
	}
}

func putSpare(c *nl.Conn, g *state.Gateway) error {
	link, err := c.Link(g.Link)
	if err != nil {
		return fmt.Errorf("restore the default route via %s: %w", g.Link, err)
	}
	r := g.Route
	r.Metric = spareMetric
	if err := c.RouteAdd(toKernel(&r, link.Attrs().Index)); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("restore the default route via %s: %w", g.Link, err)
	}
	return nil
}

// leads says whether the kernel's default route of a family uses a link.
func leads(c *nl.Conn, index int, v6 bool) (bool, error) {
	family := families[0]
	if v6 {
		family = families[1]
	}
	at, err := c.DefaultLink(family, true)
	return at == index, err
}
