// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// serves waits until a page of the agent has a text.
func (h *host) serves(path, want string) {
	h.t.Helper()
	until(h.t, path+" has "+want, func() bool {
		w := httptest.NewRecorder()
		h.agent.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
		return strings.Contains(w.Body.String(), want)
	})
}

// The handler serves the metrics and the health of an agent, with the names that the agent of a Kubernetes node has.
func TestHandler(t *testing.T) {
	s := openStore(t)
	must(t, Admin{s}.Create(t.Context(), lan()))
	a, b := newHost(t, s, 1), newHost(t, s, 2)
	a.late = 1 // it finds no uplink at first
	a.start()
	b.start()
	a.block("lan")
	b.block("lan")
	for _, line := range []string{
		"patchbay_hosts_peers 1\n", "patchbay_hosts_routes 1\n", "patchbay_hosts_ready 1\n", "patchbay_hosts_last_sync_timestamp_seconds 1.",
		`patchbay_hosts_applies_total{result="success"}`, "patchbay_hosts_apply_duration_seconds_count",
	} {
		a.serves("/metrics", line)
	}
	a.serves("/healthz", "ok\n")
	a.serves("/readyz", "ok\n")
	a.agent.problems.Set("a subject", errNoUplink)
	a.serves("/metrics", `patchbay_hosts_problems{reason="a subject"} 1`)
}

// An agent that knows nothing yet, or whose host has no uplink, says why it is not ready.
func TestNotReady(t *testing.T) {
	n := lan()
	_, a := stillAgent(t, &n)
	if err := a.Ready(); err == nil || !strings.Contains(err.Error(), "the store has not answered") {
		t.Errorf("%v", err)
	}
	a.opts.Fabric.(*fakeFabric).late = 1
	a.apply(t.Context(), true)
	if err := a.Ready(); err == nil || !strings.Contains(err.Error(), "no uplink") {
		t.Errorf("%v", err)
	}
	a.apply(t.Context(), true)
	if err := a.Ready(); err != nil {
		t.Error(err)
	}
}
