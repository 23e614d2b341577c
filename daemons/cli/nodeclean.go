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
	"time"

	"github.com/patchbay-net/patchbay/daemons/node"
	"github.com/patchbay-net/patchbay/daemons/node/plan"
	"github.com/patchbay-net/patchbay/internal/clock"
	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/mesh"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/podnet"
	"github.com/patchbay-net/patchbay/internal/record"
)

// nodeCleanCommand is `patchbayd node clean`.
type nodeCleanCommand struct {
	Wait bool `long:"wait" description:"wait until no pod of this node needs the network's file, and remove it too"`
	Stay bool `long:"stay" description:"at the end do nothing until a signal, as a DaemonSet's container must"`

	node *nodeCommand
}

// Execute undoes the agent's work on this node, and prints each step.
func (c *nodeCleanCommand) Execute(args []string) error {
	if err := noArgs(args); err != nil {
		return err
	}
	err := c.clean(paths.Default())
	if err == nil && c.Stay {
		printLine("this node is clean")
		<-c.node.app.ctx.Done()
	}
	return err
}

func (c *nodeCleanCommand) clean(where paths.Paths) error {
	dir := node.StateDir(where)
	unlock, err := lockAgent(context.Background(), dir)
	if err != nil {
		return fmt.Errorf("%w: stop the agent first: delete the DaemonSet's pod on this node", err)
	}
	defer unlock()
	if err := c.clear(where); err != nil {
		return err
	}
	if err := c.removeNetwork(where); err != nil {
		return err
	}
	if err := clearFabric(where); err != nil { // pods that came meanwhile put unreachable routes back
		return err
	}
	return errors.Join(os.RemoveAll(filepath.Join(where.Run, node.Service)), os.RemoveAll(dir))
}

func clearFabric(where paths.Paths) error {
	fabric, err := mesh.Open(mesh.Options{Paths: where})
	if err != nil {
		return err
	}
	defer fabric.Close()
	return fabric.Clear(context.Background(), plan.Settings{}.Mesh())
}

func (*nodeCleanCommand) clear(where paths.Paths) error {
	if err := clearFabric(where); err != nil {
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
	if err := node.ClearServices(context.Background(), where); err != nil {
		return err
	}
	printLine("Services: removed; without kube-proxy, pods of this node reach none")
	return nil
}

// pause is how long clean waits before it looks again whether pods are gone.
const pause = 2 * time.Second

// removeNetwork removes the network's file. If pods need it for their DEL, it waits for them with
// --wait, and otherwise leaves the file.
func (c *nodeCleanCommand) removeNetwork(where paths.Paths) error {
	ctx, path := c.node.app.ctx, filepath.Join(c.node.ConfDir, podnet.File)
	for told := false; ; told = true {
		used, err := removeUnused(where, path)
		switch {
		case err != nil || !used:
			return err
		case !c.Wait:
			printLine("%s stays: pods of this node use it, and their removal needs it; drain the node, then run this again", path)
			return nil
		case !told:
			printLine("%s: pods of this node use it, and their removal needs it; waiting until they are gone: drain the node", path)
		}
		if !clock.Sleep(ctx, pause) {
			return fmt.Errorf("%s stays: %w", path, context.Cause(ctx))
		}
	}
}

// removeUnused removes the network's file, unless pods need it.
func removeUnused(where paths.Paths, path string) (used bool, err error) {
	data, err := durable.ReadConf(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && !podnet.IsOurs(data) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if used, err = inUse(where, podnet.PoolOf(data)); err != nil || used {
		return used, err
	}
	if err := durable.Remove(path); err != nil {
		return false, err
	}
	printLine("%s: removed", path)
	return false, nil
}

// inUse reports whether pods have the network. Pods of the network that ours took over have
// reservations, and no records.
func inUse(where paths.Paths, pool podnet.Pool) (bool, error) {
	store := record.New(where.Run)
	defer store.Close()
	records, torn, err := store.Scan(pool.Name)
	if err != nil || len(records)+len(torn) > 0 {
		return err == nil, err
	}
	files, err := os.ReadDir(filepath.Join(cmp.Or(pool.DataDir, where.Pools()), pool.Name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, err
	}
	return slices.ContainsFunc(files, func(f fs.DirEntry) bool { _, err := netip.ParseAddr(f.Name()); return err == nil }), nil
}
