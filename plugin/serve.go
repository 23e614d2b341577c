// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/patchbay-net/patchbay/spec"
)

// Serve runs one call of p from validation to the encoded result. It is the
// whole of what both transports share. outermost says that queued work is to be
// done at the end; a delegate leaves that to its caller.
func serve(ctx context.Context, p *Plugin, call *spec.Call, s *Session, outermost bool) ([]byte, error) {
	if call.Verb == spec.Version {
		return versionResult(p, call)
	}
	r, err := newRequest(p, call, s)
	if err != nil {
		return nil, err
	}
	out, err := run(ctx, p, r)
	if err == nil && outermost {
		err = finish(ctx, r)
	}
	if err == nil {
		return out, nil
	}
	if outermost {
		s.forget()
	}
	if uerr := r.undo.run(ctx); uerr != nil {
		err = errors.Join(err, fmt.Errorf("undo: %w", uerr))
	}
	return nil, withVersion(err, r.Version)
}

// finish does the queued work, of which a dry run has none.
func finish(ctx context.Context, r *Request) error {
	if err := r.Step("commit"); err != nil {
		return err
	}
	return r.Session.Flush(ctx)
}

// run calls the function of the verb. A panic is the plugin's error, not the
// process's end: the undo stack must still run.
func run(ctx context.Context, p *Plugin, r *Request) (out []byte, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = spec.Errorf(spec.CodeInternal, "plugin %s panicked: %v", p.Name, v).
				WithDetails("%s", firstLines(debug.Stack(), 2048))
		}
	}()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	if r.Verb == spec.Add {
		return add(ctx, p, r)
	}
	fn := map[spec.Verb]func(context.Context, *Request) error{
		spec.Del: p.Del, spec.Check: p.Check, spec.GC: p.GC, spec.Status: p.Status,
	}[r.Verb]
	if fn == nil {
		return nil, nil
	}
	return nil, fn(ctx, r)
}

func add(ctx context.Context, p *Plugin, r *Request) ([]byte, error) {
	result := r.Prev()
	if p.Add != nil {
		var err error
		if result, err = p.Add(ctx, r); err != nil {
			return nil, err
		}
	}
	if result == nil {
		result = &spec.Result{}
	}
	return result.Encode(r.Version)
}

// withVersion gives the error its wire form with the version of the request.
func withVersion(err error, version string) error {
	e := *spec.AsError(err)
	e.CNIVersion = version
	return &e
}

func firstLines(b []byte, most int) []byte { return b[:min(len(b), most)] }
