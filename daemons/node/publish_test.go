// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/patchbay-net/patchbay/daemons/node/plan"
	"github.com/patchbay-net/patchbay/internal/mesh"
)

// key returns a public key for tests.
func key(i byte) mesh.Key { return mesh.Key{i, 7} }

// keyNode returns a Node with a value as its WireGuard key.
func keyNode(i int, value string) *corev1.Node {
	return annotated(kubeNode(i), map[string]string{plan.KeyAnnotation: value})
}

func encrypted(o *Options) { o.Transport, o.Key = mesh.WireGuard, key(1) }

// annotation returns the key in a Node's annotation at the API server.
func (l *lab) annotation(node string) (text string) {
	l.api.say(func(s *apiServer) { text = s.nodes[node].Annotations[plan.KeyAnnotation] })
	return text
}

// peerKeys returns the key of each applied peer.
func (l *lab) peerKeys() map[string]mesh.Key {
	l.fabric.mu.Lock()
	defer l.fabric.mu.Unlock()
	out := map[string]mesh.Key{}
	for _, p := range l.fabric.peers {
		out[p.ID] = p.Key
		if p.Transport != mesh.WireGuard || !l.fabric.self.Subnets[0].Encrypted {
			l.Errorf("not encrypted: %+v", p)
		}
	}
	return out
}

func (l *lab) awaitKeys(want map[string]mesh.Key) {
	l.Helper()
	l.await("the peers' keys", func() bool {
		have := l.peerKeys()
		same := len(have) == len(want)
		for name, k := range want {
			same = same && have[name] == k
		}
		return same
	})
}

// The agent publishes its key and encrypts with the peers' keys. It also has these keys after a
// start without the API server.
func TestKeys(t *testing.T) {
	l := newLab(t, 1)
	l.api.set(keyNode(2, key(2).String()))
	l.start(encrypted)
	l.await("the key in the annotation", func() bool { return l.annotation("n1") == key(1).String() })
	l.awaitKeys(map[string]mesh.Key{"n2": key(2)})
	l.await("ready", func() bool { return l.Ready() == nil && len(l.trouble.mine()) == 0 })
	if !strings.Contains(l.conf(), `"mtu": 1420`) {
		t.Error(l.conf())
	}
	l.api.set(keyNode(2, key(9).String())) // as after its disk was lost
	l.awaitKeys(map[string]mesh.Key{"n2": key(9)})
	l.stop()
	l.api.say(func(s *apiServer) { s.refuse = http.StatusInternalServerError })
	l.fabric.peers = nil
	l.start(encrypted)
	l.awaitKeys(map[string]mesh.Key{"n2": key(9)})
}

// If a Node has a wrong key, only the pods of that Node are unreachable, and the agent reports why.
func TestWrongKeys(t *testing.T) {
	for name, c := range map[string]struct {
		value  string
		reason plan.Reason
		keeps  bool // the key that it had
	}{
		"none":           {"", plan.NoKey, false},
		"not base64":     {"{{.PodCIDR}}\x1b[31m", plan.BadKey, false},
		"short":          {"c2hvcnQ=", plan.BadKey, false},
		"long":           {strings.Repeat("A", 200<<10), plan.BadKey, false},
		"zero":           {"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=", plan.BadKey, false},
		"of this node":   {key(1).String(), plan.DuplicateKey, true},
		"of another one": {key(3).String(), plan.DuplicateKey, true},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, 1)
			l.api.set(keyNode(2, key(2).String()))
			l.api.set(keyNode(3, key(3).String()))
			l.start(encrypted)
			l.awaitKeys(map[string]mesh.Key{"n2": key(2), "n3": key(3)})
			l.await("its own key", func() bool { return l.annotation("n1") == key(1).String() })
			l.api.set(keyNode(2, c.value))
			l.await("a problem", func() bool { return l.trouble.count()[c.reason] == 1 })
			want := map[string]mesh.Key{"n3": key(3)}
			if c.keeps {
				want["n2"] = key(2)
			}
			l.awaitKeys(want)
			l.await("ready", func() bool { return l.Ready() == nil })
			for _, p := range l.trouble.problems.All() {
				if strings.Contains(p, "\x1b") || len(p) > 1000 {
					t.Errorf("%q", p)
				}
			}
			l.api.set(keyNode(2, key(8).String()))
			l.awaitKeys(map[string]mesh.Key{"n2": key(8), "n3": key(3)})
			l.await("an end", func() bool { return l.trouble.count()[c.reason] == 0 })
		})
	}
}

// A user changes this Node's annotation, in one case to the key of another Node. The agent writes
// its own key again and reports the change.
func TestKeyReplaced(t *testing.T) {
	for name, value := range map[string]string{"wrong": "x", "of another": key(2).String()} {
		t.Run(name, func(t *testing.T) {
			l := newLab(t, 1)
			l.api.set(keyNode(2, key(2).String()))
			l.start(encrypted)
			l.await("its key", func() bool { return l.annotation("n1") == key(1).String() })
			l.await("no problem", func() bool { return len(l.trouble.mine()) == 0 })
			l.api.set(keyNode(1, value))
			l.await("its key again", func() bool { return l.annotation("n1") == key(1).String() })
			l.await("an Event", func() bool { return strings.Contains(l.event(keyReplaced), "the agent writes it again") })
			l.await("an end", func() bool { return len(l.trouble.mine()) == 0 })
			l.awaitKeys(map[string]mesh.Key{"n2": key(2)})
		})
	}
}

// If the agent may not publish its key, it reports that other nodes cannot reach its pods, and
// which right is missing. All else works.
func TestKeyForbidden(t *testing.T) {
	l := newLab(t, 1)
	l.api.set(keyNode(2, key(2).String()))
	l.api.forbid = true
	l.start(encrypted)
	l.await("an Event", func() bool { return strings.Contains(l.event(keyUnpublished), "may not patch nodes/status") })
	l.awaitKeys(map[string]mesh.Key{"n2": key(2)})
	l.api.say(func(s *apiServer) { s.forbid = false })
	l.await("its key", func() bool { return l.annotation("n1") == key(1).String() })
	l.await("an end", func() bool { return len(l.trouble.mine()) == 0 })
}

// An agent that starts again with WireGuard publishes its key at once, also if the API server's
// first answer is what the agent has saved.
func TestKeyAfterRestart(t *testing.T) {
	l := newLab(t, 1, 2)
	l.start()
	l.await("ready", func() bool { return l.Ready() == nil })
	l.stop()
	began := time.Now()
	l.start(func(o *Options) { o.Transport, o.Key = mesh.WireGuard, mesh.Key{1} })
	l.await("the key", func() bool {
		l.api.mu.Lock()
		defer l.api.mu.Unlock()
		return l.api.nodes["n1"].Annotations[plan.KeyAnnotation] != ""
	})
	if took := time.Since(began); took > reconcileEvery/2 {
		t.Errorf("published after %v", took)
	}
}
