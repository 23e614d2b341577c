// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package health

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/patchbay-net/patchbay/internal/mesh"
)

// get returns the status and the text of a page.
func get(h *Health, path string) (int, string) {
	w := httptest.NewRecorder()
	h.Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, path, nil))
	return w.Code, w.Body.String()
}

func TestHandler(t *testing.T) { synctest.Test(t, answers) }

func answers(t *testing.T) {
	var heard time.Time
	var hangs error
	h := New(Options{
		Service: "test", Unready: errors.New("nothing is known yet"), Restart: "restart it",
		Hangs: func() error { return hangs }, Heard: func() time.Time { return heard }, Problems: func() map[string]int { return map[string]int{"block of": 2} },
	})
	says := func(path string, code int, parts ...string) {
		t.Helper()
		got, text := get(h, path)
		for _, part := range parts {
			if got != code || !strings.Contains(text, part) {
				t.Errorf("%s: %d, no %q in\n%s", path, got, part, text)
			}
		}
	}
	says("/readyz", 503, "nothing is known yet")
	says("/healthz", 200, "ok\n")
	says("/metrics", 200, "patchbay_test_ready 0\n", "patchbay_test_last_sync_timestamp_seconds 0\n", `patchbay_test_problems{reason="block of"} 2`)
	heard = time.Unix(1000, 0)
	block := netip.MustParsePrefix("10.200.1.0/24")
	if !h.Turned(nil, []mesh.Peer{{Blocks: []netip.Prefix{block, block}}, {Blocks: []netip.Prefix{block}}}) {
		t.Error("it became ready, and that is no change")
	}
	h.Applied(time.Second, nil)
	h.Applied(time.Second, errors.New("no"))
	says("/readyz", 200, "ok\n")
	says("/metrics", 200, "patchbay_test_ready 1\n", "patchbay_test_peers 2\n", "patchbay_test_routes 3\n", "patchbay_test_last_sync_timestamp_seconds 1000\n",
		`patchbay_test_applies_total{result="success"} 1`, `patchbay_test_applies_total{result="failure"} 1`, "patchbay_test_apply_duration_seconds_count 2\n")
	if h.Turned(nil, nil) {
		t.Error("it is ready again, and that is a change")
	}
	hangs = errors.New("another part hangs")
	says("/healthz", 503, "another part hangs")
	hangs = nil
	time.Sleep(HungAfter + time.Second)
	says("/healthz", 503, "the agent hangs", "restart it")
	h.Turned(nil, nil)
	says("/healthz", 200, "ok\n")
}
