// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/mesh"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/node"
	"github.com/patchbay-net/patchbay/node/plan"
	"github.com/patchbay-net/patchbay/paths"
)

// nodeCleanCommand is `patchbayd node clean`.
type nodeCleanCommand struct {
	node *nodeCommand
}

// Execute undoes the agent's work on this node, and prints each step.
func (c *nodeCleanCommand) Execute(args []string) error {
	if err := noArgs(args); err != nil {
		return err
	}
	where := paths.Default()
	if err := durable.MakeDir(where.State, "node"); err != nil {
		return err
	}
	dir := node.StateDir(where)
	unlock, err := lockState(context.Background(), dir, 0)
	if err != nil {
		return fmt.Errorf("%w: stop it first, delete the DaemonSet's pod", err)
	}
	defer unlock()
	if err := c.clear(where); err != nil {
		return err
	}
	if err := removeNetwork(where, c.node.ConfDir); err != nil {
		return err
	}
	return errors.Join(os.RemoveAll(filepath.Join(where.Run, node.Service)), os.RemoveAll(dir))
}

func (*nodeCleanCommand) clear(where paths.Paths) error {
	fabric, err := mesh.Open(mesh.Options{Paths: where})
	if err != nil {
		return err
	}
	defer fabric.Close()
	if err := fabric.Clear(context.Background(), plan.Settings{}.Mesh()); err != nil {
		return err
	}
	if err := node.ClearEgress(context.Background(), where); err != nil {
		return err
	}
	printLine("routes to other nodes, tunnels and the firewall's rules for them: removed")
	if err := node.ClearNetworkPolicy(context.Background(), where); err != nil {
		return err
	}
	printLine("network policies: removed, no pod is isolated")
	return nil
}

// removeNetwork removes the network's file, unless pods need it for their DEL.
func removeNetwork(where paths.Paths, confDir string) error {
	path := filepath.Join(confDir, plan.NetworkFile)
	data, err := durable.ReadConf(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !plan.IsOurs(data) {
		return nil
	}
	if err != nil {
		return err
	}
	used, err := inUse(where, plan.PoolOf(data))
	if err != nil {
		return err
	}
	if used {
		printLine("%s stays: pods of this node use it, and their removal needs it; drain the node, then run this again", path)
		return nil
	}
	if err := durable.Remove(path); err != nil {
		return err
	}
	printLine("%s: removed", path)
	return nil
}

// inUse reports whether pods have the network. Pods of the network that ours took over have
// reservations, and no records.
func inUse(where paths.Paths, pool plan.Pool) (bool, error) {
	store := record.New(where.Run)
	defer store.Close()
	records, torn, err := store.Scan(pool.Name)
	if err != nil || len(records)+len(torn) > 0 {
		return err == nil, err
	}
	files, err := os.ReadDir(filepath.Join(cmp.Or(pool.DataDir, filepath.Join(where.CNI, "networks")), pool.Name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	return slices.ContainsFunc(files, func(f fs.DirEntry) bool { _, err := netip.ParseAddr(f.Name()); return err == nil }), nil
}
