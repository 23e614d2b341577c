// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/patchbay-net/patchbay/daemons/internal/fabric/health"
	"github.com/patchbay-net/patchbay/internal/resident"
)

// reports waits until the report for doctor contains want, or, if want is "", is empty.
func (l *lab) reports(want string) {
	l.Helper()
	l.await("a report of "+want, func() bool { return l.hasReport(want) })
}

func (l *lab) hasReport(want string) bool {
	r, _, err := resident.ReadReport(l.opts.Paths, Service)
	if err != nil || want == "" {
		return err == nil && r.Unready == "" && len(r.Problems) == 0
	}
	for _, p := range r.Problems {
		if strings.Contains(p.Reason+" "+p.Text, want) {
			return true
		}
	}
	return strings.Contains(r.Unready, want)
}

// The report for doctor has the problems of the node and the problems of Node objects.
func TestReport(t *testing.T) {
	for name, c := range map[string]struct {
		wrong func(*apiServer)
		says  string
	}{
		"without a podCIDR":  {func(s *apiServer) { n := kubeNode(2); n.Spec = corev1.NodeSpec{}; s.set(n) }, "NodeLacksFields Node n2"},
		"a wrong podCIDR":    {func(s *apiServer) { n := kubeNode(3); n.Spec.PodCIDRs = []string{"10.244.9.1/24"}; s.set(n) }, "InvalidPodCIDR"},
		"overlapping":        {func(s *apiServer) { n := kubeNode(3); n.Spec.PodCIDRs = kubeNode(2).Spec.PodCIDRs; s.set(n) }, "PodCIDROverlaps Node n3"},
		"expired kubeconfig": {func(s *apiServer) { s.say(func(s *apiServer) { s.refuse = http.StatusUnauthorized }); s.cut(false) }, "renew the kubeconfig"},
		"the clock": {func(s *apiServer) {
			s.say(func(s *apiServer) {
				s.before = func(w http.ResponseWriter) {
					w.Header().Set("Date", time.Now().Add(24*time.Hour).UTC().Format(http.TimeFormat))
				}
			})
			s.cut(false)
		}, "set the clock"},
	} {
		t.Run(name, func(t *testing.T) {
			l := running(t, n2, 1, 2)
			l.reports("")
			conf := l.conf()
			c.wrong(l.api)
			l.reports(c.says)
			if l.Ready() != nil || l.conf() != conf || !strings.Contains(l.fabric.peerList(), n2) {
				t.Errorf("%v %s\n%s", l.Ready(), l.fabric.peerList(), l.conf())
			}
		})
	}
}

// An agent that hangs says so: report runs in its own goroutine.
func TestReportHangs(t *testing.T) {
	l := running(t, n2, 1, 2)
	l.reports("")
	l.await("a report of AgentHangs", func() bool {
		l.policy.busy.since.Store(time.Now().Add(-2 * health.HungAfter).Unix()) // again, because a program may still end
		resident.Signal(l.said)
		time.Sleep(resident.Settle(0))
		return l.hasReport("AgentHangs")
	})
}

// The agent does not write a report again and again. A report that cannot be written is a problem.
func TestReportQuiet(t *testing.T) {
	l := running(t, n2, 1, 2)
	l.reports("")
	l.await("an end of writes", func() bool {
		before, err := os.Stat(resident.ReportPath(l.opts.Paths, Service))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(10 * resident.Settle(0))
		after, err := os.Stat(resident.ReportPath(l.opts.Paths, Service))
		return err == nil && os.SameFile(before, after)
	})
	l.stop()
	l.start(func(o *Options) { o.Paths.Run = "/proc/none" })
	l.awaitProblem(reportFailed)
}
