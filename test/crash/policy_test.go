// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package crash

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/policy"
	"github.com/patchbay-net/patchbay/internal/policy/enforce"
	"github.com/patchbay-net/patchbay/internal/policy/mirror"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/spec"
)

// policyChain is the network of a Kubernetes node's pods.
const policyChain = `{"cniVersion":"1.1.0","name":"crash","type":"patchbay","plugins":[
	{"type":"ptp","ipMasq":true,"ipam":{"type":"host-local","ranges":[[{"subnet":"10.76.0.0/24"}],[{"subnet":"fd76::/64"}]]}},
	{"type":"portmap","snat":true},{"type":"bandwidth"},{"type":"firewall","acceptNew":true},
	{"type":"policy"}]%s}`

// policedPod is a pod of the namespace shop.
type policedPod struct{ request }

func (p policedPod) call(verb spec.Verb, extra string) *spec.Call {
	c := p.request.call(verb, "")
	c.Config = []byte(fmt.Sprintf(policyChain, extra))
	if c.PerContainer() {
		c.Args = "K8S_POD_NAMESPACE=shop;K8S_POD_NAME=" + p.id
	}
	return c
}

func (p policedPod) must(t *testing.T, verb spec.Verb, extra string) {
	t.Helper()
	if _, err := invoked(p.call(verb, extra), nil); err != nil {
		t.Fatalf("%s %s: %v", verb, p.id, err)
	}
}

// policed returns the state in which a policy selects all pods of the namespace shop, and writes it to
// the mirror.
func policed(t *testing.T) *policy.State {
	t.Helper()
	p, err := policy.ParseNetworkPolicy([]byte(`{"metadata":{"namespace":"shop","name":"all"},"spec":{"podSelector":{},"policyTypes":["Ingress","Egress"]}}`))
	if err != nil {
		t.Fatal(err)
	}
	s := &policy.State{Node: "n", Namespaces: []policy.Namespace{{Name: "shop"}}, Policies: []policy.NetworkPolicy{p}}
	if _, err := mirror.Write(paths.Default(), policy.NewDecider(s)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := mirror.Remove(paths.Default()); err != nil {
			t.Error(err)
		}
	})
	return s
}

// record returns the record of the pod's plugin policy, or nil.
func (p policedPod) record(t *testing.T) *record.Record {
	t.Helper()
	d := record.New(paths.Default().Run)
	defer d.Close()
	r, err := d.Read("crash", owner.Of("crash", p.id, "eth0"), "policy")
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// closed checks that a pod whose ADD succeeded is closed in both directions.
func (p policedPod) closed(t *testing.T, when string) {
	t.Helper()
	fw := nft.Open("")
	defer fw.Close() //nolint:errcheck // read only
	rec := p.record(t)
	if rec == nil || rec.Policed == nil || len(rec.Policed.Addrs) != 2 {
		t.Fatalf("%s: %s has the record %+v", when, p.id, rec)
	}
	open, err := enforce.Open(fw, enforce.Closure{Addrs: rec.Policed.Addrs, Close: [2]bool{true, true}})
	if err != nil || len(open) > 0 {
		t.Fatalf("%s: %s: %q, %v", when, p.id, open, err)
	}
}

// open is what an agent does: it loads a program that has the pod, which opens what the ADD closed.
func (p policedPod) open(t *testing.T, e *enforce.Enforcer, s *policy.State) {
	t.Helper()
	rec := p.record(t)
	with := *s
	with.Pods = []policy.Pod{{Namespace: "shop", Name: p.id, Node: "n", Phase: "Running", Addresses: rec.Policed.Addrs}}
	known := make(map[netip.Addr]owner.Key)
	for _, a := range rec.Policed.Addrs {
		known[a] = rec.Owner
	}
	if err := e.Load(t.Context(), policy.Compile(&with), known); err != nil {
		t.Fatal(err)
	}
}

// A fault at each step of the ADD of a pod leaves nothing, and closes nothing.
func TestFaultsOfAPod(t *testing.T) {
	policed(t)
	p := policedPod{request{"fault", nettest.NewNS(t, "crash-podfault"), 10007}}
	p.must(t, spec.Add, "")
	p.must(t, spec.Del, "")
	before := state(t)
	for n := 1; ; n++ {
		step, where, injected := 0, "", errors.New("injected")
		_, err := invoked(p.call(spec.Add, ""), func(name string) error {
			if step++; step == n {
				where = name
				return injected
			}
			return nil
		})
		if err == nil {
			break
		}
		nothingBeyond(t, before, fmt.Sprintf("a fault at step %d (%s)", n, where))
	}
	p.closed(t, "after its ADD")
	p.must(t, spec.Del, "")
	nothingBeyond(t, before, "DEL")
}

// While ADDs and DELs of other pods are killed at random moments, a pod whose ADD succeeded stays
// closed, whether an agent loads programs or not. A DEL or a GC removes what killed calls left, and then
// no pod is closed.
func TestKillOfAPod(t *testing.T) {
	s := policed(t)
	p := policedPod{request{"", nettest.NewNS(t, "crash-podkill"), 10008}}
	other := policedPod{request{"stays", nettest.NewNS(t, "crash-podstays"), 10009}}
	fw := nft.Open(paths.Default().Run)
	agent := enforce.New(fw, enforce.Options{KeepConnections: true})
	defer fw.Close() //nolint:errcheck // a test
	other.must(t, spec.Add, "")
	other.must(t, spec.Del, "")
	before := state(t)
	other.must(t, spec.Add, "")
	keepOther := `,"cni.dev/valid-attachments":[{"containerID":"stays","ifname":"eth0"}]`
	adds, dels := nettest.NewKills(t, "ADD"), nettest.NewKills(t, "DEL")
	for n := 0; adds.More(tries(t)/2) || dels.More(tries(t)/6); n++ {
		p.id = fmt.Sprintf("kill%d", n)
		adds.Try(func(after time.Duration) bool {
			killed := died(t, p.call(spec.Add, ""), after)
			if !killed {
				p.closed(t, "after its ADD")
				if n%2 == 0 {
					p.open(t, agent, s)
				}
			}
			return killed
		})
		other.closed(t, "while another pod was added")
		switch n % 3 {
		case 0:
			p.must(t, spec.Del, "")
		case 1:
			try(t, dels, p.call(spec.Del, ""))
			p.must(t, spec.Del, "")
		case 2:
			policedPod{}.must(t, spec.GC, keepOther)
		}
		other.closed(t, "while another pod was removed")
		if n%5 == 0 {
			if err := agent.Load(t.Context(), policy.Compile(s), nil); err != nil {
				t.Fatal(err)
			}
			other.closed(t, "after the program without any pod")
		}
	}
	if err := agent.Load(t.Context(), policy.Compile(s), nil); err != nil {
		t.Fatal(err)
	}
	other.must(t, spec.Del, "")
	policedPod{}.must(t, spec.GC, keepNobody)
	nothingBeyond(t, before, "the last GC")
}
