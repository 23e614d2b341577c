// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"context"

	"github.com/patchbay-net/patchbay/internal/mesh"
	"github.com/patchbay-net/patchbay/plugin/kernel"
)

// strayMeshes are routes, tunnels and facts of whole networks whose agent was uninstalled
// without clearing them. A stopped agent's objects stay: its record exists.
func (c *collector) strayMeshes(ev *evidence) (list []*Stray) {
	options := mesh.Options{Paths: c.Paths}
	m, err := mesh.Open(options)
	if err != nil {
		ev.fail(err)
		return nil
	}
	defer m.Close()
	stale, err := m.Stale()
	ev.fail(err)
	for _, x := range stale {
		s := &Stray{Object: Object{"mesh", x.Name}, State: Dead, Why: x.Why}
		s.remove = func(ctx context.Context, _ *kernel.Kernel) error {
			m, err := mesh.Open(options)
			if err != nil {
				return err
			}
			defer m.Close()
			return m.Remove(ctx, x)
		}
		c.ageless(s, key("mesh", x.Name))
		list = append(list, s)
	}
	return list
}
