// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package crash

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/policy"
	"github.com/patchbay-net/patchbay/internal/policy/enforce"
	"github.com/patchbay-net/patchbay/internal/policy/mirror"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/spec"
)

// BenchmarkPod measures the ADD of a pod with the chain of the pods' network, in this process and as a
// new process, on a node that enforces so many policies for 110 pods of a cluster of 20,000: without the
// plugin policy ("without"), of a pod that no policy selects ("open"), and of one that policies close
// ("closed"). The variants take turns. It reports the median of "without", and of the others the median of how
// much longer they took.
func BenchmarkPod(b *testing.B) {
	for _, policies := range []int{0, 1000, 5000} {
		for _, agent := range []bool{true, false} {
			for _, process := range []bool{false, true} {
				b.Run(fmt.Sprintf("policies=%d/agent=%v/process=%v", policies, agent, process), func(b *testing.B) { benchPods(b, policies, agent, process) })
			}
		}
	}
}

func benchPods(b *testing.B, policies int, agent, process bool) {
	enforced(b, policies)
	if agent {
		unlock, err := durable.Lock(b.Context(), mirror.InForce(paths.Default()))
		check(b, err)
		defer unlock()
	}
	took := map[string][]time.Duration{}
	ns := nettest.NewNS(b, fmt.Sprint("bench", time.Now().UnixNano()))
	for n := 0; b.Loop(); n++ {
		for _, kind := range []string{"without", "open", "closed"} {
			c := podCall(fmt.Sprint(kind, n), ns, kind)
			start := time.Now()
			check(b, called(c, process))
			took[kind] = append(took[kind], time.Since(start))
			c.Verb = spec.Del
			check(b, called(c, false))
		}
	}
	for kind, list := range took {
		more := make([]time.Duration, len(list))
		for i := range list {
			more[i] = list[i] - took["without"][i]
		}
		if kind == "without" {
			more = list
		}
		b.ReportMetric(float64(median(more))/1e6, "ms-"+kind)
	}
	b.ReportMetric(0, "ns/op")
}

func median(list []time.Duration) time.Duration {
	sorted := slices.Sorted(slices.Values(list))
	return sorted[len(sorted)/2]
}

func podCall(id, ns, kind string) *spec.Call {
	p := policedPod{request{id, ns, 0}}
	c := p.call(spec.Add, "")
	c.Config = []byte(strings.Replace(string(c.Config), "10.76.0.0/24", "10.76.0.0/16", 1)) // no address is used again
	namespace := "free"
	switch kind {
	case "without":
		c.Config = []byte(strings.Replace(string(c.Config), `,
	{"type":"policy"}`, "", 1))
	case "closed":
		namespace = "ns0"
	}
	c.Args = "K8S_POD_NAMESPACE=" + namespace + ";K8S_POD_NAME=new;K8S_POD_UID=new"
	return c
}

// called makes a call in this process or as a new one.
func called(c *spec.Call, process bool) error {
	if !process {
		_, err := invoked(c, nil)
		return err
	}
	return inProcess(c)
}

func check(b testing.TB, err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

// enforced puts policies in force, as the agent does.
func enforced(b *testing.B, policies int) {
	s := &policy.State{Node: "n0", Namespaces: []policy.Namespace{{Name: "free"}}}
	for i := range 100 {
		ns := fmt.Sprint("ns", i)
		s.Namespaces = append(s.Namespaces, policy.Namespace{Name: ns})
		for j := range 200 {
			at := "n1"
			if (i*200+j)%181 == 0 {
				at = "n0"
			}
			s.Pods = append(s.Pods, policy.Pod{Namespace: ns, Name: fmt.Sprint("pod", j), UID: fmt.Sprintf("%d-%d", i, j), Node: at, Phase: "Running",
				Labels:    policy.LabelsOf(map[string]string{"app": fmt.Sprint("app", j%10)}),
				Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, byte(100 + i), byte(j), 9})}})
		}
	}
	for i := range policies {
		p, err := policy.ParseNetworkPolicy(fmt.Appendf(nil, `{"metadata":{"namespace":"ns%d","name":"p%d"},"spec":{"podSelector":{"matchLabels":{"app":"app%d"}},
			"ingress":[{"from":[{"podSelector":{"matchLabels":{"app":"app%d"}}}],"ports":[{"port":80},{"port":443}]}]}}`, i%100, i, i/100%10, (i+1)%10))
		check(b, err)
		s.Policies = append(s.Policies, p)
	}
	d := policy.NewDecider(s)
	_, err := mirror.Write(paths.Default(), d)
	check(b, err)
	fw := nft.Open(b.TempDir())
	check(b, enforce.New(fw, enforce.Options{KeepConnections: true}).Load(b.Context(), d.Program, nil))
	b.Cleanup(func() {
		check(b, fw.Close())
		check(b, mirror.Remove(paths.Default()))
	})
}
