// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package mirror

import (
	"cmp"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/internal/l4"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/policy"
	"github.com/patchbay-net/patchbay/internal/test/draw"
)

// large returns a node with 110 pods, and a cluster of 200 namespaces with policies. If all is true,
// all pods and policies are in namespace ns0, and each policy selects each pod.
func large(policies int, all bool) *policy.State {
	const namespaces = 200
	s := &policy.State{Node: "n1"}
	in := func(i int) string {
		if all {
			return "ns0"
		}
		return fmt.Sprint("ns", i%namespaces)
	}
	for i := range namespaces {
		name := fmt.Sprint("ns", i)
		s.Namespaces = append(s.Namespaces, policy.Namespace{Name: name, Labels: policy.LabelsOf(map[string]string{"kubernetes.io/metadata.name": name})})
	}
	for i := range 110 {
		s.Pods = append(s.Pods, policy.Pod{
			Namespace: in(i), Name: fmt.Sprint("pod-", i), UID: fmt.Sprintf("%08d-1234-1234-1234-123456789012", i), Node: "n1",
			Labels:    policy.LabelsOf(map[string]string{"app": fmt.Sprint("app", i%10), "tier": "t"}),
			Ports:     []policy.Port{{Name: "http", Protocol: l4.TCP, Number: 8080}},
			Addresses: []netip.Addr{netip.AddrFrom4([4]byte{10, 1, 0, byte(i)})},
		})
	}
	for i := range policies {
		s.Policies = append(s.Policies, common(i, in(i), all))
	}
	return s
}

// common returns a policy of one of three common kinds.
func common(i int, namespace string, all bool) policy.NetworkPolicy {
	p := policy.NetworkPolicy{Namespace: namespace, Name: fmt.Sprint("policy-", i)}
	if !all {
		p.Spec.PodSelector = policy.Selector{MatchLabels: policy.Labels{{Key: "app", Value: fmt.Sprint("app", i/200%10)}}}
	}
	peer := policy.Peer{PodSelector: &policy.Selector{MatchLabels: policy.Labels{{Key: "tier", Value: "t"}}}}
	switch i / 200 % 3 {
	case 0:
		p.Spec.PolicyTypes = []string{"Ingress", "Egress"}
	case 1:
		p.Spec.Ingress = []policy.IngressRule{{From: []policy.Peer{peer}, Ports: []policy.RulePort{{Port: &policy.PortValue{Name: "http"}}}}}
	default:
		p.Spec.Egress = []policy.EgressRule{{To: []policy.Peer{peer}}}
	}
	return p
}

// cases are the clusters that the tests below measure.
var cases = []struct {
	name string
	pod  Pod
	of   func() *policy.State
}{
	{"no policy", firstPod, func() *policy.State { return large(0, false) }},
	{"1,000 policies", firstPod, func() *policy.State { return large(1000, false) }},
	{"5,000 policies", firstPod, func() *policy.State { return large(5000, false) }},
	{"5,000 policies, a new pod", Pod{"ns0", "new", ""}, func() *policy.State { return large(5000, false) }},
	{"1,000 policies select the pod", firstPod, func() *policy.State { return large(1000, true) }},
}

var firstPod = Pod{"ns0", "pod-0", "00000000-1234-1234-1234-123456789012"}

func BenchmarkRead(b *testing.B) {
	b.Run("no mirror", func(b *testing.B) { benchmarkRead(b, node(b), firstPod) })
	for _, c := range cases {
		b.Run(c.name, func(b *testing.B) { benchmarkRead(b, mirrored(b, c.of()), c.pod) })
	}
}

func benchmarkRead(b *testing.B, p paths.Paths, pod Pod) {
	for b.Loop() {
		if _, err := Read(p, pod); err != nil {
			b.Fatal(err)
		}
	}
}

// coldRead is the variable with the state directory for a process that reads once, as an ADD.
const coldRead = "PATCHBAY_COLD_READ"

func printColdRead(state string) {
	pod := Pod{"ns0", os.Getenv("POD"), os.Getenv("UID_OF_POD")}
	start := time.Now()
	d, err := Read(paths.Paths{State: state}, pod)
	fmt.Println(time.Since(start).Nanoseconds(), err == nil, len(d.Sides[0].Chains))
}

// An ADD with 1,000 policies in the cluster reads at most 0.3 ms longer than with none. Each ADD is
// a process, so caches of encoding/json are empty. The other times are only printed, by
// `make test-all`.
func TestReadOfANewProcess(t *testing.T) {
	took := make(map[string]time.Duration)
	measured := cases[:2]
	if draw.All(t) {
		measured = cases
	}
	for _, c := range measured {
		took[c.name] = coldReads(t, mirrored(t, c.of()), c.pod)
		t.Logf("%s: %v", c.name, took[c.name])
	}
	t.Logf("no mirror: %v", coldReads(t, node(t), firstPod))
	if more := took["1,000 policies"] - took["no policy"]; more > 300*time.Microsecond {
		t.Errorf("1,000 policies cost %v, want 0.3 ms at most", more)
	}
}

// coldReads returns the median of 21 processes.
func coldReads(t *testing.T, p paths.Paths, pod Pod) time.Duration {
	t.Helper()
	var took []time.Duration
	for range 21 {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = []string{coldRead + "=" + p.State, "POD=" + pod.Name, "UID_OF_POD=" + pod.UID}
		out, err := cmd.Output()
		words := strings.Fields(string(out))
		if err != nil || len(words) != 3 || words[1] != "true" {
			t.Fatalf("got %q, %v", out, err)
		}
		ns, err := strconv.Atoi(words[0])
		if err != nil {
			t.Fatal(err)
		}
		took = append(took, time.Duration(ns))
	}
	slices.SortFunc(took, cmp.Compare[time.Duration])
	return took[len(took)/2]
}

// The mirror has a file for each namespace and for each pod of the node, however many policies there
// are.
func TestSize(t *testing.T) {
	for _, c := range cases {
		p, d := node(t), policy.NewDecider(c.of())
		start := time.Now()
		changed, err := Write(p, d)
		first := time.Since(start)
		start = time.Now()
		again, errAgain := Write(p, d)
		if err != nil || errAgain != nil || changed != 200+110+1 || again != 0 {
			t.Fatalf("%s: changed %d and then %d files, %v, %v, want 311 and none", c.name, changed, again, err, errAgain)
		}
		total, largest := sizes(t, p)
		t.Logf("%s: %d files, %d bytes, the largest has %d; written in %v, compared in %v", c.name, changed, total, largest, first, time.Since(start))
		if most := 128 << 10; largest > most {
			t.Errorf("%s: the largest file has %d bytes, want %d at most", c.name, largest, most)
		}
	}
}

func sizes(t *testing.T, p paths.Paths) (total, largest int) {
	t.Helper()
	for _, pattern := range []string{"*", "*/*"} {
		paths, err := filepath.Glob(filepath.Join(dir(p), pattern))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			if fi, err := os.Stat(path); err == nil && fi.Mode().IsRegular() {
				total, largest = total+int(fi.Size()), max(largest, int(fi.Size()))
			}
		}
	}
	return total, largest
}
