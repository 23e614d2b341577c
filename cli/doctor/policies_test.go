// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/policy"
	"github.com/patchbay-net/patchbay/internal/policy/enforce"
	"github.com/patchbay-net/patchbay/internal/policy/mirror"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/internal/resident"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
)

// policed is a node with the pod shop/web, 10.1.0.2.
type policed struct {
	*bench
	fw       *nft.Conn
	enforcer *enforce.Enforcer
}

func newPoliced(t *testing.T) *policed {
	b := newBench(t)
	p := &policed{bench: b, fw: nft.Open(t.TempDir())}
	p.enforcer = enforce.New(p.fw, enforce.Options{KeepConnections: true})
	t.Cleanup(func() { b.must(p.fw.Close()) })
	dir := record.New(b.paths.Run)
	t.Cleanup(dir.Close)
	b.must(dir.Write(&record.Record{
		Plugin: "policy", Owner: owner.Of("pods", "c1", "eth0"), Network: "pods", ContainerID: "c1", IfName: "eth0", NetNS: nettest.NewNS(t, "c1"),
		Policed: &record.Policed{Namespace: "shop", Name: "web", UID: "1", Addrs: []netip.Addr{netip.MustParseAddr("10.1.0.2")}},
	}))
	return p
}

// decider decides if these are the policies of shop, each of which isolates its pods.
func (p *policed) decider(policies ...string) *policy.Decider {
	s := &policy.State{
		Node:       "n1",
		Namespaces: []policy.Namespace{{Name: "shop"}},
		Pods:       []policy.Pod{{Namespace: "shop", Name: "web", UID: "1", Node: "n1", Phase: "Running", Addresses: []netip.Addr{netip.MustParseAddr("10.1.0.2")}}},
	}
	for _, name := range policies {
		np, err := policy.ParseNetworkPolicy(fmt.Appendf(nil, `{"metadata":{"namespace":"shop","name":%q},"spec":{"podSelector":{}}}`, name))
		p.must(err)
		s.Policies = append(s.Policies, np)
	}
	return policy.NewDecider(s)
}

func (p *policed) mirror(policies ...string) {
	_, err := mirror.Write(p.paths, p.decider(policies...))
	p.must(err)
}

func (p *policed) load(policies ...string) {
	p.must(p.enforcer.Load(context.Background(), p.decider(policies...).Program, nil))
}

func TestPolicies(t *testing.T) {
	p := newPoliced(t)
	p.healthy("policies") // no policies
	p.mirror("a")
	p.load("a")
	p.healthy("policies")
	p.mirror("a", "b")
	p.finds("policies", "problem: the kernel lets pass what network policies deny: shop/web, ingress: the mirror has networkpolicy shop/b, the kernel does not")
	p.load("a", "b")
	p.healthy("policies")
	p.mirror("a")
	p.finds("policies", "warning: the kernel enforces network policies that the mirror does not have: shop/web, ingress: the kernel has networkpolicy shop/b, the mirror does not")
}

// While the agent loads a change, kernel and mirror may differ for a moment.
func TestPoliciesSettle(t *testing.T) {
	p := newPoliced(t)
	p.mirror("a")
	p.load()
	p.wait = func(d time.Duration) { p.load("a") }
	p.healthy("policies")
}

func TestPoliciesDamaged(t *testing.T) {
	p := newPoliced(t)
	p.mirror("a")
	p.load("a")
	p.must(os.WriteFile(filepath.Join(p.paths.State, "node", "policy", "pods", "1"), []byte("x"), 0o600))
	p.finds("policies", "problem: ADDs isolate pods, because the mirror of the network policies cannot be read: read "+p.paths.State)
}

// closure is what the ADD of the pod closes.
func (p *policed) closure() enforce.Closure {
	key := owner.Of("pods", "c1", "eth0")
	return enforce.Closure{
		Addrs: []netip.Addr{netip.MustParseAddr("10.1.0.2")}, Close: [2]bool{true, true}, Comment: nft.Comment(string(key), "pods", "c1", "eth0"),
	}
}

// An ADD closed a pod, and the agent does not open it.
func TestPoliciesClosed(t *testing.T) {
	p := newPoliced(t)
	p.mirror("a")
	p.load()
	enforce.Close(p.fw, p.closure(), false)
	p.must(p.fw.Commit(context.Background()))
	p.finds("policies", "problem: 1 pods with a network policy are closed since their ADD: shop/web; only the agent opens them, and none runs that has loaded the policies")
	p.must(resident.Report{}.Write(p.paths, nodeService)) // an agent that was killed has left it
	p.finds("policies", "problem: shop/web; only the agent opens them")
	release, err := mirror.Hold(context.Background(), p.paths)
	p.must(err)
	defer release()
	p.finds("policies", "problem: shop/web; the agent runs, and has not opened them")
}

// An agent that cannot list policies isolates new pods.
func TestPoliciesUnknown(t *testing.T) {
	p := newPoliced(t)
	p.must(mirror.Isolate(p.paths))
	p.finds("policies", "problem: new pods are isolated, because the network policies of the cluster are not known on this node yet")
	closed := p.closure()
	enforce.Close(p.fw, closed, false)
	p.must(p.fw.Commit(context.Background()))
	p.finds("policies", "problem: not known on this node yet: 1 pods so far, shop/web")
	p.mirror("a")
	p.load("a")
	enforce.Reopen(p.fw, closed)
	p.must(p.fw.Commit(context.Background()))
	p.healthy("policies")
}

func TestPoliciesIPVS(t *testing.T) {
	p := newPoliced(t)
	p.veth("kube-ipvs0", "10.96.0.1/32")
	p.healthy("policies")
	p.mirror("a")
	p.load("a")
	p.finds("policies", "problem: kube-proxy is in mode ipvs")
}

func TestPoliciesOnABridge(t *testing.T) {
	p := newPoliced(t)
	p.fakeSysctl("net/bridge/bridge-nf-call-iptables", "0")
	const bridge = `{"type":"bridge","ipam":{"type":"host-local","subnet":"10.89.0.0/24"}}`
	p.network("pods", bridge)
	p.healthy("policies")
	p.network("pods", bridge+`,{"type":"policy"}`)
	p.finds("policies", "problem: network policies do not judge packets between two containers on the bridge of network pods: net/bridge/bridge-nf-call-iptables is not 1")
	p.fakeSysctl("net/bridge/bridge-nf-call-iptables", "1")
	p.healthy("policies")
	p.network("pods", `{"type":"bridge","ipam":{"type":"host-local","ranges":[[{"subnet":"10.89.0.0/24"}],[{"subnet":"fd89::/64"}]]}},{"type":"policy"}`)
	p.finds("policies", "problem: net/bridge/bridge-nf-call-ip6tables is not 1")
}
