// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package lan

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	served "github.com/patchbay-net/patchbay/daemons/node/services"
	"github.com/patchbay-net/patchbay/internal/services"
)

// fakeServer is an API server: objects with versions, and watches that are late.
type fakeServer struct {
	t   *testing.T
	lag time.Duration // the longest one of an event or a request

	mu      sync.Mutex
	rand    *rand.Rand
	version int
	objects map[string]*stored // by kind and name
	nodes   []*fakeNode
	writes  int
}

// stored is an object: its version, and its JSON without it.
type stored struct {
	kind    fmt.Stringer // a Kind, or one of served
	name    string       // NAMESPACE/NAME
	uid     string
	version int
	holder  string
	service string // of an address's Lease
	status  []netip.Addr
	text    func(o *stored) string
}

func (o *stored) json() string { return o.text(o) }

// fakeNode is a node: a Keeper with its way to the server.
type fakeNode struct {
	*Keeper
	of     *served.Cluster
	server *fakeServer
	name   string
	events chan event
	cancel func()
	done   chan struct{}
	dead   bool // killed: it answers nobody
	cut    bool // nothing comes through
}

type event struct {
	kind   fmt.Stringer
	object string // "": deleted
	name   string
	at     time.Time
}

var errCut = errors.New("the network is cut")

func newServer(t *testing.T, seed uint64, lag time.Duration) *fakeServer {
	return &fakeServer{t: t, lag: lag, rand: rand.New(rand.NewPCG(seed, 1)), objects: map[string]*stored{}, version: 100}
}

// change makes, changes or (text nil) deletes an object, and tells the watchers. Callers hold the lock.
func (s *fakeServer) change(o *stored, deleted bool) {
	s.version++
	key := fmt.Sprint(o.kind, " ", o.name)
	o.version = s.version
	if o.uid == "" {
		o.uid = fmt.Sprint("uid", s.version)
	}
	if deleted {
		delete(s.objects, key)
	} else {
		s.objects[key] = o
	}
	for _, n := range s.nodes {
		n.tell(o, deleted)
	}
}

func (n *fakeNode) tell(o *stored, deleted bool) {
	e := event{kind: o.kind, name: o.name, at: time.Now().Add(n.server.delay())}
	if !deleted {
		e.object = o.json()
	}
	n.events <- e
}

// delay draws how long something takes: mostly a few milliseconds, sometimes up to the lag.
func (s *fakeServer) delay() time.Duration {
	if s.rand.IntN(20) == 0 {
		return time.Duration(s.rand.Int64N(int64(s.lag)))
	}
	return time.Duration(s.rand.Int64N(int64(10 * time.Millisecond)))
}

// set makes or changes an object from outside.
func (s *fakeServer) set(k fmt.Stringer, name, uid string, text func(o *stored) string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o := &stored{kind: k, name: name, uid: uid, text: text}
	if had := s.objects[fmt.Sprint(k, " ", name)]; had != nil && uid == "" {
		o.uid, o.status = had.uid, had.status
	}
	s.change(o, false)
}

func (s *fakeServer) remove(k fmt.Stringer, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if o := s.objects[fmt.Sprint(k, " ", name)]; o != nil {
		s.change(o, true)
	}
}

// start starts a node: it lists, and then follows.
func (s *fakeServer) start(name string) *fakeNode {
	began := time.Now()
	now := func() time.Duration { return time.Since(began) + time.Hour }
	n := &fakeNode{server: s, name: name, of: served.New(name, services.Options{}), events: make(chan event, 1<<16), done: make(chan struct{})}
	n.Keeper = &Keeper{
		Cluster: NewCluster(name, Classes{Unclassed: true}, now, n.of, true), Server: n, Now: now,
		Announced: func(map[netip.Addr]bool) {}, Report: func(error) {}, Renewed: func(error) {},
	}
	ctx, cancel := context.WithCancel(s.t.Context())
	n.cancel = cancel
	s.mu.Lock()
	s.nodes = append(s.nodes, n)
	lists := map[fmt.Stringer][]string{}
	for _, o := range s.objects {
		lists[o.kind] = append(lists[o.kind], o.json())
	}
	s.mu.Unlock()
	for _, k := range []fmt.Stringer{served.Services, served.EndpointSlices, served.ServiceCIDRs, Nodes, ConfigMaps, Leases} {
		if err := n.replace(k, func(yield func([]byte, error) bool) {
			for _, text := range lists[k] {
				if !yield([]byte(text), nil) {
					return
				}
			}
		}); err != nil {
			s.t.Error(err)
		}
	}
	var wg sync.WaitGroup
	wg.Go(func() { n.follow(ctx) })
	wg.Go(func() { n.Run(ctx) })
	go func() { wg.Wait(); close(n.done) }()
	return n
}

// follow gives a node the events, late and in order of each kind.
func (n *fakeNode) follow(ctx context.Context) {
	for {
		var e event
		select {
		case <-ctx.Done():
			return
		case e = <-n.events:
		}
		select {
		case <-ctx.Done():
		case <-time.After(time.Until(e.at)):
		}
		for n.isCut() && ctx.Err() == nil {
			time.Sleep(10 * time.Millisecond)
		}
		if ctx.Err() != nil {
			return
		}
		if e.object == "" {
			namespace, name, _ := strings.Cut(e.name, "/")
			n.remove(e.kind, namespace, name)
		} else if err := n.set(e.kind, []byte(e.object)); err != nil {
			n.server.t.Error(err)
		}
	}
}

// These give an object to the copy that has its kind.
func (n *fakeNode) set(k fmt.Stringer, object []byte) error {
	if k, ok := k.(Kind); ok {
		return n.Cluster.Set(k, object)
	}
	return n.of.Set(k.(served.Kind), object)
}

func (n *fakeNode) remove(k fmt.Stringer, namespace, name string) {
	if k, ok := k.(Kind); ok {
		n.Cluster.Delete(k, namespace, name)
		return
	}
	n.of.Delete(k.(served.Kind), namespace, name)
}

func (n *fakeNode) replace(k fmt.Stringer, list iter.Seq2[[]byte, error]) error {
	if k, ok := k.(Kind); ok {
		return n.Cluster.Replace(k, list)
	}
	return n.of.Replace(k.(served.Kind), list)
}

func (n *fakeNode) isCut() bool {
	n.server.mu.Lock()
	defer n.server.mu.Unlock()
	return n.cut || n.dead
}

// kill ends a node between two instructions.
func (n *fakeNode) kill() {
	n.server.mu.Lock()
	n.dead = true
	n.server.nodes = slices.DeleteFunc(n.server.nodes, func(o *fakeNode) bool { return o == n })
	n.server.mu.Unlock()
	n.cancel()
	<-n.done
}

// stop ends a node as an update does.
func (n *fakeNode) stop() {
	n.cancel()
	<-n.done
	n.kill()
}

func (n *fakeNode) answers(a netip.Addr) bool {
	n.server.mu.Lock()
	dead := n.dead
	n.server.mu.Unlock()
	return !dead && n.Owns(a)
}

// request does something at the server, with delays on the way there and back.
func (n *fakeNode) request(ctx context.Context, do func() error) error {
	s := n.server
	pause := func() error {
		s.mu.Lock()
		d := s.delay()
		s.mu.Unlock()
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(d):
		}
		if n.isCut() {
			<-ctx.Done()
			return errCut
		}
		return nil
	}
	if err := pause(); err != nil {
		return err
	}
	s.mu.Lock()
	s.writes++
	err := do()
	s.mu.Unlock()
	return errors.Join(pause(), err) // the answer may be lost, too
}

func (n *fakeNode) lease(name string) *stored {
	return n.server.objects[fmt.Sprint(Leases, " ", Namespace+"/"+name)]
}

// Session implements Server.
func (n *fakeNode) Session(ctx context.Context, node string) (id, version string, err error) {
	err = n.request(ctx, func() error {
		if o := n.lease(SessionName(node)); o != nil {
			id, version = o.holder, strconv.Itoa(o.version)
		}
		return nil
	})
	return id, version, err
}

// Renew implements Server.
func (n *fakeNode) Renew(ctx context.Context, node, id, version string, _ time.Duration) (newer string, err error) {
	l, err := n.write(ctx, SessionName(node), "", Holding{Holder: id, Version: version})
	return l.Version, err
}

// End implements Server.
func (n *fakeNode) End(ctx context.Context, node, version string) error {
	return n.delete(ctx, SessionName(node), version)
}

// Put implements Server.
func (n *fakeNode) Put(ctx context.Context, l Holding) (Holding, error) {
	return n.write(ctx, LeaseName(l.Addr), l.Service.String(), l)
}

// Remove implements Server.
func (n *fakeNode) Remove(ctx context.Context, l Holding) error {
	return n.delete(ctx, LeaseName(l.Addr), l.Version)
}

func (n *fakeNode) write(ctx context.Context, name, service string, l Holding) (Holding, error) {
	err := n.request(ctx, func() error {
		old := n.lease(name)
		if old == nil && l.Version != "" || old != nil && strconv.Itoa(old.version) != l.Version {
			return ErrConflict
		}
		o := &stored{kind: Leases, name: Namespace + "/" + name, holder: l.Holder, service: service, text: leaseText}
		if service != "" {
			o.service += " " + l.UID
		}
		if old != nil {
			o.uid = old.uid
		}
		n.server.change(o, false)
		l.Version, l.Object = strconv.Itoa(o.version), o.uid
		return nil
	})
	return l, err
}

func leaseText(o *stored) string {
	service, uid, _ := strings.Cut(o.service, " ")
	return fmt.Sprintf(`{"metadata":{"namespace":%q,"name":%q,"uid":%q,"resourceVersion":"%d","annotations":{"patchbay.net/service":%q,"patchbay.net/service-uid":%q}},
		"spec":{"holderIdentity":%q,"leaseDurationSeconds":2}}`, Namespace, strings.TrimPrefix(o.name, Namespace+"/"), o.uid, o.version, service, uid, o.holder)
}

func (n *fakeNode) delete(ctx context.Context, name, version string) error {
	return n.request(ctx, func() error {
		o := n.lease(name)
		if o == nil || strconv.Itoa(o.version) != version {
			return ErrConflict
		}
		gone := *o
		n.server.change(&gone, true)
		return nil
	})
}

// Write implements Server.
func (n *fakeNode) Write(ctx context.Context, svc *Service, status []netip.Addr) error {
	return n.request(ctx, func() error {
		o := n.server.objects[fmt.Sprint(served.Services, " ", svc.Name)]
		if o == nil || strconv.Itoa(o.version) != svc.Version {
			return ErrConflict
		}
		now := *o
		now.status = status
		n.server.change(&now, false)
		return nil
	})
}

// service makes a Service of both families. more are fields of its spec.
func (s *fakeServer) service(name, more, annotations string) {
	s.set(served.Services, "shop/"+name, "", serviceText(name, more, annotations))
}

func serviceText(name, more, annotations string) func(o *stored) string {
	return func(o *stored) string {
		var ingress []string
		for _, a := range o.status {
			ingress = append(ingress, fmt.Sprintf(`{"ip":%q,"ipMode":"VIP"}`, a))
		}
		return fmt.Sprintf(`{"metadata":{"namespace":"shop","name":%q,"uid":%q,"resourceVersion":"%d","annotations":{%s}},
			"spec":{"type":"LoadBalancer","clusterIPs":["10.96.0.9","fd00:96::9"]%s},"status":{"loadBalancer":{"ingress":[%s]}}}`,
			name, o.uid, o.version, annotations, more, strings.Join(ingress, ","))
	}
}

// slice makes the slices of a Service, with a ready endpoint on each node.
func (s *fakeServer) slice(service string, nodes ...string) {
	for family, addr := range map[string]string{"IPv4": "10.244.0.%d", "IPv6": "fd00:244::%d"} {
		var list []string
		for i, n := range nodes {
			list = append(list, fmt.Sprintf(`{"addresses":[%q],"nodeName":%q}`, fmt.Sprintf(addr, i+1), n))
		}
		name := service + "-" + strings.ToLower(family)
		s.set(served.EndpointSlices, "shop/"+name, "", func(*stored) string {
			return fmt.Sprintf(`{"metadata":{"namespace":"shop","name":%q,"labels":{"kubernetes.io/service-name":%q}},"addressType":%q,"ports":[{"name":"","port":80}],"endpoints":[%s]}`,
				name, service, family, strings.Join(list, ","))
		})
	}
}

func (s *fakeServer) node(name, more string) {
	s.set(Nodes, "/"+name, "", func(*stored) string {
		return fmt.Sprintf(`{"metadata":{"name":%q%s},"spec":{},"status":{"addresses":[{"type":"InternalIP","address":"192.0.2.1"}]}}`, name, more)
	})
}

func (s *fakeServer) pools(lines string) {
	s.set(ConfigMaps, Namespace+"/"+PoolsName, "", func(*stored) string {
		return fmt.Sprintf(`{"metadata":{"namespace":%q,"name":%q},"data":{"lan":%q}}`, Namespace, PoolsName, lines)
	})
}

// statuses returns the addresses of each Service.
func (s *fakeServer) statuses() map[string][]netip.Addr {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[string][]netip.Addr{}
	for _, o := range s.objects {
		if o.kind == served.Services {
			out[o.name] = o.status
		}
	}
	return out
}
