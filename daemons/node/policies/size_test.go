// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policies

import (
	"fmt"
	"iter"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/policy"
	"github.com/patchbay-net/patchbay/internal/test/draw"
)

// size is a cluster for measurements. Its pods are on 200 nodes, 100 of them on n0, with two addresses.
type size struct {
	pods, policies int
	alike          int // pods with the same labels
	version        int // another version has other labels
}

// filler makes a pod as long as a common one: 2.9 kB.
var filler = strings.Repeat(`{"name":"SOME_VARIABLE","value":"some value"},`, 45)

// generate returns a list of n objects, each of which exists only while it is read.
func generate(n int, one func(i int) string) iter.Seq2[[]byte, error] {
	return func(yield func([]byte, error) bool) {
		for i := range n {
			if !yield([]byte(one(i)), nil) {
				return
			}
		}
	}
}

// pod returns a pod as the API serves it.
func (s size) pod(i int) string {
	w := i / s.alike
	meta := fmt.Sprintf(`"namespace":"team-%d","name":"app%d-5d4f8c7b9-%05d","uid":"0b9f3a52-7a0e-4d6c-9f56-%012d","creationTimestamp":"2026-11-23T08:00:00Z"`, w%200, w, i, i)
	labels := fmt.Sprintf(`"app.kubernetes.io/name":"app%d","app.kubernetes.io/component":"tier%d","pod-template-hash":"5d4f8c7b9-%d","version":"v%d"`, w%50, w%3, w, s.version)
	ports := fmt.Sprintf(`[{"name":"http","containerPort":%d,"protocol":"TCP"},{"name":"metrics","containerPort":9090,"protocol":"TCP"}]`, 8000+w%10)
	return fmt.Sprintf(`{"kind":"Pod","apiVersion":"v1","metadata":{%s,"labels":{%s}},"spec":{"nodeName":"n%d","containers":[{"name":"main","ports":%s,"env":[%s{}]}]},"status":{"phase":"Running","podIPs":[{"ip":"10.%d.%d.%d"},{"ip":"fd01::%[6]x:%[7]x:%[8]x"}]}}`,
		meta, labels, i%200, ports, filler, i>>16, i>>8&255, i&255)
}

// policy returns a policy of a common kind: from pods of the namespace, and from a team's namespaces.
func (s size) policy(i int) string {
	return fmt.Sprintf(`{"metadata":{"namespace":"team-%d","name":"p%d","labels":{"a":"b"}},"spec":{"podSelector":{"matchLabels":{"app.kubernetes.io/name":"app%d"}},"policyTypes":["Ingress"],
		"ingress":[{"from":[{"podSelector":{"matchLabels":{"app.kubernetes.io/component":"tier1"}}}],"ports":[{"protocol":"TCP","port":"http"}]},{"from":[{"namespaceSelector":{"matchLabels":{"team":"t%d"}}}]}]}}`, i%200, i, i%50, i%20)
}

// fill lists the cluster.
func (s size) fill(t testing.TB, c *Cluster) {
	for k, list := range map[Kind]iter.Seq2[[]byte, error]{
		Pods: generate(s.pods, s.pod), NetworkPolicies: generate(s.policies, s.policy), ClusterNetworkPolicies: generate(0, nil),
		Namespaces: generate(200, func(i int) string {
			return fmt.Sprintf(`{"metadata":{"name":"team-%d","labels":{"team":"t%d","kubernetes.io/metadata.name":"team-%[1]d"}}}`, i, i%20)
		}),
		Nodes: generate(200, func(i int) string {
			return fmt.Sprintf(`{"metadata":{"name":"n%d","labels":{"kubernetes.io/hostname":"n%[1]d"}},"status":{"addresses":[{"address":"192.0.2.%[1]d"}]}}`, i)
		}),
	} {
		if err := c.Replace(k, list); err != nil {
			t.Fatal(err)
		}
	}
}

// memory returns the bytes of the heap that are in use.
func memory() int {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// status returns a line of /proc/self/status, such as VmRSS.
func status(t *testing.T, line string) string {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), line+":")
	value, _, _ := strings.Cut(rest, "\n")
	return strings.TrimSpace(value)
}

// fixed is what Nodes and Namespaces take of the limits of TestMemory, in kB.
const fixed = 400

// TestMemory measures the objects of a large cluster, their growth after the labels of all pods have
// changed twice, and the state that Follow keeps. PATCHBAY_POLICY_MEMORY is the number of pods; the
// limits are for 20,000.
func TestMemory(t *testing.T) {
	pods := draw.Number(t, "PATCHBAY_POLICY_MEMORY", 4000, 20000)
	debug.FreeOSMemory()
	t.Logf("the test itself: %d kB of heap, VmRSS %s", memory()/1000, status(t, "VmRSS"))
	for _, test := range []struct {
		size
		most int // kB
	}{
		{size{pods: pods, alike: 10}, 9000},
		{size{pods: pods, policies: pods / 4, alike: 10}, 14000},
		{size{pods: pods, alike: 1}, 16000},
	} {
		test.most = fixed + (test.most-fixed)*pods/20000
		before := memory()
		c := New("n0")
		test.fill(t, c)
		filled := memory() - before
		for test.version < 2 && test.policies > 0 {
			test.version++
			test.fill(t, c)
		}
		changed := memory() - before
		var s policy.State
		c.state(&s)
		copied := memory() - before - changed
		debug.FreeOSMemory()
		t.Logf("%d pods, %d of them alike, %d policies: %d kB, after changes %d kB, state %d kB, VmRSS %s, VmHWM %s",
			test.pods, test.alike, test.policies, filled/1000, changed/1000, copied/1000, status(t, "VmRSS"), status(t, "VmHWM"))
		if filled/1000 > test.most || changed > filled*11/10 || copied > 1e5 {
			t.Errorf("got %d kB, want %d at most, and no growth by more than a tenth", filled/1000, test.most)
		}
		runtime.KeepAlive(c)
		runtime.KeepAlive(&s)
	}
}

// BenchmarkSet stores a pod that has changed, and one whose change policies cannot see.
func BenchmarkSet(b *testing.B) {
	s := size{pods: 20000, alike: 10}
	c := New("n0")
	s.fill(b, c)
	one, other := []byte(s.pod(7)), []byte(strings.Replace(s.pod(7), `"v0"`, `"v1"`, 1))
	for name, texts := range map[string][2][]byte{"changed": {one, other}, "same": {one, one}} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if err := c.Set(Pods, texts[i%2]); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkReplace lists 20,000 pods that have not changed.
func BenchmarkReplace(b *testing.B) {
	s := size{pods: 20000, alike: 10}
	c := New("n0")
	s.fill(b, c)
	for b.Loop() {
		if err := c.Replace(Pods, generate(s.pods, s.pod)); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkState copies the state of 20,000 pods and 5,000 policies, and compiles it.
func BenchmarkState(b *testing.B) {
	c := New("n0")
	size{pods: 20000, policies: 5000, alike: 10}.fill(b, c)
	var s policy.State
	c.state(&s)
	b.Run("copy", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			c.state(&s)
		}
	})
	b.Run("compile", func(b *testing.B) {
		for b.Loop() {
			policy.Compile(&s)
		}
	})
}
