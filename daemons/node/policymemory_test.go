// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/daemons/node/policies"
	"github.com/patchbay-net/patchbay/internal/test/draw"
)

// manyPod is one of many pods on 200 nodes, as long as a common one: 3 kB. Ten are alike.
func manyPod(i, version int) string {
	filler := strings.Repeat(`{"name":"SOME_VARIABLE","value":"some value"},`, 45)
	w := i / 10
	return fmt.Sprintf(`{"metadata":{"namespace":"team-%d","name":"app%d-5d4f8c7b9-%05d","uid":"0b9f3a52-7a0e-4d6c-9f56-%012d","creationTimestamp":"2026-11-23T08:00:00Z",`+
		`"labels":{"app.kubernetes.io/name":"app%d","app.kubernetes.io/component":"tier%d","pod-template-hash":"5d4f8c7b9-%d","version":"v%d"}},`+
		`"spec":{"nodeName":"n%d","containers":[{"name":"main","ports":[{"name":"http","containerPort":%d}],"env":[%s{}]}]},"status":{"phase":"Running","podIPs":[{"ip":"10.%d.%d.%d"},{"ip":"fd01::%x:%x:%x"}]}}`,
		w%200, w, i, i, w%50, w%3, w, version, 1+i%200, 8000+w%10, filler, i>>16, i>>8&255, i&255, i>>16, i>>8&255, i&255)
}

func manyPolicy(i int) string {
	return fmt.Sprintf(`{"metadata":{"namespace":"team-%d","name":"p%d"},"spec":{"podSelector":{"matchLabels":{"app.kubernetes.io/name":"app%d"}},"policyTypes":["Ingress"],`+
		`"ingress":[{"from":[{"podSelector":{"matchLabels":{"app.kubernetes.io/component":"tier1"}}}],"ports":[{"protocol":"TCP","port":"http"}]},{"from":[{"namespaceSelector":{"matchLabels":{"team":"t%d"}}}]}]}}`,
		i%200, i, i%50, i%20)
}

// many fills the API server with a cluster of 200 Nodes, 200 Namespaces, and a policy for each 20 pods.
func many(s *apiServer, pods int) {
	for i := range 200 {
		s.set(kubeNode(1 + i))
		name := fmt.Sprint("team-", i)
		s.labelled(name, map[string]string{"team": fmt.Sprint("t", i%20), "kubernetes.io/metadata.name": name})
	}
	for i := range pods {
		s.kinds.of(policies.Pods).put(manyPod(i, 0))
	}
	for i := range pods / 20 {
		s.kinds.of(policies.NetworkPolicies).put(manyPolicy(i))
	}
}

// forget ends all watches. The agents must list everything again.
func (s *apiServer) forget() {
	s.mu.Lock()
	s.rev += 10
	s.mu.Unlock()
	s.cut(false)
}

// TestPolicyMemory runs the real program beside many pods and policies, and makes it list all of them
// again. It limits anonymous memory: the mapped pages of the same program take 17 to 30 MB, depending on
// the size of the folios in the machine's page cache. PATCHBAY_POLICY_MEMORY is the number of pods.
func TestPolicyMemory(t *testing.T) {
	uplink(t)
	api := newAPIServer(t)
	pods := draw.Number(t, "PATCHBAY_POLICY_MEMORY", 4000, 20000)
	many(api, pods)
	p := newProcess(t, api)
	t.Cleanup(func() { p.clean() })
	p.start()
	most := p.mostAnonymous()
	p.awaitPrograms(1)
	settled := p.settled()
	t.Logf("at rest: %d kB; VmHWM %d kB, RssAnon %d kB, RssFile %d kB", settled, p.memory("VmHWM"), p.memory("RssAnon"), p.memory("RssFile"))
	for round := range draw.Number(t, "PATCHBAY_POLICY_LISTS", 1, 2) {
		before := p.metricIfAny(programsMade)
		api.forget()
		for i := range 100 {
			api.kinds.of(policies.Pods).put(manyPod(i, round+1))
		}
		p.awaitPrograms(before + 1)
		time.Sleep(2 * time.Second)
		t.Logf("listed again: %d kB; VmHWM %d kB, RssAnon %d kB, RssFile %d kB", p.settled(), p.memory("VmHWM"), p.memory("RssAnon"), p.memory("RssFile"))
	}
	if n := most(); n < p.memory("RssAnon") || n > 44<<10 {
		t.Errorf("the agent took %d kB of anonymous memory", n)
	} else {
		t.Logf("most anonymous memory: %d kB", n)
	}
	p.stop(unix.SIGTERM)
}

// mostAnonymous reads the process's anonymous memory each 5 ms until most is called, which returns the
// highest value in kB.
func (p *process) mostAnonymous() (most func() int) {
	done, highest := make(chan struct{}), make(chan int, 1)
	go func() {
		n := 0
		for ended := false; !ended; {
			now, err := memoryOf(p.cmd.Process.Pid, "RssAnon")
			n = max(n, now)
			select {
			case <-done:
				ended = true
			case <-time.After(5 * time.Millisecond):
				ended = err != nil // the process has ended
			}
		}
		highest <- n
	}()
	return func() int { close(done); return <-highest }
}

// programsMade counts programs that came into force.
const programsMade = `patchbay_node_policy_programs_total{result="success"}`

func (p *process) awaitPrograms(n float64) {
	p.Helper()
	p.awaitMetric(programsMade, n)
}

// metricIfAny is a value of the program's metrics, or 0 if there is none yet.
func (p *process) metricIfAny(name string) float64 {
	p.Helper()
	_, rest, _ := strings.Cut(p.metrics(), "\n"+name+" ")
	var v float64
	fmt.Sscan(rest, &v) //nolint:errcheck // 0 then
	return v
}
