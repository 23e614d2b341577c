// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cnm

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime/debug"
	"strconv"
	"time"
)

// ContentType is the media type of requests and answers.
const ContentType = "application/vnd.docker.plugins.v1.2+json"

// MaxBody limits one message, in bytes. A published port takes about 110 bytes, and some
// telephony programs publish ten thousand ports.
const MaxBody = 16 << 20

// Names of interfaces that a plugin implements, for a Manifest.
const (
	ImplementsNetwork = "NetworkDriver"
	ImplementsIPAM    = "IpamDriver"
)

// Manifest is the answer to Plugin.Activate.
type Manifest struct{ Implements []string }

// Handler serves drivers over HTTP: POST /Service.Method with a JSON body. dockerd calls it
// concurrently.
type Handler struct {
	Network NetworkDriver // nil if there is none
	IPAM    IPAMDriver    // nil if there is none

	// Down, if it is set, is the answer to every call except Activate and GetCapabilities.
	// Docker calls those two only once and remembers the answer.
	Down error

	// Timeout limits a call. Docker has no limit of its own and holds locks while it waits, so
	// the Handler must answer even if a driver hangs. When the time is over, the context of the
	// call ends and Docker gets an error. 0 means no limit.
	Timeout time.Duration

	// Others has additional methods, by their full name.
	Others map[string]Method

	// Log, if it is set, is called after every answered call.
	Log func(Call)

	bodyTime time.Duration // tests set it instead of slowest
}

// Method answers one call. body is the request as it was received, and may be empty. The answer
// is written as JSON.
type Method func(ctx context.Context, body []byte) (answer any, err error)

// Call describes one call that was answered.
type Call struct {
	Method string
	Took   time.Duration
	Err    error
}

// ServeHTTP answers one call. It reads neither Host (which is empty with Docker 20.10) nor the
// headers. It writes an error into a regular answer, under both names that network and IPAM
// drivers use. It answers 404 for an unknown method.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	start := time.Now()
	method := r.URL.Path
	if len(method) > 0 {
		method = method[1:]
	}
	fn := h.find(method)
	switch {
	case fn == nil:
		http.Error(w, "no such method", http.StatusNotFound)
		return
	case r.Method != http.MethodPost:
		w.Header().Set("Allow", http.MethodPost)
		http.Error(w, "only POST", http.StatusMethodNotAllowed)
		return
	}
	var answer any
	body, err := h.read(w, r)
	ctx := r.Context()
	if err == nil {
		ctx, err = deep(r, method)
	}
	if err == nil {
		answer, err = h.watch(ctx, method, fn, body)
	}
	write(w, answer, err)
	if h.Log != nil {
		h.Log(Call{method, time.Since(start), err})
	}
}

// slowest is how long a client may take to send a body. Docker's bodies have a few hundred
// bytes and arrive at once.
const slowest = 10 * time.Second

// read reads the whole body, if the client sends it in time.
func (h *Handler) read(w http.ResponseWriter, r *http.Request) ([]byte, error) {
	conn := http.NewResponseController(w)
	limited := conn.SetReadDeadline(time.Now().Add(cmp.Or(h.bodyTime, slowest))) == nil
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, MaxBody))
	if limited && err == nil { // without a deadline the server notices when the client disconnects
		err = conn.SetReadDeadline(time.Time{})
	}
	if err != nil {
		return nil, fmt.Errorf("read request: %w", err)
	}
	return bytes.TrimSpace(body), nil
}

// errorBody has the error under both names that network and IPAM drivers use.
type errorBody struct{ Err, Error string }

func write(w http.ResponseWriter, answer any, err error) {
	if err != nil {
		text := err.Error()
		var p *panicError
		if errors.As(err, &p) {
			text = p.short() // the stack goes into the log, not into the output of `docker run`
		}
		answer = errorBody{text, text}
	}
	data, err := json.Marshal(answer)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", ContentType)
	w.Write(append(data, '\n')) //nolint:errcheck // fails only if the client is gone
}

type result struct {
	answer any
	err    error
}

// watch runs a call with a time limit. If the driver ignores its context, it keeps running, but
// the client gets an answer.
func (h *Handler) watch(ctx context.Context, method string, fn methodFunc, body []byte) (any, error) {
	if h.Timeout == 0 {
		return safely(ctx, method, fn, body)
	}
	ctx, cancel := context.WithTimeout(ctx, h.Timeout)
	defer cancel()
	done := make(chan result, 1)
	go func() {
		answer, err := safely(ctx, method, fn, body)
		done <- result{answer, err}
	}()
	select {
	case r := <-done:
		return r.answer, r.err
	case <-ctx.Done():
		if errors.Is(ctx.Err(), context.Canceled) {
			return nil, fmt.Errorf("%s: the caller has gone: %w", method, ctx.Err())
		}
		return nil, fmt.Errorf("%s: %w (%v)", method, ErrTimeout, h.Timeout)
	}
}

// panicError is the error of a call that panicked.
type panicError struct {
	method string
	value  any
	stack  []byte
}

func (p *panicError) short() string { return fmt.Sprintf("%s panicked: %v", p.method, p.value) }

// Error returns the text for the log, with the stack.
func (p *panicError) Error() string { return fmt.Sprintf("%s\n%s", p.short(), p.stack) }

// safely turns a panic into an error, because one broken call must not end the driver that all
// containers use.
func safely(ctx context.Context, method string, fn methodFunc, body []byte) (answer any, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &panicError{method, v, debug.Stack()}
		}
	}()
	return fn(ctx, body)
}

// methodFunc decodes a request, calls the method and returns the answer.
type methodFunc func(ctx context.Context, body []byte) (any, error)

// request is what decode needs from a message: valid returns an error if a required name is
// missing.
type request[T any] interface {
	*T
	valid() error
}

// errEmpty refuses a message without names. dockerd sends an empty body when it repeats a call
// whose body it has already read.
var errEmpty = errors.New("the request names no object, as when Docker repeats one after a restart of the driver: try again")

// ask makes a methodFunc for a method with an answer.
func ask[In, Out any, P request[In]](fn func(context.Context, P) (*Out, error)) methodFunc {
	return func(ctx context.Context, body []byte) (any, error) {
		in, err := decode[In, P](body)
		if err != nil {
			return nil, err
		}
		out, err := fn(ctx, in)
		if err == nil && out == nil {
			out = new(Out)
		}
		return out, err
	}
}

// order makes a methodFunc for a method without an answer.
func order[In any, P request[In]](fn func(context.Context, P) error) methodFunc {
	return func(ctx context.Context, body []byte) (any, error) {
		in, err := decode[In, P](body)
		if err != nil {
			return nil, err
		}
		return Empty{}, fn(ctx, in)
	}
}

// remove makes a methodFunc for a method that removes something. An empty body names nothing,
// so it succeeds without a call. If the client disconnects, the call continues, because Docker
// does not repeat it.
func remove[In any, P request[In]](fn func(context.Context, P) error) methodFunc {
	next := order[In, P](fn)
	return func(ctx context.Context, body []byte) (any, error) {
		if len(body) == 0 {
			return Empty{}, nil
		}
		ctx, cancel := outlive(ctx)
		defer cancel()
		return next(ctx, body)
	}
}

// outlive returns a context that only the time limit ends.
func outlive(ctx context.Context) (context.Context, context.CancelFunc) {
	end, limited := ctx.Deadline()
	ctx = context.WithoutCancel(ctx)
	if !limited {
		return ctx, func() {}
	}
	return context.WithDeadline(ctx, end)
}

// get makes a methodFunc for a method without a request. It ignores the body.
func get[Out any](fn func(context.Context) (*Out, error)) methodFunc {
	return func(ctx context.Context, _ []byte) (any, error) { return fn(ctx) }
}

func decode[T any, P request[T]](body []byte) (P, error) {
	in := P(new(T))
	if len(body) > 0 {
		if err := json.Unmarshal(body, in); err != nil {
			return nil, fmt.Errorf("decode request: %w", err)
		}
	}
	return in, in.valid()
}

// EnvDepth is the environment variable that counts drivers which call each other: a driver may
// run a plugin, and the plugin may call the next driver. The driver gives the plugin the number
// of drivers so far. The plugin sends this number to the next driver in a header.
const EnvDepth = "PATCHBAY_CNM_DEPTH"

const depthHeader = "Patchbay-Depth"

// maxDepth is how many drivers may call each other in this way. Without a limit, a network whose
// plugin calls the driver of that same network would call it without end.
const maxDepth = 2

type depthKey struct{}

// Depth returns the depth of a call that a Handler answers. It is 0 for a call from Docker.
func Depth(ctx context.Context) int {
	n, _ := ctx.Value(depthKey{}).(int)
	return n
}

// deep stores the depth of a call in the context. If the depth is above maxDepth, deep refuses a
// call that creates something. It allows every call that removes something.
func deep(r *http.Request, method string) (context.Context, error) {
	n, err := strconv.Atoi(r.Header.Get(depthHeader))
	if err != nil || n < 0 {
		n = 0
	}
	ctx := context.WithValue(r.Context(), depthKey{}, n)
	if n > maxDepth && makes(method) {
		return ctx, fmt.Errorf("%d network drivers call each other through their CNI plugins, the limit is %d: the driver and options of a plugin cnm or cnm-ipam lead back to the plugin's own network", n, maxDepth)
	}
	return ctx, nil
}

func makes(method string) bool {
	switch method {
	case "Plugin.Activate", "NetworkDriver.CreateNetwork", "NetworkDriver.CreateEndpoint", "IpamDriver.RequestPool", "IpamDriver.RequestAddress":
		return true
	}
	return false
}
