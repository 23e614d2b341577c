// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/cnm/docker/state"
	"github.com/patchbay-net/patchbay/internal/nl"
)

// spareMetric is that of a default route that is put back. Docker does not know of
// it and adds its own with the kernel's metric, which fails beside an equal one.
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

// defaultOf is the one of a family, if there is any.
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

// cede puts the default routes back that a container had when an endpoint joined
// whose interface, which has them now, is about to be taken from it. Docker gave up
// connecting it when the gateway had moved already, and 20.10 does not move it back:
// the container would reach nothing, nor be reached at its ports, which Sweep
// publishes again for the endpoint that has the route.
func (d *Driver) cede(c *nl.Conn, e *state.Endpoint) {
	link, err := find(c, e)
	if err != nil {
		return // there is nothing to take
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
		d.opts.Log("endpoint %.12s: its container has its default route by %s again", e.ID, g.Link)
	}
}

func putSpare(c *nl.Conn, g *state.Gateway) error {
	link, err := c.Link(g.Link)
	if err != nil {
		return fmt.Errorf("put back the one by %s: %w", g.Link, err)
	}
	r := g.Route
	r.Metric = spareMetric
	if err := c.RouteAdd(toKernel(&r, link.Attrs().Index)); err != nil && !errors.Is(err, unix.EEXIST) {
		return fmt.Errorf("put back the one by %s: %w", g.Link, err)
	}
	return nil
}

// leads says whether the default route of a family that the kernel uses is a link's.
func leads(c *nl.Conn, index int, v6 bool) (bool, error) {
	family := families[0]
	if v6 {
		family = families[1]
	}
	at, err := c.DefaultLink(family, true)
	return at == index, err
}
