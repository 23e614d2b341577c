// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"k8s.io/client-go/rest"

	"github.com/patchbay-net/patchbay/daemons/internal/doubt"
	"github.com/patchbay-net/patchbay/daemons/internal/fabric"
	"github.com/patchbay-net/patchbay/daemons/internal/flows"
	"github.com/patchbay-net/patchbay/daemons/node/lan"
	"github.com/patchbay-net/patchbay/daemons/node/plan"
	"github.com/patchbay-net/patchbay/daemons/node/policies"
	"github.com/patchbay-net/patchbay/daemons/node/services"
	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/mesh"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/podnet"
	"github.com/patchbay-net/patchbay/internal/resident"
)

// Options configure an Agent.
type Options struct {
	plan.Settings

	// Config returns how to reach the API server. version differs from the last call's if the
	// configuration has changed. The agent calls Config before each request.
	Config func() (c *rest.Config, version string, err error)

	Fabric  fabric.Mesh
	Paths   paths.Paths // State holds the agent's directory
	ConfDir string      // directory of CNI configurations, such as /etc/cni/net.d

	// MasqueradeConfig is the operator's file with the destinations to which pods keep their
	// address. If it is "", there is no such file.
	MasqueradeConfig string

	// Egress gives the pods of a namespace the source addresses of EgressAnnotation when their
	// packets leave the node.
	Egress bool

	NetworkPolicy NetworkPolicy
	Services      Services
	LoadBalancers LoadBalancers
	Networks      PodNetworks
	Flows         Flows

	// Install copies the plugins to the runtime's directory. If it is nil, the agent does not
	// install them.
	Install func(context.Context) error

	Log func(format string, args ...any)
}

// StateDir returns the agent's directory.
func StateDir(p paths.Paths) string { return filepath.Join(p.State, Service) }

// Agent is the agent of one node.
type Agent struct {
	opts    Options
	mirror  mirror
	api     connection
	trouble trouble
	events  events
	metrics *metrics
	exempt  exemptions
	egress  *egress
	policy  *networkPolicy

	services *serviceProxy
	balancer *loadBalancers
	networks *podNetworks
	flows    *flows.Service // nil: connections are not looked at

	nodes  chan struct{} // the Nodes changed
	kernel chan struct{} // the kernel's state changed
	keyed  chan struct{} // this Node may have another key
	said   chan struct{} // something is wrong, or well again
	retry  time.Duration // the mean pause after a failure

	// Only tend uses these fields.
	installed bool
	trim      time.Time // when memory may be given back again
	searched  bool      // it has searched for files that hide the network's
	saved     []byte    // content of the cache's file
	fabric    fabric.Carrier
}

// New makes an agent, and loads the Nodes that the last run saved.
func New(opts Options) (*Agent, error) {
	if err := durable.MakeDir(opts.Paths.State, Service); err != nil {
		return nil, fmt.Errorf("open state: %w", err)
	}
	a := &Agent{
		opts: opts, nodes: make(chan struct{}, 1), kernel: make(chan struct{}, 1), keyed: make(chan struct{}, 1), said: make(chan struct{}, 1),
		retry: retryEvery,
	}
	a.mirror = mirror{self: opts.Node, changed: func() { resident.Signal(a.nodes); resident.Signal(a.keyed) }, now: time.Now}
	a.mirror.nodes = doubt.Table[plan.Node]{Keep: grace, Now: func() time.Time { return a.mirror.now() }}
	a.trouble.problems.Log = opts.Log
	emit := a.events.wake()
	a.trouble.changed = func() { emit(); resident.Signal(a.said) }
	a.metrics = newMetrics(a)
	a.fabric = fabric.Carrier{Mesh: opts.Fabric, Applied: a.metrics.Applied}
	a.api = connection{config: opts.Config, retry: resident.RetryFirst, observe: a.observe}
	a.trouble.set(cacheFailed, a.load())
	a.exempt = exemptions{
		file: opts.MasqueradeConfig, copy: filepath.Join(StateDir(opts.Paths), exemptFile), every: exemptEvery,
		changed: func() { resident.Signal(a.nodes) }, report: func(err error) { a.trouble.set(masqueradeConfig, err) }, log: opts.Log,
	}
	a.exempt.load()
	a.egress = newEgress(opts.Paths, func(err error) { a.trouble.set(egressFailed, err) }, opts.Log)
	if opts.Egress {
		if err := a.egress.load(); err != nil {
			opts.Log("egress: %v: the API server has it, too", err)
		}
	}
	a.policy = newNetworkPolicy(&a.opts, newPolicyStatus(a))
	a.policy.changed = func() { resident.Signal(a.nodes) }
	a.services = newServiceProxy(&a.opts, newServiceStatus(a))
	a.services.changed = a.policy.changed
	a.trouble.set(servicesUnsaved, a.services.recollect())
	a.balancer = newLoadBalancers(a)
	a.metrics.watch(a.policy, a.services)
	a.metrics.Register(a.balancer.status.failures, lanCollector{a.balancer})
	a.networks = newPodNetworks(a)
	a.metrics.Register(a.networks.status.files, a.networks.status.statuses, podNetworkCollector{a.networks})
	if a.flows = a.newFlows(); a.flows != nil {
		a.metrics.Register(a.flows)
	}
	return a, nil
}

const (
	reconcileEvery = fabric.ReconcileEvery
	retryEvery     = 3 * time.Second // after a failure
)

// Run works until ctx ends. Routes, rules and files stay, because pods use them.
func (a *Agent) Run(ctx context.Context) {
	limitMemory()
	resident.TrimMemory(a.opts.Paths.Proc) //nolint:errcheck // then it stays as large
	var wg sync.WaitGroup
	go a.followNodes(ctx) // the library ends it some seconds later
	go a.followNamespaces(ctx)
	wg.Go(func() { (&fabric.Loop{Apply: a.apply, Retry: a.retry, Kernel: a.kernel, World: a.nodes}).Run(ctx) })
	wg.Go(func() { a.events.tend(ctx, a) })
	wg.Go(func() { a.exempt.follow(ctx) })
	wg.Go(func() { a.publish(ctx) })
	wg.Go(func() { a.report(ctx) })
	wg.Go(func() { a.egress.run(ctx, a) })
	wg.Go(func() { a.policy.run(ctx, a) })
	wg.Go(func() { a.services.run(ctx, a) })
	wg.Go(func() { a.balancer.run(ctx, a) })
	wg.Go(func() { a.networks.run(ctx, a) })
	if a.flows != nil {
		wg.Go(func() { a.flows.Run(ctx) })
	}
	wg.Go(func() {
		fabric.Follow(ctx, a.opts.Fabric, func() { resident.Signal(a.kernel) },
			func(err error) { a.trouble.set(kernelUnwatched, err) }, func(err error) { a.trouble.set(pathsUnprobed, err) })
	})
	wg.Wait()
}

// followNodes keeps the Nodes up to date.
func (a *Agent) followNodes(ctx context.Context) {
	trusted := func() error { return nil } // the mirror has refused other lists
	shared := slices.Concat(a.policy.sees(policies.Nodes), a.services.sees(services.Nodes), a.balancer.sees(lan.Nodes))
	a.mirror.source().sharing(shared, trusted).follow(ctx, &a.api, func(err error) {
		a.asked(err)
		a.policy.asked(policies.Nodes, err)
		a.services.asked(services.Nodes, err)
		a.balancer.asked(lan.Nodes, err)
	})
}

// followNamespaces keeps the Namespaces up to date, if anything needs them.
func (a *Agent) followNamespaces(ctx context.Context) {
	spaces := &a.egress.spaces
	switch {
	case !a.opts.Egress && a.opts.NetworkPolicy.Off:
		return
	case !a.opts.Egress:
		spaces = &namespaces{changed: func() {}, wanted: map[string]string{}, absent: map[string]bool{}}
	}
	trusted := func() error { return hasNode(ctx, &a.api, a.opts.Node) }
	spaces.source().sharing(a.policy.sees(policies.Namespaces), trusted).follow(ctx, &a.api, func(err error) {
		a.policy.asked(policies.Namespaces, err)
		if err != nil && a.opts.Egress {
			err = fmt.Errorf("changes of annotations %s are not seen: %w", EgressAnnotation, advise("Namespaces", err))
		}
		a.trouble.set(namespacesFailed, err)
	})
}

// apply makes the kernel and the files of this node equal to the plan. It never waits for the API server. If all is set, it compares
// the kernel even if the plan has not changed. done means that nothing failed and nothing was left
// out.
func (a *Agent) apply(ctx context.Context, all bool) (done bool) {
	v := a.mirror.view()
	if len(v.nodes) > 0 { // also those of a list that lacks this Node: they get routes
		a.trouble.set(cacheFailed, a.save(v)) // before the routes: a start without the API server uses those of the file
	}
	settings := a.opts.Settings
	settings.Exempt = a.exempt.now()
	p := plan.Make(settings, v.nodes)
	if v.unregistered && len(v.nodes) > 0 && p.Ready {
		p.Problems = append(p.Problems, a.forgotten())
	}
	if len(v.nodes) > 0 || v.unregistered {
		a.trouble.nodes(a.opts.Node, p.Problems)
	}
	err := a.prepare(ctx, p, all)
	if err == nil && time.Now().After(a.trim) {
		if !v.synced.IsZero() { // else again after the first answer, which takes memory, too
			a.trim = time.Now().Add(reconcileEvery / 2)
		}
		resident.TrimMemory(a.opts.Paths.Proc) //nolint:errcheck // then it stays as large
	}
	if a.metrics.Turned(err, p.Peers) {
		resident.Signal(a.said)
	}
	return !p.Ready || err == nil && a.fabric.Done()
}

func (a *Agent) forgotten() plan.Problem {
	return plan.Problem{
		Reason: plan.NoNode, Nodes: []string{a.opts.Node},
		Text: fmt.Sprintf("the API server has no Node %s any more: its network stays as it is; restart the kubelet to register it again", a.opts.Node),
	}
}

// install installs the plugins once. A new release starts a new agent, which installs the plugins of that release.
func (a *Agent) install(ctx context.Context) (err error) {
	if !a.installed && a.opts.Install != nil {
		err = a.opts.Install(ctx)
		a.trouble.set(installFailed, err)
	}
	a.installed = err == nil
	return err
}

// prepare applies a plan, and returns why the node is not ready for pods. It writes the network's
// file last, because pods start as soon as that file exists.
func (a *Agent) prepare(ctx context.Context, p *plan.Plan, all bool) error {
	unsafe := a.policy.isolate() // at once, because a network of an earlier run may let pods start
	if !p.Ready {
		return a.waiting(p)
	}
	uplink, err := a.opts.Fabric.UplinkMTU(p.Self.Underlay)
	if err == nil {
		err = a.fabric.Carry(ctx, p.Self, p.Peers, all)
	}
	a.trouble.set(meshFailed, err)
	if uplink == 0 || errors.Is(err, mesh.ErrSelf) {
		return err
	}
	if err := a.install(ctx); err != nil {
		return err
	}
	first := !exists(filepath.Join(a.opts.ConfDir, podnet.File))
	if err := cmp.Or(unsafe, a.policy.admit(first), a.services.admit(first)); err != nil {
		return err
	}
	p.Network.MTU = mesh.ContainerMTU(uplink, a.opts.Transport, p.Self.Underlay, p.Self.Blocks)
	err = a.configure(&p.Network)
	a.trouble.set(networkFailed, err)
	a.trouble.set(podCIDRChanged, a.outside(p.Network))
	if err == nil && (all || !a.searched) {
		a.searched = true
		a.trouble.set(networkHidden, a.uncover())
	}
	return err
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// waiting returns why the node cannot be prepared yet.
func (a *Agent) waiting(p *plan.Plan) error {
	for i := range p.Problems {
		if p.Problems[i].Concerns(a.opts.Node) {
			return errors.New(p.Problems[i].Text)
		}
	}
	return errNoState
}
