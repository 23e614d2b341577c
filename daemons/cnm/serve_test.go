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
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// generous is a time limit that no step exceeds, even on a busy machine.
const generous = 30 * time.Second

// unixClient calls a socket, and keeps its connections as dockerd does.
func unixClient(t *testing.T, path string) *http.Client {
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", path)
	}}
	t.Cleanup(transport.CloseIdleConnections)
	return &http.Client{Transport: transport, Timeout: generous}
}

// TestVerbsAndTypes: dockerd posts, and the media type does not matter; other verbs get
// an error that names POST.
func TestVerbsAndTypes(t *testing.T) {
	h := &Handler{Network: &scripted{answer: `{"Scope":"local"}`}}
	call := func(verb, method, mediaType, body string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(verb, "/"+method, strings.NewReader(body))
		r.Header.Set("Content-Type", mediaType)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w
	}
	for _, mediaType := range []string{"", "text/plain", "application/x-www-form-urlencoded", ContentType, "nonsense/"} {
		for _, body := range []string{"", "{}", "null", " \r\n"} {
			if w := call("POST", "Plugin.Activate", mediaType, body); w.Code != 200 || w.Body.String() != `{"Implements":["NetworkDriver"]}`+"\n" {
				t.Errorf("Activate of type %q, body %q: %d %s", mediaType, body, w.Code, w.Body)
			}
		}
	}
	if got := call("POST", "NetworkDriver.GetCapabilities", "", "").Header().Get("Content-Type"); got != ContentType {
		t.Errorf("answered as %q", got)
	}
	for _, verb := range []string{"GET", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH"} {
		if w := call(verb, "Plugin.Activate", "", ""); w.Code != http.StatusMethodNotAllowed || w.Header().Get("Allow") != "POST" {
			t.Errorf("%s: %d %v", verb, w.Code, w.Header())
		}
		if w := call(verb, "NetworkDriver.Tomorrow", "", ""); w.Code != http.StatusNotFound {
			t.Errorf("%s of an unknown method: %d", verb, w.Code)
		}
	}
}

// crowd answers Leave at once and keeps Join until its caller has gone or the test ends.
type crowd struct {
	NetworkDriver
	joined, left atomic.Int32
	gone         chan error
}

func (c *crowd) Join(ctx context.Context, _ *JoinRequest) (*JoinResponse, error) {
	c.joined.Add(1)
	<-ctx.Done()
	c.gone <- ctx.Err()
	return nil, ctx.Err()
}

func (c *crowd) Leave(context.Context, *EndpointRequest) error {
	c.left.Add(1)
	return nil
}

func newCrowd() *crowd {
	return &crowd{NetworkDriver: &scripted{answer: "{}"}, gone: make(chan error, 1)}
}

// serveHandler serves at a path until the test ends.
func serveHandler(t *testing.T, h *Handler) (path string) {
	t.Helper()
	path = filepath.Join(t.TempDir(), "x.sock")
	l, err := ListenUnix(path, -1)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- Serve(ctx, l, h) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return path
}

// TestManyAtOnce: dockerd makes calls in parallel on connections that it keeps; neither a
// call that hangs nor a silent caller delays others.
func TestManyAtOnce(t *testing.T) {
	d := newCrowd()
	path := serveHandler(t, &Handler{Network: d, Timeout: generous})
	silent, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close() //nolint:errcheck // a test
	c := unixClient(t, path)
	hang, stop := context.WithCancel(t.Context())
	hanging := make(chan struct{})
	go func() {
		defer close(hanging)
		r, _ := http.NewRequestWithContext(hang, "POST", "http://x/NetworkDriver.Join", strings.NewReader(`{"NetworkID":"n","EndpointID":"e"}`))
		if resp, err := c.Do(r); err == nil {
			resp.Body.Close() //nolint:errcheck // a test
		}
	}()
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			for range 20 {
				resp, err := c.Post("http://x/NetworkDriver.Leave", "", strings.NewReader(`{"NetworkID":"n","EndpointID":"e"}`))
				if err != nil {
					t.Error(err)
					return
				}
				io.Copy(io.Discard, resp.Body) //nolint:errcheck // a test
				resp.Body.Close()              //nolint:errcheck // a test
			}
		})
	}
	wg.Wait()
	if n := d.left.Load(); n != 400 {
		t.Errorf("%d calls came through, not 400", n)
	}
	stop()
	<-hanging
}

// TestCallerGoes: when dockerd dies during a call, the call's context ends, and the log
// has the reason.
func TestCallerGoes(t *testing.T) {
	d, logged := newCrowd(), make(chan Call, 1)
	path := serveHandler(t, &Handler{Network: d, Timeout: 2 * generous, Log: func(c Call) { logged <- c }})
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	body := `{"NetworkID":"n","EndpointID":"e"}`
	if _, err := fmt.Fprintf(c, "POST /NetworkDriver.Join HTTP/1.1\r\nHost: \r\nContent-Length: %d\r\n\r\n%s", len(body), body); err != nil {
		t.Fatal(err)
	}
	for d.joined.Load() == 0 {
		time.Sleep(time.Millisecond)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if err := <-d.gone; !errors.Is(err, context.Canceled) {
		t.Errorf("the call ends with %v", err)
	}
	if c := <-logged; !errors.Is(c.Err, context.Canceled) || errors.Is(c.Err, ErrTimeout) {
		t.Errorf("logged: %v", c.Err)
	}
}

// careful deletes an endpoint in two steps.
type careful struct {
	NetworkDriver
	begun, gone chan struct{}
	end         chan error
}

func (c *careful) DeleteEndpoint(ctx context.Context, _ *EndpointRequest) error {
	close(c.begun)
	<-c.gone
	_, limited := ctx.Deadline()
	if !limited {
		c.end <- errors.New("the call has no time limit")
	}
	c.end <- ctx.Err()
	return nil
}

// TestDeleteOutlivesCaller: Docker does not repeat a deletion, so it continues when
// dockerd dies.
func TestDeleteOutlivesCaller(t *testing.T) {
	d := &careful{&scripted{answer: "{}"}, make(chan struct{}), make(chan struct{}), make(chan error, 2)}
	answered := make(chan Call, 1)
	h := &Handler{Network: d, Timeout: generous, Log: func(c Call) { answered <- c }}
	ctx, cancel := context.WithCancel(t.Context())
	r := httptest.NewRequestWithContext(ctx, "POST", "/NetworkDriver.DeleteEndpoint", strings.NewReader(`{"NetworkID":"n","EndpointID":"e"}`))
	go h.ServeHTTP(httptest.NewRecorder(), r)
	<-d.begun
	cancel()
	if c := <-answered; !errors.Is(c.Err, context.Canceled) {
		t.Errorf("logged: %v", c.Err)
	}
	close(d.gone)
	if err := <-d.end; err != nil {
		t.Error(err)
	}
}

// TestSlowCaller: a caller that announces a body and does not send it gets an error; a caller that
// waits long for the answer gets none.
func TestSlowCaller(t *testing.T) {
	d := newCrowd()
	path := serveHandler(t, &Handler{Network: d, Timeout: 500 * time.Millisecond, bodyTime: 200 * time.Millisecond})
	for body, want := range map[string]string{`{"Net`: "read request: ", `{"NetworkID":"n","EndpointID":"e"}`: "no answer in time"} {
		c, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := fmt.Fprintf(c, "POST /NetworkDriver.Join HTTP/1.1\r\nHost: \r\nContent-Length: 34\r\n\r\n%s", body); err != nil {
			t.Fatal(err)
		}
		resp, err := http.ReadResponse(bufio.NewReader(c), nil)
		if err != nil {
			t.Fatal(err)
		}
		text, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != 200 || !strings.Contains(string(text), want) {
			t.Errorf("%s: %d %s, %v; want %q", body, resp.StatusCode, text, err, want)
		}
		c.Close() //nolint:errcheck // a test
	}
}

// TestPanicText: Docker gets the text of a panic, the log also its stack.
func TestPanicText(t *testing.T) {
	var logged error
	h := &Handler{Network: slow{NetworkDriver: &scripted{}}, Log: func(c Call) { logged = c.Err }}
	w := post(h, "NetworkDriver.Leave", `{"NetworkID":"n","EndpointID":"e"}`)
	const text = "NetworkDriver.Leave panicked: broken"
	if w.Body.String() != `{"Err":"`+text+`","Error":"`+text+`"}`+"\n" {
		t.Errorf("answered: %s", w.Body)
	}
	if s := logged.Error(); !strings.Contains(s, "serve_test.go") && !strings.Contains(s, "wire_test.go") {
		t.Errorf("logged: %s", s)
	}
}

// TestListenWithOpenUmask: no other user may connect at any time, whatever the umask;
// files that a killed process left do not matter.
func TestListenWithOpenUmask(t *testing.T) {
	defer unix.Umask(unix.Umask(0))
	dir := t.TempDir()
	path := filepath.Join(dir, "x.sock")
	if err := os.MkdirAll(filepath.Join(dir, ".x.sock~", "s"), 0o755); err != nil {
		t.Fatal(err)
	}
	l, err := ListenUnix(path, -1)
	if err != nil {
		t.Fatal(err)
	}
	if fi, err := os.Stat(path); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", fi.Mode(), err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 1 {
		t.Errorf("%v, %v", left, err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

// TestListenBesideBusy: a listener that is too busy to accept counts as alive, and keeps its
// socket.
func TestListenBesideBusy(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.sock")
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd) //nolint:errcheck // a test
	if err := errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: path}), unix.Listen(fd, 0)); err != nil {
		t.Fatal(err)
	}
	for {
		c, err := net.Dial("unix", path)
		if err != nil {
			break // its queue is full
		}
		defer c.Close() //nolint:errcheck // a test
	}
	if l, err := ListenUnix(path, -1); err == nil || !strings.Contains(err.Error(), "another process may") {
		t.Errorf("%v, %v", l, err)
	}
}

// TestDrain: a server that ends lets a call use its full time.
func TestDrain(t *testing.T) {
	for limit, want := range map[time.Duration]time.Duration{0: drain, time.Minute: 61 * time.Second} {
		if got := (&Handler{Timeout: limit}).drain(); got != want {
			t.Errorf("%v for calls of %v", got, limit)
		}
	}
	d := newCrowd()
	path := filepath.Join(t.TempDir(), "x.sock")
	l, err := ListenUnix(path, -1)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Serve(ctx, l, &Handler{Network: d, Timeout: 200 * time.Millisecond}) }()
	go func() {
		for d.joined.Load() == 0 {
			time.Sleep(time.Millisecond)
		}
		cancel()
	}()
	resp, err := unixClient(t, path).Post("http://x/NetworkDriver.Join", "", strings.NewReader(`{"NetworkID":"n","EndpointID":"e"}`))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close() //nolint:errcheck // a test
	if text, err := io.ReadAll(resp.Body); err != nil || !strings.Contains(string(text), "no answer in time") {
		t.Errorf("%s %v", text, err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// succeeded is a listener whose successor listens as soon as it closes.
type succeeded struct {
	net.Listener
	successor func()
}

func (s succeeded) Close() error {
	defer s.successor()
	return s.Listener.Close()
}

// TestCloseLeavesTheSuccessor: Close does not remove the socket of a process that has taken over
// the path meanwhile.
func TestCloseLeavesTheSuccessor(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.sock")
	l, err := ListenUnix(path, -1)
	if err != nil {
		t.Fatal(err)
	}
	var next net.Listener
	first := l.(*unixListener)
	first.Listener = succeeded{first.Listener, func() { next, err = ListenUnix(path, -1) }}
	if cerr := l.Close(); cerr != nil || err != nil {
		t.Fatal(cerr, err)
	}
	if c, err := net.Dial("unix", path); err != nil {
		t.Error(err)
	} else {
		c.Close() //nolint:errcheck // a test
	}
	if err := next.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket still exists: %v", err)
	}
}
