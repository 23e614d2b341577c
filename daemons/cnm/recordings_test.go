// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cnm

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// exchange is one recorded call: the request of dockerd, or of a prototype of the cnm plugin, and
// the driver's answer.
type exchange struct {
	at     string // file:line
	method string
	host   string
	body   string // "" for none
	status int
	answer string
}

// recordings reads the calls in testdata/recordings. The recorded requests have sorted keys.
func recordings(t testing.TB) map[string][]exchange {
	t.Helper()
	files, err := filepath.Glob("testdata/recordings/*.log")
	if err != nil || len(files) != 29 {
		t.Fatalf("%d recordings, %v", len(files), err)
	}
	out := map[string][]exchange{}
	for _, file := range files {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		out[filepath.Base(file)] = exchanges(t, file, string(data))
	}
	return out
}

func exchanges(t testing.TB, file, text string) (list []exchange) {
	waiting := map[string][]int{} // calls that have no answer yet, by method
	n := 0
	for line := range strings.Lines(text) {
		n++
		if strings.HasPrefix(line, ">> ") { // the managed plugin's recording has neither times nor answers
			line = "0 " + line
		}
		f := strings.SplitN(strings.TrimSpace(line), " ", 4)
		method := strings.TrimPrefix(f[2], "/")
		switch f[1] {
		case ">>":
			e := exchange{at: fmt.Sprintf("%s:%d", file, n), method: method}
			rest, header, _ := strings.Cut(f[3], " hdr ")
			if rest = strings.TrimSpace(rest); rest != "(empty body)" {
				e.body = rest
			}
			e.host = hostOf(t, header)
			if f[0] == "0" {
				e.status, e.answer = http.StatusOK, "{}"
			} else {
				waiting[method] = append(waiting[method], len(list))
			}
			list = append(list, e)
		case "<<":
			status, answer, _ := strings.Cut(f[3], " ")
			e := &list[waiting[method][0]]
			waiting[method] = waiting[method][1:]
			e.status, _ = strconv.Atoi(status)
			e.answer = strings.TrimSpace(answer)
		}
	}
	return list
}

func hostOf(t testing.TB, header string) string {
	var h struct{ Host string }
	if header != "" {
		if err := json.Unmarshal([]byte(header), &h); err != nil {
			t.Fatal(err)
		}
	}
	return h.Host
}

// TestServerReplaysRecordings sends dockerd's recorded requests to a Handler. Its driver gives
// the recorded answers. No part of a request or an answer may be lost or changed.
func TestServerReplaysRecordings(t *testing.T) {
	for name, list := range recordings(t) {
		t.Run(name, func(t *testing.T) {
			d := &scripted{}
			for _, e := range list {
				if e.status == 0 {
					continue // the driver was killed during the call
				}
				d.answer, d.got = e.answer, nil
				h := &Handler{Network: d, IPAM: d}
				if e.method == "Plugin.Activate" && !strings.Contains(e.answer, "IpamDriver") {
					h.IPAM = nil
				}
				r := httptest.NewRequest(http.MethodPost, "/"+e.method, strings.NewReader(e.body))
				r.Host = e.host
				w := httptest.NewRecorder()
				h.ServeHTTP(w, r)
				if w.Code != e.status {
					t.Errorf("%s: %s: status %d, want %d: %s", e.at, e.method, w.Code, e.status, w.Body)
				}
				same(t, e.at+": answer of "+e.method, w.Body.String(), e.answer)
				if e.body != "" {
					same(t, e.at+": request "+e.method, mustJSON(t, d.got), e.body)
				}
			}
		})
	}
}

// TestClientReplaysRecordings calls each method with the recorded request. The client must send
// the same values, and return the recorded answer.
func TestClientReplaysRecordings(t *testing.T) {
	var e exchange
	var sent, accept string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		sent, accept = string(body), r.Header.Get("Accept")
		w.WriteHeader(e.status)
		io.WriteString(w, e.answer) //nolint:errcheck // a test
	}))
	defer srv.Close()
	c, err := NewClient(DriverAddr{URL: srv.URL}, ClientOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, list := range recordings(t) {
		for _, e = range list {
			if e.status == 0 {
				continue
			}
			out, err := callTyped(t, c, e)
			if e.body != "" {
				same(t, e.at+": request "+e.method, sent, e.body)
			} else if sent != "" {
				t.Errorf("%s: %s has a body: %s", e.at, e.method, sent)
			}
			if accept != ContentType {
				t.Errorf("Accept: %q", accept)
			}
			if err != nil {
				out = errorBody{driverText(t, err), driverText(t, err)}
			}
			same(t, e.at+": answer of "+e.method, mustJSON(t, out), e.answer)
		}
	}
}

// same compares two JSON texts, with absent, null, zero and empty as equal: Docker and
// the recorded drivers use any of them.
func same(t *testing.T, what, got, want string) {
	t.Helper()
	if d := cmp.Diff(normal(t, want), normal(t, got)); d != "" {
		t.Errorf("%s (-recorded +ours):\n%s", what, d)
	}
}

func normal(t *testing.T, text string) any {
	t.Helper()
	if strings.TrimSpace(text) == "" {
		return nil
	}
	var v any
	d := json.NewDecoder(bytes.NewReader([]byte(text)))
	d.UseNumber()
	if err := d.Decode(&v); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	return prune(v)
}

func prune(v any) any {
	switch v := v.(type) {
	case map[string]any:
		out := map[string]any{}
		for k, e := range v {
			if p := prune(e); p != nil {
				out[k] = p
			}
		}
		if len(out) > 0 {
			return out
		}
	case []any:
		var out []any
		for _, e := range v {
			out = append(out, prune(e))
		}
		if len(out) > 0 {
			return out
		}
	case string:
		if v != "" {
			return v
		}
	case bool:
		if v {
			return v
		}
	case json.Number:
		if v != "0" {
			return v
		}
	}
	return nil
}

func mustJSON(t testing.TB, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
