// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/daemons/node/policies"
	fire "github.com/patchbay-net/patchbay/daemons/test/probe"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/test/draw"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/netns"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/all"
	"github.com/patchbay-net/patchbay/spec"
)

// TestPolicyChurnOfANode changes everything while pods connect to a server that a policy guards: 100 pods
// a second come and go, some of this node, attached by the real chain to namespaces of their own, and
// some of another node, which the API alone has. Few addresses are used, so each soon belongs to a
// pod with another role. Labels of pods and namespaces change, and other policies come and go. The
// server's policy allows friends from namespaces that are trusted. A friend that lives all the time must
// lose nothing, and a stranger must never get an answer. The same holds for each pod of this node, from
// its ADD on, whatever pod had its address before. PATCHBAY_POLICY_CHURN says for how long, as in
// `make nightly`.
func TestPolicyChurnOfANode(t *testing.T) {
	length := draw.Time(t, "PATCHBAY_POLICY_CHURN", 2*time.Second, 6*time.Second)
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(32)) // a thread that waits in poll keeps its processor for some ms
	c := newChurn(t)
	ctx, cancel := context.WithCancel(t.Context())
	began := time.Now()
	var work sync.WaitGroup
	for i := range churnAtOnce {
		work.Go(func() { c.localPods(ctx, i, began) })
	}
	work.Go(func() { c.remotePods(ctx, began) })
	work.Go(func() { c.namespaces(ctx) })
	work.Go(func() { c.policies(ctx) })
	work.Go(func() { c.stream(ctx, c.friend) })
	work.Go(func() { c.stream(ctx, c.stranger) })
	work.Go(func() { c.talk(ctx, "tcp") })
	work.Go(func() { c.talk(ctx, "udp") })
	for time.Sleep(length); c.reused.Load() < 5 && time.Since(began) < length+churnPatience; { // on a busy machine
		time.Sleep(10 * time.Millisecond)
	}
	cancel()
	work.Wait()
	c.report(time.Since(began))
}

// The network has 13 addresses for the pods of this node, of which three live all the time.
const (
	churnRange    = "198.18.61.0/28"
	churnPeers    = "198.18.62.0/26" // of node n2
	churnPort     = 8080
	churnFrom     = 4000 // the port of all datagrams: a connection of a former pod looks like one of the new pod
	churnAtOnce   = 8
	churnTeams    = 5 // namespaces whose label `trusted` changes
	churnPatience = 40 * time.Second
)

// churn is the state of TestPolicyChurn.
type churn struct {
	*policyLab
	runtime *chain.Runtime
	list    *chain.List

	server, friend, stranger *churnPod

	locals, remotes, reused, reusedRemote, labelled, spaced, changed atomic.Int64
	tried, answered, talked, shots                                   atomic.Int64 // by the friend, and by the stranger
	allowed, kept, denied, refused                                   atomic.Int64 // pods, and what they sent

	mu     sync.Mutex
	roles  map[netip.Addr]string // of the last pod with an address
	first  []time.Duration       // until an allowed pod got its first answer
	wrongs []string
}

// wrong notes what should not have happened.
func (c *churn) wrong(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wrongs = append(c.wrongs, fmt.Sprintf(format, args...))
}

func newChurn(t *testing.T, change ...func(*Options)) *churn {
	nettest.Need(t, nettest.Program("nft"))
	c := &churn{policyLab: newPolicyLab(t), roles: map[netip.Addr]string{}}
	c.dir = "/run/churn"                                                                            // in memory, as /run of a node
	must(t, os.WriteFile("/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_close", []byte("1"), 0)) // the streams leave 1,000 entries a second
	p := paths.Default()
	p.Run, p.State, p.CNI = c.dir, c.dir, c.dir
	for i, cidr := range []string{churnRange, churnPeers} {
		n := kubeNode(1 + i)
		n.Spec.PodCIDR, n.Spec.PodCIDRs = cidr, []string{cidr}
		c.api.set(n)
	}
	c.runtime = chain.New(
		chain.WithPath("/nonexistent"), chain.WithConfDir(c.dir+"/net.d"), chain.WithCacheDir(c.dir), chain.WithRunDir(c.dir),
		chain.WithInvoker(&plugin.Builtin{NewSession: func() *plugin.Session {
			s := plugin.NewSession(all.Plugins())
			s.Paths = p
			return s
		}}))
	c.api.labelled("shop", map[string]string{"name": "shop"})
	for _, s := range churnSpaces {
		c.api.labelled(s.name, s.labels())
	}
	for i := range churnTeams {
		c.api.labelled(fmt.Sprint("team", i), map[string]string{"trusted": "yes"})
	}
	for _, s := range churnStanding {
		c.networkPolicy(s)
	}
	c.start(func(o *Options) {
		o.Paths, o.Cluster = p, []netip.Prefix{netip.MustParsePrefix("198.18.60.0/22")}
		for _, f := range change {
			f(o)
		}
	})
	c.await("ready", func() bool { return c.Ready() == nil && c.programs() > 0 })
	var err error
	c.list, err = c.runtime.Load("pods")
	must(t, err)
	c.server = c.longLived("shop", "server", "app=server")
	c.friend = c.longLived("visitors", "friend", "role=friend")
	c.stranger = c.longLived("visitors", "stranger", "role=stranger")
	c.serve()
	c.await("an answer to the friend", func() bool { return c.reaches(c.friend) })
	return c
}

// serve starts the server's programs.
func (c *churn) serve() {
	must(c.T, c.server.ns.Do(func() error {
		s, err := fire.Serve(fmt.Sprint(":", churnPort))
		if err != nil {
			return err
		}
		c.Cleanup(func() { s.Close() }) //nolint:errcheck // a test
		echo, err := net.Listen("tcp", fmt.Sprint(":", churnPort+1))
		if err != nil {
			return err
		}
		c.Cleanup(func() { echo.Close() }) //nolint:errcheck // a test
		go func() {
			if conn, err := echo.Accept(); err == nil {
				io.Copy(conn, conn) //nolint:errcheck // the friend sees it
			}
		}()
		return nil
	}))
}

// reaches reports whether a pod gets an answer of the server.
func (c *churn) reaches(p *churnPod) bool {
	ctx, cancel := context.WithTimeout(c.Context(), 20*time.Millisecond)
	defer cancel()
	fired, err := c.fire(ctx, p, 20*time.Millisecond, 20*time.Millisecond, nil, "tcp")
	must(c.T, err)
	return fired[0].Answers > 0
}

// fire fires at the server from a pod.
func (c *churn) fire(ctx context.Context, p *churnPod, interval, held time.Duration, note func(int, time.Time, bool), networks ...string) (fired []fire.Fired, err error) {
	var targets []fire.Target
	for _, n := range networks {
		targets = append(targets, fire.Target{Network: n, Addr: netip.AddrPortFrom(c.server.addr, churnPort), From: churnFrom})
	}
	err = p.ns.Do(func() (err error) {
		fired, err = fire.FireBriefly(ctx, interval, held, note, targets...)
		return err
	})
	return fired, err
}

// report prints what happened, and fails for what was wrong.
func (c *churn) report(took time.Duration) {
	c.Helper()
	per := func(n *atomic.Int64) string {
		return fmt.Sprintf("%d (%.0f/s)", n.Load(), float64(n.Load())/took.Seconds())
	}
	c.Logf("in %v: %s pods of this node, %d of them with an address of a pod that was treated otherwise; %s pods of another node, %d of them so; %s labels of pods, %s of namespaces and %s policies changed; %d programs",
		took.Round(time.Second), per(&c.locals), c.reused.Load(), per(&c.remotes), c.reusedRemote.Load(), per(&c.labelled), per(&c.spaced), per(&c.changed), c.programs())
	c.Logf("the friend: %d connections, %d answered, %d packets and answers of two that lasted; the stranger: %d connections and datagrams",
		c.tried.Load(), c.answered.Load(), c.talked.Load(), c.shots.Load())
	c.Logf("%d pods that are allowed had their first answer after %s, and then %d answers; %d that are denied sent %d connections and datagrams",
		c.allowed.Load(), spread(c.first), c.kept.Load(), c.denied.Load(), c.refused.Load())
	if n := len(c.wrongs); n > 0 {
		c.Errorf("%d wrong:\n%s", n, strings.Join(c.wrongs[:min(n, 20)], "\n"))
	}
	for what, n := range map[string]*atomic.Int64{"pods of this node": &c.locals, "pods of another node": &c.remotes, "reused addresses": &c.reused, "connections": &c.tried, "pods with answers": &c.allowed} {
		if n.Load() == 0 {
			c.Errorf("there were no %s", what)
		}
	}
	for reason, text := range c.trouble.problems.All() {
		c.Errorf("%v: %v", reason, text)
	}
}

// A churnPod is a pod of this node.
type churnPod struct {
	namespace, name string
	attachment      chain.Attachment
	ns              *netns.NS
	addr            netip.Addr
}

// attach makes the namespace of a pod and calls the ADD of the chain.
func (c *churn) attach(namespace, name string) (*churnPod, error) {
	p := &churnPod{namespace: namespace, name: name}
	path := "/run/netns/" + name
	if err := netns.Create(path); err != nil {
		return nil, err
	}
	p.attachment = chain.Attachment{ContainerID: name, NetNS: path, IfName: "eth0", Args: [][2]string{
		{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", namespace}, {"K8S_POD_NAME", name}, {"K8S_POD_INFRA_CONTAINER_ID", name}, {"K8S_POD_UID", "uid-" + name},
	}}
	var err error
	if p.ns, err = netns.Open(path); err != nil {
		return nil, err
	}
	var result *spec.Result
	if result, err = c.runtime.Add(context.Background(), c.list, p.attachment); err != nil {
		return nil, fmt.Errorf("ADD of %s: %w", name, err)
	}
	p.addr = result.IPs[0].Address.Addr()
	return p, nil
}

// detach calls the DEL, and removes the namespace.
func (c *churn) detach(p *churnPod) error {
	if err := c.runtime.Del(context.Background(), c.list, p.attachment); err != nil {
		return fmt.Errorf("DEL of %s: %w", p.name, err)
	}
	if err := p.ns.Close(); err != nil {
		return err
	}
	return netns.Delete(p.attachment.NetNS)
}

// longLived makes a pod that lives until the end.
func (c *churn) longLived(namespace, name, labels string) *churnPod {
	c.Helper()
	c.putPod(apiPod{node: "n1", namespace: namespace, name: name, labels: labels})
	p, err := c.attach(namespace, name)
	must(c.T, err)
	c.putPod(apiPod{node: "n1", namespace: namespace, name: name, labels: labels, addr: p.addr.String()})
	c.Cleanup(func() {
		if err := c.detach(p); err != nil {
			c.Error(err)
		}
	})
	return p
}

// apiPod is a pod as the API shows it.
type apiPod struct {
	node, namespace, name, labels, addr string
	leaving                             bool
}

func (c *churn) putPod(p apiPod) {
	leaving := ""
	if p.leaving {
		leaving = `,"deletionTimestamp":"2026-11-23T08:00:00Z"`
	}
	c.kind(policies.Pods).put(fmt.Sprintf(`{"metadata":{"namespace":%q,"name":%q,"uid":"uid-%s","labels":%s%s},"spec":{"nodeName":%q},"status":{"phase":"Running","podIP":%q}}`,
		p.namespace, p.name, p.name, text(labels(p.labels)), leaving, p.node, p.addr))
}
