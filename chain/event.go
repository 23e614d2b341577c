// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package chain

import (
	"context"
	"os"
	"time"

	"github.com/patchbay-net/patchbay/spec"
)

// Event describes one finished call of a plugin, for logs and traces.
type Event struct {
	Network     string
	ContainerID string // empty for GC, STATUS and VERSION
	IfName      string
	Plugin      string // its type
	Verb        spec.Verb
	Rollback    bool // a DEL that rolls back a failed ADD
	Start       time.Time
	Duration    time.Duration
	Output      int // bytes of standard output
	Err         error
}

// Outcome is "ok" or "error".
func (e *Event) Outcome() string {
	if e.Err != nil {
		return "error"
	}
	return "ok"
}

// Code is the CNI code of Err, 0 without one.
func (e *Event) Code() spec.Code { return spec.ErrorCode(e.Err) }

// Trace is W3C trace context, passed to the plugins unchanged (cni#1173).
type Trace struct{ Parent, State, Baggage string }

type traceKey struct{}

// WithTrace returns a context whose plugin calls carry t.
func WithTrace(ctx context.Context, t Trace) context.Context {
	return context.WithValue(ctx, traceKey{}, t)
}

// trace is the context's, else that of the process's environment.
func trace(ctx context.Context) Trace {
	if t, ok := ctx.Value(traceKey{}).(Trace); ok {
		return t
	}
	return Trace{os.Getenv("TRACEPARENT"), os.Getenv("TRACESTATE"), os.Getenv("BAGGAGE")}
}
