// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cnm

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// post sends a body to a handler.
func post(h *Handler, method, body string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/"+method, strings.NewReader(body)))
	return w
}

// plain is a driver without any optional interface.
type plain struct{ NetworkDriver }

// TestServerAnswers: unknown methods, requests without names, invalid JSON.
func TestServerAnswers(t *testing.T) {
	d := &scripted{answer: "{}"}
	h := &Handler{Network: plain{d}}
	for _, c := range []struct {
		method, body string
		status       int
		want         string
	}{
		{"NetworkDriver.Nothing", "{}", 404, ""},
		{"NetworkDriver.", "{}", 404, ""},
		{"", "", 404, ""},
		{"IpamDriver.RequestPool", "{}", 404, ""},                    // it is no IPAM driver
		{"NetworkDriver.ProgramExternalConnectivity", "{}", 404, ""}, // it publishes no ports
		{"NetworkDriver.GwAllocCheck", "{}", 404, ""},                // as before 28
		{"NetworkDriver.AllocateNetwork", "{}", 404, ""},             // no swarm
		{"NetworkDriver.Leave", "", 200, "{}"},                       // tried again without its body
		{"NetworkDriver.DeleteNetwork", " \n", 200, "{}"},            // as well
		{"NetworkDriver.CreateNetwork", "", 200, "names no object"},  // no network can be made of it
		{"NetworkDriver.Join", `{"NetworkID":"n"}`, 200, "names no object"},
		{"NetworkDriver.Join", `{"NetworkID":1}`, 200, "decode request"},
		{"NetworkDriver.Join", `[`, 200, "decode request"},
		{"NetworkDriver.GetCapabilities", "what?", 200, `"Scope"`},
		{"NetworkDriver.Leave", `{"NetworkID":"n","EndpointID":"e","New":{"x":1}}`, 200, "{}"}, // an unknown field
		{"NetworkDriver.CreateEndpoint", strings.Repeat("x", MaxBody+1), 200, "too large"},
	} {
		w := post(h, c.method, c.body)
		if w.Code != c.status || !strings.Contains(w.Body.String(), c.want) {
			t.Errorf("%s %.60q: %d %.200s; want %d %s", c.method, c.body, w.Code, w.Body, c.status, c.want)
		}
		if strings.Contains(c.want, " ") && !(strings.Contains(w.Body.String(), `"Err":`) && strings.Contains(w.Body.String(), `"Error":`)) {
			t.Errorf("%s: an error is not under both names: %s", c.method, w.Body)
		}
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/NetworkDriver.Leave", nil))
	if w.Code != http.StatusMethodNotAllowed {
		t.Errorf("GET: %d", w.Code)
	}
}

// slow hangs in Join and panics in Leave.
type slow struct {
	NetworkDriver
	block chan struct{}
}

func (s slow) Join(context.Context, *JoinRequest) (*JoinResponse, error) {
	<-s.block
	return nil, nil
}

func (s slow) Leave(context.Context, *EndpointRequest) error { panic("broken") }

// TestServerWatches: the Handler answers for a driver that hangs or panics.
func TestServerWatches(t *testing.T) {
	s := slow{&scripted{answer: "{}"}, make(chan struct{})}
	defer close(s.block)
	var calls []Call
	const limit = 50 * time.Millisecond
	h := &Handler{Network: s, Timeout: limit, Log: func(c Call) { calls = append(calls, c) }}
	if w := post(h, "NetworkDriver.Join", `{"NetworkID":"n","EndpointID":"e"}`); !strings.Contains(w.Body.String(), "no answer in time") {
		t.Errorf("a call that hangs: %s", w.Body)
	}
	for _, timeout := range []time.Duration{generous, 0} {
		h.Timeout = timeout
		if w := post(h, "NetworkDriver.Leave", `{"NetworkID":"n","EndpointID":"e"}`); !strings.Contains(w.Body.String(), "panicked: broken") {
			t.Errorf("a call that panics: %s", w.Body)
		}
	}
	if len(calls) != 3 || calls[0].Method != "NetworkDriver.Join" || calls[0].Took < limit || !errors.Is(calls[0].Err, ErrTimeout) {
		t.Errorf("logged: %+v", calls)
	}
}

// TestEmptyHost: dockerd 20.10 sends an empty Host, which some servers refuse.
func TestEmptyHost(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.sock")
	serve(t, path)
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close() //nolint:errcheck // a test
	if _, err := fmt.Fprintf(c, "POST /Plugin.Activate HTTP/1.1\r\nHost: \r\nContent-Length: 0\r\nAccept: %s\r\n\r\n", ContentType); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != 200 || string(body) != `{"Implements":["NetworkDriver","IpamDriver"]}`+"\n" {
		t.Errorf("%d %s, %v", resp.StatusCode, body, err)
	}
}

// serve runs a driver at a path until the test ends.
func serve(t *testing.T, path string) {
	t.Helper()
	l, err := ListenUnix(path, -1)
	if err != nil {
		t.Fatal(err)
	}
	d := &scripted{answer: "{}"}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- Serve(ctx, l, &Handler{Network: d, IPAM: d}) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("the socket still exists: %v", err)
		}
	})
}

// TestListen: only root may use the socket, or a group too; a dead socket is replaced, a
// live one and a file are not.
func TestListen(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "docker", "plugins", "x.sock")
	type modes struct{ socket, dirs os.FileMode }
	for gid, want := range map[int]modes{-1: {0o600, 0o700}, os.Getegid(): {0o660, 0o711}} {
		if err := os.RemoveAll(filepath.Join(dir, "docker")); err != nil {
			t.Fatal(err)
		}
		l, err := ListenUnix(path, gid)
		if err != nil {
			t.Fatal(err)
		}
		if fi, err := os.Stat(path); err != nil || fi.Mode().Perm() != want.socket {
			t.Errorf("group %d: %v, %v", gid, fi.Mode(), err)
		}
		for at := filepath.Dir(path); at != dir; at = filepath.Dir(at) {
			if fi, err := os.Stat(at); err != nil || fi.Mode().Perm() != want.dirs {
				t.Errorf("group %d: %s: %v, %v", gid, at, fi.Mode(), err)
			}
		}
		if _, err := ListenUnix(path, -1); err == nil || !strings.Contains(err.Error(), "another process does") {
			t.Errorf("a second listener: %v", err)
		}
		l.(*unixListener).Listener.Close() //nolint:errcheck // as if killed: the socket remains
	}
	l, err := ListenUnix(path, -1)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if left, _ := os.ReadDir(filepath.Dir(path)); len(left) > 0 {
		t.Errorf("left %v", left)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := ListenUnix(path, -1); err == nil || !strings.Contains(err.Error(), "is not a socket") {
		t.Errorf("a file at the path: %v", err)
	}
}

// TestClientErrors distinguishes no answer, a broken answer, and an error in the answer.
func TestClientErrors(t *testing.T) {
	var now atomic.Pointer[answer]
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		status, body := now.Load().status, string(now.Load().body)
		io.Copy(io.Discard, r.Body) //nolint:errcheck // otherwise the server does not notice when the caller goes
		switch body {
		case "hang":
			<-r.Context().Done()
		case "cut":
			panic(http.ErrAbortHandler)
		case "redirect":
			http.Redirect(w, r, "/elsewhere", http.StatusFound)
		default:
			w.WriteHeader(status)
			io.WriteString(w, body) //nolint:errcheck // a test
		}
	}))
	defer srv.Close()
	c, err := NewClient(DriverAddr{Name: "x", URL: srv.URL}, ClientOptions{Patience: 100 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range []struct {
		status int
		body   string
		is     error
		text   string
		gone   bool
	}{
		{200, `{"Err":"no"}`, nil, "driver x: NetworkDriver.Join: no", false},
		{200, `{"Error":"no"}`, nil, "driver x: NetworkDriver.Join: no", false},
		{200, `{"Err":"` + strings.Repeat("x", MaxBody/2) + `"}`, nil, "NetworkDriver.Join: " + strings.Repeat("x", maxText), false},
		{500, `{"Err":"no"}`, nil, "HTTP status 500: no", false},
		{500, `oh`, nil, "HTTP status 500: oh", false},
		{404, `404 page not found`, ErrNotImplemented, "HTTP status 404", false},
		{302, `redirect`, nil, "HTTP status 302", false},
		{200, `<html>`, ErrBadAnswer, "bad answer", false},
		{200, `{"Gateway":7}`, ErrBadAnswer, "bad answer", false},
		{200, `{"x":"` + strings.Repeat("x", MaxBody) + `"}`, ErrBadAnswer, "more than", false},
		{200, `hang`, ErrTimeout, "no answer in time", true},
		{200, `cut`, nil, "EOF", true},
		{200, ``, nil, "", false},
		{200, `{"Tomorrow":1}`, nil, "", false},
	} {
		now.Store(&answer{e.status, []byte(e.body)})
		c.opts.Timeout = generous
		if e.body == "hang" {
			c.opts.Timeout = 200 * time.Millisecond
		}
		_, err := c.Join(t.Context(), &JoinRequest{NetworkID: "n", EndpointID: "e"})
		if (err == nil) != (e.text == "") || err != nil && !strings.Contains(err.Error(), e.text) || e.is != nil && !errors.Is(err, e.is) || Unanswered(err) != e.gone || err != nil && len(err.Error()) > 2*maxText {
			t.Errorf("%d %.60s: %v (gone: %v)", e.status, e.body, err, Unanswered(err))
		}
	}
	srv.Close()
	start := time.Now()
	if err := c.Leave(t.Context(), &EndpointRequest{}); !errors.Is(err, ErrUnreachable) || time.Since(start) < 40*time.Millisecond {
		t.Errorf("no driver: %v after %v", err, time.Since(start))
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := c.Leave(ctx, &EndpointRequest{}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// failed returns a channel that gets the first error with which a client does not reach its driver.
func failed(c *Client) chan error {
	errs := make(chan error, 1)
	transport := c.http.Transport.(*http.Transport)
	dial := transport.DialContext
	transport.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			select {
			case errs <- err:
			default:
			}
		}
		return conn, err
	}
	return errs
}

// A driver that restarts is waited for.
func TestClientWaits(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.sock")
	c, err := NewClient(DriverAddr{URL: "unix://" + path}, ClientOptions{})
	if err != nil || c.opts.Patience != defaultPatience {
		t.Fatal(c, err)
	}
	c.opts.Patience = generous
	away := failed(c)
	done := make(chan error)
	go func() {
		_, err := c.Activate(context.Background())
		done <- err
	}()
	select {
	case err := <-away:
		if !unreachable(err) {
			t.Errorf("without a driver: %v", err)
		}
	case err := <-done:
		t.Fatalf("it did not wait: %v", err)
	}
	serve(t, path)
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestOptions(t *testing.T) {
	o := Options{}
	for k, v := range map[string]any{OptionGeneric: map[string]string{"a": "b"}, OptionEnableIPv6: true, "n": nil} {
		if err := o.Set(k, v); err != nil {
			t.Fatal(err)
		}
	}
	m, err := o.Strings()
	v6, err6 := o.Flag(OptionEnableIPv6, false)
	v4, err4 := o.Flag(OptionEnableIPv4, true)
	if errors.Join(err, err4, err6) != nil || m["a"] != "b" || !v6 || !v4 {
		t.Error(m, v4, v6, err, err4, err6)
	}
	if ok, err := o.Get("n", &m); ok || err != nil {
		t.Error("null is a value", err)
	}
	o[OptionGeneric] = []byte(`{"a":1}`)
	if _, err := o.Strings(); err == nil {
		t.Error("a number passes for a string")
	}
	if o.Set("f", func() {}) == nil {
		t.Error("a function can be sent")
	}
}
