// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/daemons/node/lan"
	"github.com/patchbay-net/patchbay/daemons/node/lan/announce"
	"github.com/patchbay-net/patchbay/internal/clock"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/resident"
)

// LoadBalancers are the choices for addresses of Services of type LoadBalancer.
type LoadBalancers struct {
	On bool // Services get addresses, and this node answers for its share of them
	lan.Classes
}

// loadBalancers gives Services addresses, and answers for them on the uplinks of this node.
type loadBalancers struct {
	choices LoadBalancers
	served  *serviceProxy // has the Services, and follows them if it is on
	cluster *lan.Cluster
	keeper  *lan.Keeper
	status  *lanStatus
	moved   chan struct{} // addresses of links may have changed

	mu       sync.Mutex
	speakers map[string]*speaker // by the link's name
	addrs    map[netip.Addr]bool // what they answer for
}

// speaker answers on a link until it is ended.
type speaker struct {
	*announce.Speaker
	end context.CancelFunc
}

func newLoadBalancers(a *Agent) *loadBalancers {
	b := &loadBalancers{
		choices: a.opts.LoadBalancers, served: a.services,
		status: newLANStatus(a), moved: make(chan struct{}, 1), speakers: make(map[string]*speaker),
	}
	if b.choices.On {
		b.cluster = lan.NewCluster(a.opts.Node, b.choices.Classes, clock.SinceBoot, a.services.cluster, !a.opts.Services.On)
		a.services.status.follows.also = &b.status.follows
	}
	connect := func() *connection {
		return &connection{config: a.opts.Config, retry: resident.RetryFirst, observe: func(time.Time) {}}
	}
	b.keeper = &lan.Keeper{
		Cluster: b.cluster, Server: lanServer{acts: connect(), renewals: connect()}, Now: clock.SinceBoot, Announced: b.announced,
		Report: b.reported, Renewed: b.status.renewed,
	}
	b.status.follows.losses = b.cluster.Losses
	return b
}

// sees returns the copies of a kind that something else in the agent follows, too, or none.
func (b *loadBalancers) sees(k lan.Kind) []copies {
	if !b.choices.On {
		return nil
	}
	return []copies{lanKind(b.cluster, k)}
}

// asked stores the result of a request for such objects.
func (b *loadBalancers) asked(k lan.Kind, err error) {
	for _, c := range b.sees(k) {
		b.status.follows.asked(c, err)
	}
}

// watches returns what follows the objects. What serves Services follows them for both.
func (b *loadBalancers) watches() []*kindWatch {
	list := lanWatches(b.cluster)
	if !b.served.choices.On {
		list = append(list, serviceWatches(b.served.cluster, true)...)
	}
	return list
}

// run works until ctx ends. Then other nodes take this node's addresses.
func (b *loadBalancers) run(ctx context.Context, a *Agent) {
	if !b.choices.On {
		return
	}
	b.status.follows.start(ctx, a.opts.Node, &a.api, reconcileEvery, b.watches())
	var wg sync.WaitGroup
	wg.Go(func() {
		resident.Keep(ctx, b.status.unwatched, func() error { return watchAddresses(ctx, b.moved) })
	})
	wg.Go(func() {
		eachOnce(ctx, b.moved, addressesEvery, func() error { return b.follow(ctx, a.mirror.own()) })
	})
	wg.Go(func() { regularly(ctx, func() { resident.Signal(b.moved) }, func() { b.status.tell(b.plan()) }) })
	b.keeper.Run(ctx)
	wg.Wait()
}

// reported stores what came of the last plan.
func (b *loadBalancers) reported(err error) {
	b.status.acted(err)
	b.status.tell(b.plan())
}

func (b *loadBalancers) plan() lan.Plan {
	p, _ := b.keeper.Status()
	return p
}

// announced tells the speakers for which addresses they answer now.
func (b *loadBalancers) announced(addrs map[netip.Addr]bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.addrs = addrs
	for _, s := range b.speakers {
		s.Set(addrs)
	}
}

// errNoNode means that follow must look again soon.
var errNoNode = errors.New("nothing is known of this Node yet")

var errNoUplink = errors.New("no link has an InternalIP of this Node: load balancers' addresses are not answered for on this node")

// follow has a speaker on each link that has an address of this Node, and no other.
func (b *loadBalancers) follow(ctx context.Context, own []netip.Addr) error {
	if len(own) == 0 {
		return errNoNode
	}
	links, err := linksOf(own)
	if err == nil && len(links) == 0 {
		err = errNoUplink
	}
	b.status.unlinked(err)
	if err != nil && len(links) == 0 {
		return err // the speakers go on with what they have
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for name, s := range b.speakers {
		if !slices.Contains(links, name) {
			s.end()
			delete(b.speakers, name)
		}
	}
	for _, name := range links {
		if b.speakers[name] == nil {
			b.speakers[name] = b.speak(ctx, name)
		}
	}
	return nil
}

// speak starts a speaker.
func (b *loadBalancers) speak(ctx context.Context, name string) *speaker {
	ctx, cancel := context.WithCancel(ctx)
	s := &speaker{announce.New(b.keeper.Owns, b.conflict), cancel}
	s.Set(b.addrs)
	go func() {
		resident.Keep(ctx, func(err error) { b.status.unheard(name, err) }, func() error { return s.Run(ctx, name) })
		b.status.unheard(name, nil)
	}()
	return s
}

// conflict notes that another host answers for an address. It is the other node of a failover, for a moment, if its link is slow.
func (b *loadBalancers) conflict(a netip.Addr, by net.HardwareAddr) {
	links, err := nl.Retry(netlink.LinkList)
	ours := func(l netlink.Link) bool { return bytes.Equal(l.Attrs().HardwareAddr, by) }
	if err == nil && !slices.ContainsFunc(links, ours) {
		b.status.conflicted(a, by)
	}
}

// counts returns how many requests this node has answered since its speakers started, and how many announcements it has sent.
func (b *loadBalancers) counts() (answered, announced int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, s := range b.speakers {
		r, n := s.Counts()
		answered, announced = answered+r, announced+n
	}
	return answered, announced
}

// linksOf returns the names of the links that have any of these addresses, sorted.
func linksOf(addrs []netip.Addr) ([]string, error) {
	list, err := nl.Retry(func() ([]netlink.Addr, error) { return netlink.AddrList(nil, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("list the addresses of this node: %w", err)
	}
	names := map[string]bool{}
	for i := range list {
		a, _ := netip.AddrFromSlice(list[i].IP)
		if !slices.Contains(addrs, a.Unmap()) {
			continue
		}
		link, err := netlink.LinkByIndex(list[i].LinkIndex)
		if err != nil {
			return nil, fmt.Errorf("find the link with %s: %w", a, err)
		}
		names[link.Attrs().Name] = true
	}
	return slices.Sorted(maps.Keys(names)), nil
}
