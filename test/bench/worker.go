// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os/exec"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/containernetworking/cni/libcni"
)

// confVersion is the newest version that all three sets of plugins support.
const confVersion = "1.0.0"

// worker is one node with one set of plugins.
type worker struct {
	node  node
	cni   *libcni.CNIConfig
	lists map[string]*libcni.NetworkConfigList
	floor *floor
	next  atomic.Int64 // number of the next container
	grown map[string]int
}

func newWorker(n node) (*worker, error) {
	if err := enterWorld(); err != nil {
		return nil, err
	}
	if n.Resident {
		if err := startResident(n.Plugins); err != nil {
			return nil, fmt.Errorf("start the resident process: %w", err)
		}
	}
	w := &worker{
		node:  n,
		cni:   libcni.NewCNIConfig([]string{n.Plugins}, nil),
		lists: map[string]*libcni.NetworkConfigList{},
		grown: map[string]int{},
	}
	return w, nil
}

func (w *worker) do(req request) (rep reply, err error) {
	switch req.Op {
	case "cycle":
		rep.Cycle, err = w.cycle(req.Chain)
	case "count-add", "count-del":
		rep.Counts, err = w.count(req)
	case "grow":
		rep.Costs, err = w.grow(req.Chain, req.N)
	case "burst":
		rep.Cycle, err = w.burst(req)
	case "fill":
		err = fill(req.Chain, req.N)
	case "segment":
		rep.Counts, err = makeSegment()
	case "dhcp":
		err = startDHCP(req.Keeper)
	case "version":
		rep.Costs, err = w.version(req.N)
	case "floor":
		rep.Cycle, err = w.floorCycle(req.Chain)
	case "pod":
		err = w.pod(req)
	case "masquerade":
		err = masquerade(req)
	case "way":
		err = w.way(req)
	case "address":
		rep.Text, err = podAddress(req.Pod)
	case "traffic":
		rep.Rate, err = traffic(req.Pod, req.Chain, req.To, time.Duration(req.N)*time.Millisecond)
	case "stand":
		err = w.stand(req.Chain, req.N)
	case "publish":
		err = w.publish(req.Chain)
	case "policies":
		rep.Text, err = w.enforce(req.Chain, req.N)
	case "account":
		rep.Phases, err = w.account(req.Chain)
	case "leak-netns":
		rep.Counts, err = w.leakNetns(req.Chain, req.N)
	case "leak-kill":
		rep.Counts, err = w.leakKill(req.Chain, req.N)
	default:
		err = fmt.Errorf("unknown operation")
	}
	return rep, err
}

// list returns the configuration of a chain. It parses each configuration once.
func (w *worker) list(chain, version string) (*libcni.NetworkConfigList, error) {
	key := chain + " " + version
	if l := w.lists[key]; l != nil {
		return l, nil
	}
	l, err := conflist(chain, version)
	if err == nil {
		w.lists[key] = l
	}
	return l, err
}

// container returns the parameters of the calls for a new container in that namespace. The
// container publishes one port.
func (w *worker) container(nsPath string) *libcni.RuntimeConf {
	n := int(w.next.Add(1))
	return &libcni.RuntimeConf{
		ContainerID: fmt.Sprintf("bench-%s-%08d", w.node.Name, n),
		NetNS:       nsPath,
		IfName:      "eth0",
		CapabilityArgs: map[string]any{"portMappings": []map[string]any{
			{"hostPort": 10000 + n%50000, "containerPort": 80, "protocol": "tcp"},
		}},
	}
}

// cycle makes, checks and removes one attachment. All cycles use the same namespace, so the time to
// make and delete a namespace does not count.
func (w *worker) cycle(chain string) (c cycle, err error) {
	l, err := w.list(chain, confVersion)
	if err != nil {
		return c, err
	}
	ns, err := sandbox("cycle")
	if err != nil {
		return c, err
	}
	ctx, rt := context.Background(), w.container(ns)
	c.Add, err = timed(func() error { _, err := w.cni.AddNetworkList(ctx, l, rt); return err })
	if err != nil {
		return c, fmt.Errorf("ADD: %w", err)
	}
	c.Check, err = timed(func() error { return w.cni.CheckNetworkList(ctx, l, rt) })
	if err != nil {
		c.Check, c.CheckErr = cost{}, err.Error()
	}
	c.Del, err = timed(func() error { return w.cni.DelNetworkList(ctx, l, rt) })
	if err != nil {
		return c, fmt.Errorf("DEL: %w", err)
	}
	return c, nil
}

// count returns the processes of one ADD or one DEL, by name.
func (w *worker) count(req request) (map[string]int, error) {
	l, err := w.list(req.Chain, confVersion)
	if err != nil {
		return nil, err
	}
	ns, err := sandbox("cycle")
	if err != nil {
		return nil, err
	}
	ctx, rt := context.Background(), w.container(ns)
	add, err := countProcesses(func() error { _, err := w.cni.AddNetworkList(ctx, l, rt); return err })
	if err != nil {
		return nil, err
	}
	del, err := countProcesses(func() error { return w.cni.DelNetworkList(ctx, l, rt) })
	if req.Op == "count-add" {
		return add, err
	}
	return del, err
}

// version calls VERSION of loopback n times. It measures what a process of this set costs before it
// does any work.
func (w *worker) version(n int) ([]cost, error) {
	costs := make([]cost, n)
	for i := range costs {
		cmd := exec.Command(w.node.Plugins + "/loopback")
		cmd.Env = []string{"CNI_COMMAND=VERSION"}
		var err error
		if costs[i], err = timed(cmd.Run); err != nil {
			return nil, err
		}
	}
	return costs, nil
}

// timed returns what f cost: the wall time, and the CPU time of the processes that f started and
// waited for, and of the resident process. The children of those processes count too.
func timed(f func() error) (cost, error) {
	cpu, start := childCPU(), time.Now()
	err := f()
	return cost{Wall: time.Since(start), CPU: childCPU() - cpu}, err
}

func childCPU() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_CHILDREN, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano()+u.Stime.Nano()) + residentCPU()
}
