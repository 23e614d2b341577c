// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"github.com/patchbay-net/patchbay/daemons/node/plan"
	"github.com/patchbay-net/patchbay/internal/podnet"
)

// running starts an agent that knows some Nodes.
func running(t *testing.T, peers string, nodes ...int) *lab {
	l := newLab(t, nodes...)
	l.start()
	l.awaitPeers(peers)
	l.await("ready", func() bool { return l.Ready() == nil })
	return l
}

// A list that is empty, or that lacks this Node, removes no Node. The Nodes that it contains are
// used.
func TestListWithoutThisNode(t *testing.T) {
	for name, omit := range map[string]func(string) bool{
		"empty": func(string) bool { return true },
		"self":  func(name string) bool { return name == "n1" || name == "n2" },
	} {
		t.Run(name, func(t *testing.T) {
			l := running(t, n2, 1, 2)
			conf := l.conf()
			l.api.say(func(s *apiServer) { s.omit = omit; s.nodes["n3"] = kubeNode(3) })
			l.api.cut(false)
			l.awaitProblem(plan.NoNode)
			want := n2
			if name == "self" {
				want += " " + n3
			}
			l.awaitPeers(want)
			l.api.say(func(s *apiServer) { s.omit = nil })
			l.await("an end", func() bool { return l.trouble.mine()[plan.NoNode] == "" })
			l.awaitPeers(n2 + " " + n3)
			if l.conf() != conf {
				t.Error(l.conf())
			}
		})
	}
}

// This Node is deleted while its pods run.
func TestThisNodeDeleted(t *testing.T) {
	l := running(t, n2, 1, 2)
	conf := l.conf()
	l.api.remove("n1", false)
	l.awaitProblem(plan.NoNode)
	if l.Ready() != nil || l.conf() != conf {
		t.Errorf("%v\n%s", l.Ready(), l.conf())
	}
	bare := kubeNode(1)
	bare.UID, bare.Spec = "uid-2", corev1.NodeSpec{} // registered again, without podCIDRs yet
	l.api.set(bare)
	l.awaitProblem(plan.Withheld)
	if l.Ready() != nil || l.conf() != conf {
		t.Errorf("%v\n%s", l.Ready(), l.conf())
	}
	again := kubeNode(1)
	again.Spec.PodCIDRs = []string{"10.244.9.0/24"}
	l.api.set(again)
	l.await("the new podCIDR", func() bool { return strings.Contains(l.conf(), `"subnet": "10.244.9.0/24"`) })
	l.await("an end", func() bool { return len(l.trouble.mine()) == 0 })
}

// A Node that a list lacks stays for a while, because the API server may have been restored from a
// backup. If another Node gets its podCIDR, that Node has the podCIDR at once.
func TestOmitted(t *testing.T) {
	l := running(t, n2+" "+n3, 1, 2, 3)
	l.api.say(func(s *apiServer) { s.omit = func(name string) bool { return name == "n2" } })
	l.api.cut(false)
	missing := func() bool {
		nodes := l.mirror.view().nodes
		return slices.ContainsFunc(nodes, func(n plan.Node) bool { return n.Name == "n2" && n.Missing })
	}
	l.await("n2 is missing", missing)
	l.pass(grace - time.Minute)
	l.awaitPeers(n2 + " " + n3)
	l.api.say(func(s *apiServer) { s.omit = nil })
	l.api.cut(false)
	l.await("n2 is back", func() bool { return !missing() })
	l.pass(grace)
	l.awaitPeers(n2 + " " + n3)
	l.api.remove("n2", true)
	l.api.cut(false)
	l.await("n2 is missing", missing)
	l.pass(grace)
	l.awaitPeers(n3)
}

// The hour of a missing Node goes on when the agent starts again.
func TestMissingWhenTheAgentStartsAgain(t *testing.T) {
	l := running(t, n2+" "+n3, 1, 2, 3)
	since := func() time.Time { return l.mirror.view().missing["n2"] }
	l.api.remove("n2", true)
	l.api.cut(false)
	l.await("n2 is missing", func() bool { return !since().IsZero() && l.Ready() == nil })
	began := since()
	l.await("the file", func() bool {
		data, err := os.ReadFile(cachePath(l.opts.Paths))
		return err == nil && strings.Contains(string(data), "missingSince")
	})
	l.stop()
	l.start()
	l.await("ready", func() bool { return l.Ready() == nil && !l.mirror.view().synced.IsZero() })
	if got := since(); !got.Equal(began) {
		t.Errorf("it is missing since %v, want %v", got, began)
	}
	l.pass(grace)
	l.awaitPeers(n3)
}

// A Node is deleted while the agent is away, and another one gets its podCIDR.
func TestDeletedWhileAway(t *testing.T) {
	l := running(t, n2+" "+n3, 1, 2, 3)
	l.stop()
	l.api.remove("n2", true)
	heir := kubeNode(4)
	heir.Spec.PodCIDRs = kubeNode(2).Spec.PodCIDRs
	l.api.set(heir)
	l.start()
	l.awaitPeers(n3 + " n4=10.244.2.0/24")
	l.stop()
	l.api.say(func(s *apiServer) { s.refuse = http.StatusInternalServerError })
	l.start()
	l.await("ready", func() bool { return l.Ready() == nil })
	l.awaitPeers(n3 + " n4=10.244.2.0/24")
}

// Without the API server, the agent uses the Nodes of its last run, and writes no file.
func TestStartWithoutAPI(t *testing.T) {
	for name, refuse := range map[string]func(*apiServer){
		"refused": func(s *apiServer) { s.refuse = http.StatusInternalServerError },
		"slow":    func(s *apiServer) { s.before = func(http.ResponseWriter) { <-s.Context().Done() } },
	} {
		t.Run(name, func(t *testing.T) {
			l := running(t, n2, 1, 2)
			l.stop()
			before := stamps(t, l.dir)
			l.api.say(refuse)
			l.fabric.peers = nil
			l.start()
			l.await("ready", func() bool { return l.Ready() == nil })
			l.awaitPeers(n2)
			l.stop()
			if after := stamps(t, l.dir); !slices.Equal(after, before) {
				t.Errorf("written:\n%q\nwas\n%q", after, before)
			}
		})
	}
}

// stamps lists files with the time of their inodes' last change.
func stamps(t *testing.T, dir string) (list []string) {
	t.Helper()
	for _, file := range []string{"node/" + cacheFile, "net.d/" + podnet.File} {
		fi, err := os.Stat(filepath.Join(dir, file))
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, file+" "+fi.ModTime().String())
	}
	return list
}

// If the file of Nodes is damaged or of a later version, the agent reports it and writes it again.
func TestCacheDamaged(t *testing.T) {
	for _, text := range []string{`{"schema": 1, "no`, `{"schema": 2, "nodes": []}`} {
		l := newLab(t, 1, 2)
		if err := os.MkdirAll(filepath.Join(l.dir, "node"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(l.dir, "node", cacheFile), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		l.start()
		l.awaitPeers(n2)
		l.await("an end", func() bool { return len(l.trouble.mine()) == 0 })
		l.stop()
	}
}

// At its first start without the API server, the agent waits and reports that.
func TestFirstStartWithoutAPI(t *testing.T) {
	l := newLab(t, 1, 2)
	l.api.say(func(s *apiServer) { s.refuse = http.StatusServiceUnavailable })
	l.start()
	l.awaitProblem(apiFailed)
	if l.Ready() == nil || l.conf() != "" {
		t.Errorf("%v %q", l.Ready(), l.conf())
	}
	l.api.say(func(s *apiServer) { s.refuse = 0 })
	l.awaitPeers(n2)
	l.await("ready", func() bool { return l.Ready() == nil })
}

// Credentials expire, and new ones are used without a restart.
func TestUnauthorized(t *testing.T) {
	l := newLab(t, 1, 2)
	token := make(chan string, 1)
	token <- "old"
	l.api.say(func(s *apiServer) { s.token = "old" })
	l.start(func(o *Options) {
		o.Config = func() (*rest.Config, string, error) {
			now := <-token
			token <- now
			return &rest.Config{Host: l.api.url, BearerToken: now}, now, nil
		}
	})
	l.awaitPeers(n2)
	l.await("ready", func() bool { return l.Ready() == nil })
	l.api.say(func(s *apiServer) { s.token = "new" })
	l.api.cut(false)
	l.await("a refusal", func() bool { return strings.Contains(l.trouble.mine()[apiFailed], "renew the kubeconfig") })
	if l.Ready() != nil || l.fabric.peerList() != n2 {
		t.Errorf("%v %s", l.Ready(), l.fabric.peerList())
	}
	<-token
	token <- "new"
	l.api.set(kubeNode(3))
	l.awaitPeers(n2 + " " + n3)
	l.await("an end", func() bool { return l.trouble.mine()[apiFailed] == "" })
}

// After a watch whose revision is too old, the agent lists again. If the Nodes are the same, it
// changes nothing.
func TestGone(t *testing.T) {
	l := running(t, n2, 1, 2)
	l.fabric.mu.Lock()
	before := l.fabric.applies
	l.fabric.mu.Unlock()
	lists := func() (n int) { l.api.say(func(s *apiServer) { n = s.lists }); return n }
	was := lists()
	l.api.cut(false)
	l.await("another list", func() bool { return lists() > was })
	l.api.set(kubeNode(3))
	l.awaitPeers(n2 + " " + n3)
	if l.fabric.applies != before+1 {
		t.Errorf("%d applies after %d", l.fabric.applies, before)
	}
}

// Problems of this Node become Events, each written once. Problems of other Nodes do not.
func TestEvents(t *testing.T) {
	l := newLab(t)
	bare, other := kubeNode(1), kubeNode(2)
	bare.Spec, other.Spec = corev1.NodeSpec{}, corev1.NodeSpec{}
	l.api.set(bare)
	l.api.set(other)
	l.start()
	events := func() (list []*corev1.Event) {
		l.api.say(func(s *apiServer) { list = slices.Clone(s.events) })
		return list
	}
	l.await("an Event", func() bool { return len(events()) > 0 })
	e := events()[0]
	if e.Reason != string(plan.NoPodCIDR) || e.InvolvedObject.Name != "n1" || e.InvolvedObject.UID != "uid-1" || e.Type != corev1.EventTypeWarning ||
		!strings.Contains(e.Message, "--allocate-node-cidrs") || e.Source.Host != "n1" {
		t.Errorf("%+v", e)
	}
	l.await("not ready for that", func() bool { err := l.Ready(); return err != nil && strings.Contains(err.Error(), "no podCIDR") }) // the Event may come first
	if conf := l.conf(); conf != "" {
		t.Error(conf)
	}
	if n := l.trouble.count()[plan.NoPodCIDR]; n != 2 {
		t.Errorf("%d Nodes", n)
	}
	l.api.set(kubeNode(1))
	l.await("ready", func() bool { return l.Ready() == nil })
	l.api.say(func(s *apiServer) {
		s.before = func(w http.ResponseWriter) {
			w.Header().Set("Date", time.Now().Add(-26*time.Hour).UTC().Format(http.TimeFormat))
		}
	})
	l.api.cut(false)
	l.await("an Event of the clock", func() bool { return len(events()) > 1 })
	if list := events(); len(list) != 2 || list[1].Reason != string(clockOff) || !strings.Contains(list[1].Message, "26h") {
		t.Errorf("%+v", list)
	}
}

// An Event is repeated each hour. If its text changes all the time, it is written at most every
// five minutes.
func TestEventsDue(t *testing.T) {
	start := time.Now()
	e := events{sent: map[topic]sent{{reason: "A"}: {"a", start}}}
	for after, want := range map[time.Duration]string{0: "[B]", newEvent - 1: "[B]", newEvent: "[B]", repeatEvent: "[A B]"} {
		if got := e.due(topics(map[plan.Reason]string{"A": "a", "B": "b"}, nil), start.Add(after)); reasons(got) != want {
			t.Errorf("after %v: %v", after, got)
		}
	}
	for after, want := range map[time.Duration]string{0: "[]", newEvent: "[A]"} {
		if got := e.due(topics(map[plan.Reason]string{"A": "other"}, nil), start.Add(after)); reasons(got) != want {
			t.Errorf("after %v: %v", after, got)
		}
	}
}

func reasons(list []topic) string {
	var texts []string
	for _, t := range list {
		texts = append(texts, string(t.reason))
	}
	return "[" + strings.Join(texts, " ") + "]"
}

// A file of another program at the path of our network's file stays.
func TestForeignNetworkFile(t *testing.T) {
	l := newLab(t, 1, 2)
	dir := filepath.Join(l.dir, "net.d")
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, podnet.File), []byte(`{"name": "other"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	l.start()
	l.awaitProblem(networkFailed)
	if l.Ready() == nil || l.conf() != `{"name": "other"}` {
		t.Errorf("%v %q", l.Ready(), l.conf())
	}
}

// The handler serves metrics and health.
func TestHandler(t *testing.T) {
	l := running(t, n2, 1, 2)
	for path, want := range map[string]string{
		"/healthz": "ok\n", "/readyz": "ok\n", "/metrics": "patchbay_node_peers 1\n",
	} {
		w := httpRecorder(l.Handler(), path)
		if !strings.Contains(w, want) {
			t.Errorf("%s: %s", path, w)
		}
	}
	for _, line := range []string{"patchbay_node_routes 2", "patchbay_node_ready 1", `patchbay_node_applies_total{result="success"}`, "patchbay_node_last_sync_timestamp_seconds 1."} {
		if w := httpRecorder(l.Handler(), "/metrics"); !strings.Contains(w, line) {
			t.Errorf("no %s in\n%s", line, w)
		}
	}
}
