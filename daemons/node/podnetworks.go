// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"

	"github.com/patchbay-net/patchbay/daemons/node/networks"
	"github.com/patchbay-net/patchbay/internal/clock"
	netplans "github.com/patchbay-net/patchbay/internal/npwg/attached"
	netmirror "github.com/patchbay-net/patchbay/internal/npwg/mirror"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/podnet"
	"github.com/patchbay-net/patchbay/internal/resident"
)

// PodNetworks are the choices for further networks of pods.
type PodNetworks struct {
	podnet.Further // of the pods' network

	// Annotations writes the annotations of this node's pods to files, for a container runtime that does not pass them to plugins.
	Annotations bool
}

const (
	// mirrorRest is the shortest time between two looks for changed definitions: an ADD may be waiting for one.
	mirrorRest = 100 * time.Millisecond

	// statusRest is the shortest time between two looks for new plans. Each new pod changes some.
	statusRest = 250 * time.Millisecond
)

// podNetworks writes what ADDs need to attach pods to further networks, and tells the API server what ADDs have attached.
type podNetworks struct {
	choices PodNetworks
	paths   paths.Paths
	api     *connection
	cluster *networks.Cluster
	status  *podNetworkStatus

	changed   chan struct{} // the cluster has changed
	unwritten chan struct{} // the files may differ from the cluster
	untold    chan struct{} // statuses or problems may have changed

	known [2]uint64 // the generations that the files have; only follow uses it

	// Only publish uses these fields.
	pause time.Duration // after a failure
	sent  networks.Sent
}

func newPodNetworks(a *Agent) *podNetworks {
	p := &podNetworks{
		choices: a.opts.Networks, paths: a.opts.Paths, api: &a.api, pause: resident.RetryFirst,
		changed: make(chan struct{}, 1), unwritten: make(chan struct{}, 1), untold: make(chan struct{}, 1),
	}
	p.cluster = networks.NewCluster(a.opts.Node, p.changed)
	p.status = newPodNetworkStatus(a)
	p.status.follows.losses = p.cluster.Losses
	return p
}

// follow handles a change of the cluster. The pods change more often than the definitions, and all files are compared for a change.
func (p *podNetworks) follow() error {
	now := [2]uint64{p.cluster.Generation(networks.Definitions)}
	if p.choices.Annotations {
		now[1] = p.cluster.Generation(networks.Pods)
	}
	if now != p.known {
		p.known = now
		resident.Signal(p.unwritten)
	}
	resident.Signal(p.untold)
	return nil
}

// signal says that everything may have changed.
func (p *podNetworks) signal() {
	resident.Signal(p.unwritten)
	resident.Signal(p.untold)
}

// run works until ctx ends. The files stay, because ADDs use them.
func (p *podNetworks) run(ctx context.Context, a *Agent) {
	if !p.choices.On {
		p.status.unwritten(netmirror.Remove(p.paths))
		return
	}
	p.status.follows.start(ctx, a.opts.Node, p.api, reconcileEvery, podNetworkWatches(p.cluster, a.opts.Node))
	var wg sync.WaitGroup
	wg.Go(func() {
		resident.Keep(ctx, p.status.unwatched, func() error { return watchPlans(ctx, p.paths, func() { resident.Signal(p.untold) }) })
	})
	wg.Go(func() { eachOnce(ctx, p.changed, 0, p.follow) })
	wg.Go(func() { eachOnce(ctx, p.unwritten, mirrorRest, func() error { return p.write(ctx) }) })
	wg.Go(func() { eachOnce(ctx, p.untold, statusRest, func() error { return p.publish(ctx) }) })
	regularly(ctx, p.signal, func() {})
	wg.Wait()
}

// write makes the files those of the cluster. Before the lists, the files of the last run are the better ones.
func (p *podNetworks) write(ctx context.Context) error {
	if !p.cluster.Listed(networks.Definitions) || p.choices.Annotations && !p.cluster.Listed(networks.Pods) {
		return nil
	}
	s := netmirror.State{Definitions: p.cluster.Definitions()}
	if p.choices.Annotations {
		for _, pod := range p.cluster.Pods() {
			if pod.Exempt {
				continue
			}
			s.Pods = append(s.Pods, netmirror.Pod{Pod: pod.Pod, Networks: pod.Networks})
		}
	}
	changed, err := netmirror.Write(p.paths, s)
	if p.status.wrote(changed, err); err != nil {
		clock.Sleep(ctx, resident.Jitter(retryEvery))
	}
	return err
}

// publish writes the statuses that the API server does not have yet, and tells what is wrong with pods.
func (p *podNetworks) publish(ctx context.Context) error {
	plans, errs := netplans.List(p.paths)
	netplans.InOrder(p.paths, plans)
	pods := p.cluster.Pods()
	list, wrong := networks.Statuses(plans, pods)
	p.status.unread(errors.Join(append(errs, wrong...)...))
	err := p.tell(ctx, p.sent.Due(list, pods, time.Now()))
	p.judge(list, pods)
	if p.status.untold(err); err == nil {
		p.pause = resident.RetryFirst
		return nil
	}
	clock.Sleep(ctx, resident.Jitter(p.pause))
	p.pause = min(2*p.pause, resident.RetryMost)
	return err
}

// judge finds out which pods wait for networks that they cannot get.
func (p *podNetworks) judge(done []networks.Status, pods []networks.Pod) {
	if !p.cluster.Listed(networks.Definitions) {
		return
	}
	j := networks.Judge{
		Definitions: p.cluster.Definitions(), Attached: make(map[string]bool, len(done)), Isolated: p.choices.Isolated, Now: time.Now(),
	}
	for i := range done {
		j.Attached[done[i].Pod.UID] = true
	}
	problems := j.Problems(pods)
	for i := range pods {
		if err := p.sent.Refused(&pods[i]); err != nil {
			problems = append(problems, networks.Problem{Pod: pods[i], Text: err.Error()})
		}
	}
	p.status.judged(len(j.Definitions), len(done), problems)
}

// watchPlans calls changed when an ADD or DEL changes a plan, until ctx ends.
func watchPlans(ctx context.Context, p paths.Paths, changed func()) error {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch %s: %w", netplans.Dir(p), err)
	}
	defer w.Close() //nolint:errcheck // nothing was written
	err = errors.Join(netplans.MakeDir(p), w.Add(netplans.Dir(p)))
	if err == nil {
		err = eachEvent(ctx, w, changed, func(e fsnotify.Event) error {
			if changed(); e.Name == netplans.Dir(p) {
				return errDirGone
			}
			return nil
		})
	}
	if err != nil {
		return fmt.Errorf("watch %s: %w", netplans.Dir(p), err)
	}
	return nil
}

var errDirGone = errors.New("the directory was removed or changed")
