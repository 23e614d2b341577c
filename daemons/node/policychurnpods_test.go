// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/patchbay-net/patchbay/daemons/node/policies"
)

// churnSpace is a namespace. Its labels that the server's policy uses stay; another label changes.
type churnSpace struct{ name, trusted string }

var churnSpaces = []churnSpace{{"visitors", "yes"}, {"calm", "yes"}, {"narrow", "yes"}, {"walled", "yes"}, {"outside", "no"}}

func (s churnSpace) labels() map[string]string {
	return map[string]string{"trusted": s.trusted, "name": s.name, "mood": mood()}
}

func mood() string { return [...]string{"good", "bad", "none"}[rand.IntN(3)] }

// churnPolicy is a NetworkPolicy, or a ClusterNetworkPolicy if it has no namespace.
type churnPolicy struct{ namespace, name, spec string }

func (c *churn) networkPolicy(p churnPolicy) {
	kind := policies.NetworkPolicies
	if p.namespace == "" {
		kind = policies.ClusterNetworkPolicies
	}
	c.kind(kind).put(fmt.Sprintf(`{"metadata":{"namespace":%q,"name":%q},"spec":%s}`, p.namespace, p.name, p.spec))
}

// churnStanding are the policies that stay: that of the server, one that lets its pods reach only the
// server, and one that denies its pods everything.
var churnStanding = []churnPolicy{
	{"shop", "guard", `{"podSelector":{"matchLabels":{"app":"server"}},"ingress":[{"from":[{"namespaceSelector":{"matchLabels":{"trusted":"yes"}},"podSelector":{"matchLabels":{"role":"friend"}}}]}]}`},
	{"narrow", "shop", `{"podSelector":{},"policyTypes":["Egress"],"egress":[{"to":[{"namespaceSelector":{"matchLabels":{"name":"shop"}},"podSelector":{"matchLabels":{"app":"server"}}}]}]}`},
	{"walled", "nothing", `{"podSelector":{},"policyTypes":["Egress"]}`},
}

// churnPassing are policies that come and go. None of them changes which pods reach the server.
var churnPassing = []churnPolicy{
	{"shop", "guests", `{"podSelector":{"matchLabels":{"app":"server"}},"ingress":[{"from":[{"namespaceSelector":{},"podSelector":{"matchLabels":{"role":"guest"}}}],"ports":[{"port":8081}]}]}`},
	{"shop", "again", `{"podSelector":{"matchLabels":{"app":"server"}},"ingress":[{"from":[{"namespaceSelector":{"matchLabels":{"name":"visitors"}},"podSelector":{"matchLabels":{"role":"friend"}}}]}]}`},
	{"shop", "all", `{"podSelector":{}}`},
	{"visitors", "out", `{"podSelector":{},"policyTypes":["Egress"],"egress":[{"to":[{"namespaceSelector":{},"podSelector":{"matchLabels":{"app":"server"}}}]}]}`},
	{"visitors", "in", `{"podSelector":{"matchLabels":{"role":"friend"}}}`},
	{"calm", "moody", `{"podSelector":{"matchLabels":{"mood":"bad"}},"policyTypes":["Ingress","Egress"],"egress":[{}]}`},
	{"narrow", "moody", `{"podSelector":{"matchLabels":{"mood":"good"}},"ingress":[{"from":[{"namespaceSelector":{"matchLabels":{"mood":"bad"}}}]}]}`},
	{"team0", "nobody", `{"podSelector":{}}`},
	{"", "outside", `{"tier":"Admin","priority":5,"subject":{"namespaces":{"matchLabels":{"name":"shop"}}},"ingress":[{"action":"Deny","from":[{"namespaces":{"matchLabels":{"name":"outside"}}}]}]}`},
	{"", "moods", `{"tier":"Baseline","priority":7,"subject":{"namespaces":{}},"ingress":[{"action":"Accept","from":[{"namespaces":{"matchLabels":{"mood":"bad"}}}]}]}`},
}

// policies adds and removes policies.
func (c *churn) policies(ctx context.Context) {
	there := make([]bool, len(churnPassing))
	for ; ctx.Err() == nil; time.Sleep(50 * time.Millisecond) {
		i := rand.IntN(len(there))
		p := churnPassing[i]
		if there[i] = !there[i]; there[i] {
			c.networkPolicy(p)
		} else if p.namespace == "" {
			c.kind(policies.ClusterNetworkPolicies).remove("/" + p.name)
		} else {
			c.kind(policies.NetworkPolicies).remove(p.namespace + "/" + p.name)
		}
		c.changed.Add(1)
	}
}

// namespaces changes labels of namespaces.
func (c *churn) namespaces(ctx context.Context) {
	for n := 0; ctx.Err() == nil; n++ {
		c.api.labelled(fmt.Sprint("team", n%churnTeams), map[string]string{"trusted": [...]string{"no", "yes"}[n/churnTeams%2]})
		s := churnSpaces[n%len(churnSpaces)]
		c.api.labelled(s.name, s.labels())
		c.spaced.Add(2)
		time.Sleep(100 * time.Millisecond)
	}
}

// remotePods keeps 60 pods of another node, replaces the oldest one, and changes labels. It makes as
// many pods that there are 100 a second with those of this node, and at least 30. Their 40 addresses
// change their owners all the time.
func (c *churn) remotePods(ctx context.Context, began time.Time) {
	const alive, addresses, wanted, least = 60, 40, 100, 30
	var pods []apiPod
	for ; ctx.Err() == nil; time.Sleep(2 * time.Millisecond) {
		seconds := time.Since(began).Seconds()
		if n := c.remotes.Load(); float64(n+c.locals.Load()) > wanted*seconds && float64(n) > least*seconds {
			continue
		}
		n := int(c.remotes.Add(1))
		p := apiPod{node: "n2", namespace: fmt.Sprint("team", n%churnTeams), name: fmt.Sprint("remote-", n), labels: "role=" + churnRole(n/addresses), addr: fmt.Sprint("198.18.62.", 1+n%addresses)}
		c.putPod(p)
		if c.uses(netip.MustParseAddr(p.addr), p.labels) {
			c.reusedRemote.Add(1)
		}
		if pods = append(pods, p); len(pods) > alive {
			c.kind(policies.Pods).remove(pods[0].namespace + "/" + pods[0].name)
			pods = pods[1:]
		}
		other := &pods[rand.IntN(len(pods))]
		other.labels = "role=" + churnRole(rand.IntN(2))
		c.putPod(*other)
		c.labelled.Add(1)
	}
}

func churnRole(n int) string { return [...]string{"friend", "stranger"}[n%2] }

// uses notes the role of the pod that has an address now, and reports whether the one before had another.
func (c *churn) uses(addr netip.Addr, role string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	before, known := c.roles[addr]
	c.roles[addr] = role
	return known && before != role
}

// churnKinds are the kinds of pods of this node.
var churnKinds = []struct {
	namespace, role string
	allowed         bool
}{
	{"calm", "friend", true}, {"narrow", "friend", true},
	{"calm", "stranger", false}, {"walled", "friend", false}, {"outside", "friend", false}, {"team0", "stranger", false}, {"narrow", "stranger", false},
}

// localPods attaches one pod of this node after the other. All callers together attach at most 70 a
// second, so that there are some of another node, too.
func (c *churn) localPods(ctx context.Context, worker int, began time.Time) {
	const most = 70
	for n := 0; ctx.Err() == nil; n++ {
		for float64(c.locals.Load()) > most*time.Since(began).Seconds() && ctx.Err() == nil {
			time.Sleep(time.Millisecond)
		}
		kind := churnKinds[rand.IntN(2)]
		if rand.IntN(2) == 0 {
			kind = churnKinds[2+rand.IntN(len(churnKinds)-2)]
		}
		p := apiPod{node: "n1", namespace: kind.namespace, name: fmt.Sprintf("local%d-%d", worker, n), labels: "role=" + kind.role + ",mood=" + mood()}
		c.putPod(p)
		time.Sleep(time.Duration(rand.IntN(30)) * time.Millisecond) // whether the agent knows the pod before its ADD
		if err := c.localPod(p, kind.allowed); err != nil {
			c.wrong("%s/%s: %v", p.namespace, p.name, err)
			return
		}
	}
}

// localPod is the life of a pod.
func (c *churn) localPod(p apiPod, allowed bool) error {
	pod, err := c.attach(p.namespace, p.name)
	if err != nil {
		return err
	}
	c.locals.Add(1)
	if c.uses(pod.addr, fmt.Sprint(allowed)) {
		c.reused.Add(1)
	}
	p.addr = pod.addr.String()
	shown := p
	later := time.AfterFunc(time.Duration(rand.IntN(100))*time.Millisecond, func() {
		shown.labels = shown.labels[:strings.Index(shown.labels, ",")] + ",mood=" + mood()
		c.putPod(shown)
	})
	if allowed {
		err = c.mustReach(p, pod)
	} else {
		err = c.mustNotReach(p, pod)
	}
	later.Stop()
	if err != nil {
		return err
	}
	p.leaving = true
	c.putPod(p)
	if err := c.detach(pod); err != nil {
		return err
	}
	time.AfterFunc(time.Duration(rand.IntN(100))*time.Millisecond, func() { c.kind(policies.Pods).remove(p.namespace + "/" + p.name) })
	return nil
}

// mustReach fires until a pod gets answers. From then on, no connection may be lost.
func (c *churn) mustReach(p apiPod, pod *churnPod) error {
	ctx, cancel := context.WithTimeout(context.Background(), churnPatience)
	defer cancel()
	answers := 0
	fired, err := c.fire(ctx, pod, 5*time.Millisecond, 20*time.Millisecond, func(_ int, _ time.Time, answered bool) {
		if answered {
			if answers++; answers == 3 {
				cancel()
			}
		}
	}, "tcp", "udp")
	if err != nil {
		return err
	}
	c.allowed.Add(1)
	if answers < 3 {
		c.wrong("%s/%s (%s), which is allowed, had no answers: %+v", p.namespace, p.name, p.addr, fired)
		return nil
	}
	c.mu.Lock()
	c.first = append(c.first, fired[0].First)
	c.mu.Unlock()
	ctx, cancel = context.WithTimeout(context.Background(), 50*time.Millisecond)
	defer cancel()
	fired, err = c.fire(ctx, pod, 5*time.Millisecond, 900*time.Millisecond, func(_ int, at time.Time, answered bool) {
		if !answered {
			c.wrong("%s/%s (%s), which is allowed, had answers and lost its connection of %s", p.namespace, p.name, p.addr, at.Format(time.StampMilli))
		}
	}, "tcp")
	if err == nil {
		c.kept.Add(int64(fired[0].Sent))
	}
	return err
}

// mustNotReach fires for a while.
func (c *churn) mustNotReach(p apiPod, pod *churnPod) error {
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	fired, err := c.fire(ctx, pod, 3*time.Millisecond, 60*time.Millisecond, nil, "tcp", "udp")
	c.denied.Add(1)
	for _, f := range fired {
		c.refused.Add(int64(f.Sent))
		if f.Answers > 0 {
			c.wrong("%s/%s, which is denied, got %d answers: %+v", p.namespace, p.name, f.Answers, f)
		}
	}
	return err
}

// stream opens a connection each millisecond from the friend or the stranger.
func (c *churn) stream(ctx context.Context, from *churnPod) {
	held, networks, count := 900*time.Millisecond, []string{"tcp"}, &c.tried
	if from == c.stranger {
		held, networks, count = 60*time.Millisecond, []string{"tcp", "udp"}, &c.shots
	}
	fired, err := c.fire(ctx, from, time.Millisecond, held, func(_ int, at time.Time, answered bool) {
		if from == c.friend && !answered {
			c.wrong("the friend's connection of %s was lost", at.Format(time.StampMilli))
		}
		if from == c.stranger && answered {
			c.wrong("the stranger's connection of %s was answered", at.Format(time.StampMilli))
		}
	}, networks...)
	if err != nil {
		c.wrong("%s: %v", from.name, err)
	}
	for _, f := range fired {
		count.Add(int64(f.Sent))
		if from == c.friend {
			c.answered.Add(int64(f.Answers))
		} else if f.Answers > 0 {
			c.wrong("the stranger got %d answers: %+v", f.Answers, f)
		}
	}
}

// talk keeps one connection of the friend. One packet waits for its answer before the next.
func (c *churn) talk(ctx context.Context, network string) {
	var conn net.Conn
	err := c.friend.ns.Do(func() (err error) {
		port := map[string]uint16{"tcp": churnPort + 1, "udp": churnPort}[network]
		conn, err = net.Dial(network, netip.AddrPortFrom(c.server.addr, port).String())
		return err
	})
	if err != nil {
		c.wrong("the friend's %s: %v", network, err)
		return
	}
	defer conn.Close() //nolint:errcheck // a test
	buf := make([]byte, 16)
	for ; ctx.Err() == nil; time.Sleep(time.Millisecond) {
		err := conn.SetDeadline(time.Now().Add(churnPatience))
		if network == "udp" {
			err = conn.SetDeadline(time.Now().Add(time.Second))
		}
		if err == nil {
			_, err = conn.Write([]byte("x"))
		}
		if err == nil {
			_, err = conn.Read(buf)
		}
		if err != nil {
			c.wrong("the friend's lasting connection over %s: %v", network, err)
			return
		}
		c.talked.Add(1)
	}
}

// spread formats durations.
func spread(list []time.Duration) string {
	if len(list) == 0 {
		return "no time"
	}
	slices.Sort(list)
	at := func(part float64) time.Duration { return list[int(part*float64(len(list)-1))].Round(time.Millisecond) }
	return fmt.Sprintf("%v (median; 99%% %v, at most %v)", at(0.5), at(0.99), at(1))
}
