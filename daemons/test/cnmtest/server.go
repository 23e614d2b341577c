// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cnmtest

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/patchbay-net/patchbay/daemons/cnm"
)

// Server serves a driver on the socket where Docker finds it.
type Server struct {
	Name, Path string
	Handler    http.Handler

	mu     sync.Mutex
	faults []fault
	calls  []Call
	stop   func()
}

// Call is a call that the server received.
type Call struct {
	Method, Body string
}

// fault is a wrong answer to calls of one method.
type fault struct {
	method string // if empty, any
	times  int    // how many calls; if negative, all
	answer http.HandlerFunc
}

// Start serves d until the test ends.
func Start(t testing.TB, name string, d *Driver) *Server {
	t.Helper()
	s := &Server{Name: name, Path: filepath.Join(cnm.SocketDir, name+".sock"), Handler: &cnm.Handler{Network: d, IPAM: d}}
	s.Serve(t)
	t.Cleanup(s.Stop)
	return s
}

// Serve starts serving. After Stop it starts again.
func (s *Server) Serve(t testing.TB) {
	t.Helper()
	l, err := cnm.ListenUnix(s.Path, -1)
	if err != nil {
		t.Fatal(err)
	}
	srv := &http.Server{Handler: s} //nolint:gosec // a test
	done := make(chan struct{})
	go func() {
		srv.Serve(l) //nolint:errcheck // until Stop
		close(done)
	}()
	s.stop = func() {
		srv.Close() //nolint:errcheck // a test
		<-done
	}
}

// Stop ends the driver, and removes its socket.
func (s *Server) Stop() {
	if s.stop != nil {
		s.stop()
		s.stop = nil
	}
}

// ServeHTTP notes a call and answers it. If a fault matches the call, the fault answers.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	r.Body = io.NopCloser(strings.NewReader(string(body)))
	method := strings.TrimPrefix(r.URL.Path, "/")
	if answer := s.note(Call{method, string(body)}); answer != nil {
		answer(w, r)
		return
	}
	s.Handler.ServeHTTP(w, r)
}

func (s *Server) note(c Call) http.HandlerFunc {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, c)
	for i := range s.faults {
		f := &s.faults[i]
		if (f.method == "" || f.method == c.Method) && f.times != 0 {
			f.times--
			return f.answer
		}
	}
	return nil
}

// Fault gives wrong answers to the next calls of a method. If times is negative, all calls get one.
func (s *Server) Fault(method string, times int, answer http.HandlerFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = append(s.faults, fault{method, times, answer})
}

// Away takes the driver away until back is called. Each call waits two seconds for a driver that is
// stopped. If stopped is false, the driver ends every connection without an answer instead. To most
// tests that is the same, and no call waits.
func (s *Server) Away(t testing.TB, stopped bool) (back func()) {
	t.Helper()
	if stopped {
		s.Stop()
		return func() { s.Serve(t) }
	}
	s.Fault("", -1, Cut())
	return s.Well
}

// Well removes all faults.
func (s *Server) Well() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.faults = nil
}

// Calls returns the calls since the last Calls.
func (s *Server) Calls() []Call {
	s.mu.Lock()
	defer s.mu.Unlock()
	calls := s.calls
	s.calls = nil
	return calls
}

// Methods returns the methods of Calls.
func (s *Server) Methods() (list []string) {
	for _, c := range s.Calls() {
		list = append(list, c.Method)
	}
	return list
}

// Say answers with a status and a body.
func Say(status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		io.WriteString(w, body) //nolint:errcheck // a test
	}
}

// Refuse answers with a driver's error.
func Refuse(text string) http.HandlerFunc { return Say(http.StatusOK, fmt.Sprintf(`{"Err":%q}`, text)) }

// Hang does not answer until the caller has gone.
func Hang() http.HandlerFunc {
	return func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }
}

// Cut ends the connection without an answer.
func Cut() http.HandlerFunc {
	return func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }
}

// DoAnd carries out the call, and then gives another answer.
func (s *Server) DoAnd(answer http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s.Handler.ServeHTTP(discard{http.Header{}}, r.WithContext(context.WithoutCancel(r.Context())))
		answer(w, r)
	}
}

type discard struct{ header http.Header }

func (d discard) Header() http.Header         { return d.header }
func (d discard) Write(p []byte) (int, error) { return len(p), nil }
func (d discard) WriteHeader(int)             {}
