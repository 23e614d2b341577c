// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/containernetworking/cni/libcni"
	"golang.org/x/sync/errgroup"
)

// grow attaches containers, each in a namespace of its own, until n are attached. It returns the
// cost of each ADD.
func (w *worker) grow(chain string, n int) ([]cost, error) {
	l, err := w.list(chain, confVersion)
	if err != nil {
		return nil, err
	}
	var costs []cost
	for ; w.grown[chain] < n; w.grown[chain]++ {
		ns, err := sandbox(grown(chain, w.grown[chain]))
		if err != nil {
			return nil, err
		}
		rt := w.container(ns)
		c, err := timed(func() error { _, err := w.cni.AddNetworkList(context.Background(), l, rt); return err })
		if err != nil {
			return nil, fmt.Errorf("ADD number %d: %w", w.grown[chain], err)
		}
		costs = append(costs, c)
	}
	return costs, nil
}

// grown names the namespace of a container that grow attaches.
func grown(chain string, i int) string { return fmt.Sprintf("grow-%s-%d", chain, i) }

// burst attaches req.N containers, with req.Callers callers at once, and then detaches them in the
// same way. Each cost is that of the whole burst.
func (w *worker) burst(req request) (c cycle, err error) {
	l, err := w.list(req.Chain, confVersion)
	if err != nil {
		return c, err
	}
	pods := make([]*libcni.RuntimeConf, req.N)
	for i := range pods {
		ns, err := sandbox(fmt.Sprintf("burst-%d", i))
		if err != nil {
			return c, err
		}
		pods[i] = w.container(ns)
	}
	ctx := context.Background()
	c.Add, err = timed(func() error {
		return each(pods, req.Callers, func(rt *libcni.RuntimeConf) error {
			_, err := w.cni.AddNetworkList(ctx, l, rt)
			return err
		})
	})
	if err != nil {
		return c, fmt.Errorf("ADD: %w", err)
	}
	c.Del, err = timed(func() error {
		return each(pods, req.Callers, func(rt *libcni.RuntimeConf) error { return w.cni.DelNetworkList(ctx, l, rt) })
	})
	if err != nil {
		return c, fmt.Errorf("DEL: %w", err)
	}
	return c, nil
}

func each(pods []*libcni.RuntimeConf, callers int, f func(*libcni.RuntimeConf) error) error {
	var g errgroup.Group
	g.SetLimit(callers)
	for _, rt := range pods {
		g.Go(func() error { return f(rt) })
	}
	return g.Wait()
}

// fill writes n reservations in host-local's format into a network's directory, as n attached
// containers would leave them.
func fill(network string, n int) error {
	dir := filepath.Join("/var/lib/cni/networks", network)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	var last string
	first := binary.BigEndian.Uint32(netip.MustParseAddr("10.128.0.2").AsSlice())
	for i := range n {
		var b [4]byte
		binary.BigEndian.PutUint32(b[:], first+uint32(i))
		last = netip.AddrFrom4(b).String()
		if err := os.WriteFile(filepath.Join(dir, last), fmt.Appendf(nil, "filled-%08d\r\neth0", i), 0o600); err != nil {
			return err
		}
	}
	if last != "" {
		return os.WriteFile(filepath.Join(dir, "last_reserved_ip.0"), []byte(last), 0o600)
	}
	return nil
}

// settle gives the kernel time to finish the work of the last experiment, so that the next one does
// not pay for it.
func settle() { time.Sleep(300 * time.Millisecond) }
