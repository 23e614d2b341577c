// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"fmt"
	"runtime/debug"

	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/spec"
)

// serve runs one call of p, from validation to the encoded result. Calls by exec and calls within
// the process both use it. If outermost is set, serve does the queued work at the end. A delegate
// leaves the queued work to its caller.
func serve(ctx context.Context, p *Plugin, call *spec.Call, s *Session, outermost bool) ([]byte, error) {
	if call.Verb == spec.Version {
		out, err := versionResult(ctx, p, call, s)
		return out, withVersion(err, spec.Current)
	}
	r, err := newRequest(p, call, s)
	if err != nil {
		return nil, withVersion(err, spec.Current)
	}
	result, err := r.handle(ctx, outermost)
	if err != nil || r.Verb != spec.Add {
		return nil, err
	}
	return result.Encode(r.Version)
}

// serveAdd works like serve for an ADD within this process. If the version can express prev and
// the result completely, neither is encoded as JSON.
func serveAdd(ctx context.Context, p *Plugin, call *spec.Call, prev *spec.Result, s *Session) (*spec.Result, error) {
	r, err := newRequest(p, call, s)
	if err != nil {
		return nil, withVersion(err, spec.Current)
	}
	return r.addAfter(ctx, prev)
}

// serveDo works like serve for a verb without an answer, which another plugin calls.
func serveDo(ctx context.Context, p *Plugin, call *spec.Call, s *Session) error {
	r, err := newRequest(p, call, s)
	if err != nil {
		return withVersion(err, spec.Current)
	}
	_, err = r.handle(ctx, false)
	return err
}

// newRequest checks, before any work, whether p can serve the call.
func newRequest(p *Plugin, call *spec.Call, s *Session) (*Request, error) {
	if err := call.Validate(); err != nil {
		return nil, err
	}
	head, err := spec.ParseConf(call.Config)
	if err != nil {
		return nil, err
	}
	if err := spec.ValidateNetworkName(head.Name); err != nil {
		return nil, err
	}
	if err := allowed(p, call.Verb, head.CNIVersion); err != nil {
		return nil, err
	}
	if call.Verb == spec.Add && p.Kind != IPAM {
		if err := spec.ValidateNewIfName(call.IfName); err != nil {
			return nil, err
		}
	}
	r := &Request{Call: call, Plugin: p, Network: head.Name, Version: head.CNIVersion, Head: head, Session: s}
	if call.PerContainer() {
		r.Owner = owner.Of(head.Name, call.ContainerID, call.IfName)
	}
	if err := r.parsePrev(); err != nil {
		return nil, err
	}
	return r, r.place()
}

// allowed returns an error if the plugin does not support the version, or if the version does not
// have the verb. The texts are the same as in skel, the plugin library of containernetworking/cni.
func allowed(p *Plugin, verb spec.Verb, version string) error {
	min := map[spec.Verb]string{spec.Check: "0.4.0", spec.GC: "1.1.0", spec.Status: "1.1.0"}[verb]
	if min != "" { // for an invalid version, skel has another text than for an unsupported one
		if err := spec.ValidateVersion(version); err != nil {
			return spec.Errorf(spec.CodeDecoding, "%w", err)
		}
		if !spec.AtLeast(version, min) {
			return spec.Errorf(spec.CodeIncompatibleVersion, "config version does not allow %s", verb)
		}
	}
	versions := p.Versions()
	for _, v := range versions {
		if v == version {
			return nil
		}
	}
	return spec.Errorf(spec.CodeIncompatibleVersion, "incompatible CNI versions").
		WithDetails("config is %q, plugin supports %q", version, versions)
}

// parsePrev reads prevResult. A DEL ignores a prevResult that cannot be read.
func (r *Request) parsePrev() error {
	raw := r.Head.PrevResult
	if len(raw) == 0 || string(raw) == "null" {
		return nil
	}
	prev, err := spec.ParseResult(raw, r.Version)
	if err != nil && r.Verb != spec.Del {
		return spec.Errorf(spec.CodeDecoding, "could not parse prevResult: %w", err)
	}
	if err == nil {
		r.prev = prev
	}
	return nil
}

// place checks the namespace. IPAM plugins do not use the namespace, so place does not check it for
// them: their caller may pass any path, as upstream's README does with /dev/null. If the
// configuration is wrong too, place reports that error, because it does not depend on the
// namespace.
func (r *Request) place() error {
	if r.Verb != spec.Del && r.Plugin.Kind == IPAM {
		return nil
	}
	err := r.CheckNetNS()
	if err == nil {
		return nil
	}
	if wrong := r.validate(); wrong != nil {
		return wrong
	}
	return err
}

// addAfter runs an ADD within this process, with prev as the previous result.
func (r *Request) addAfter(ctx context.Context, prev *spec.Result) (*spec.Result, error) {
	if prev != nil {
		r.prev = prev
	}
	result, err := r.handle(ctx, false)
	if err != nil || spec.AtLeast(r.Version, "0.3.0") {
		return result, err
	}
	out, err := result.Encode(r.Version)
	if err != nil {
		return nil, err
	}
	return spec.ParseResult(out, r.Version)
}

// handle calls the plugin. If the plugin succeeds, handle does the queued work. Otherwise it
// rolls everything back.
func (r *Request) handle(ctx context.Context, outermost bool) (*spec.Result, error) {
	result, err := r.run(ctx)
	if outermost && (err == nil || r.Verb == spec.Del || r.Verb == spec.GC) {
		err = spec.Join(err, finish(ctx, r)) // finish the removal even if another step failed
	}
	if err == nil {
		return result, nil
	}
	return nil, withVersion(spec.Join(err, rollback(ctx, r, outermost)), r.Version)
}

// rollback rolls back a failed ADD. It first discards queued work, also that of earlier members
// of a chain, because the chain fails as a whole. Then it runs every undo step, and does the work
// that these steps queue.
func rollback(ctx context.Context, r *Request, outermost bool) error {
	if r.Verb != spec.Add {
		return nil
	}
	r.Session.forget()
	err := r.undo.run(ctx)
	if outermost {
		err = spec.Join(err, r.Session.Flush(context.WithoutCancel(ctx)))
	}
	if err != nil {
		return fmt.Errorf("undo: %w", err)
	}
	return nil
}

// finish does the queued work. A dry run has no queued work.
func finish(ctx context.Context, r *Request) error {
	if err := r.Step("commit"); err != nil {
		return err
	}
	return r.Session.Flush(ctx)
}

// run calls the plugin's function for the verb. It turns a panic into an error, because the undo
// stack must still run.
func (r *Request) run(ctx context.Context) (result *spec.Result, err error) {
	defer func() {
		if v := recover(); v != nil {
			err = spec.Errorf(spec.CodeInternal, "plugin %s panicked: %v", r.Plugin.Name, v).
				WithDetails("%s", firstLines(debug.Stack(), 2048))
		}
	}()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	switch r.Verb {
	case spec.Add:
		return r.add(ctx)
	case spec.Check:
		ipam := r.forward(ctx) // call both plugins, even if the first call fails
		return nil, spec.Join(ipam, r.check(ctx))
	case spec.GC:
		return nil, r.collect(ctx)
	case spec.Status:
		return nil, r.status(ctx)
	}
	return nil, r.call(ctx, r.Plugin.Del)
}

func (r *Request) call(ctx context.Context, fn func(context.Context, *Request) error) error {
	if fn == nil {
		return nil
	}
	return fn(ctx, r)
}

// collect performs GC.
func (r *Request) collect(ctx context.Context) error {
	if err := r.parseList(); err != nil {
		return err
	}
	err := r.call(ctx, r.Plugin.GC)
	if err != nil && len(r.spared) == 0 {
		return err // something may still lead to any of the addresses
	}
	return spec.Join(err, r.forward(ctx))
}

// forward calls the same verb of the IPAM plugin.
func (r *Request) forward(ctx context.Context) error {
	if !r.Plugin.Delegates {
		return nil
	}
	return r.IPAM(ctx, r.Verb)
}

func (r *Request) status(ctx context.Context) error {
	if err := r.validate(); err != nil {
		return err
	}
	if err := r.call(ctx, r.Plugin.Status); err != nil {
		return err
	}
	return r.forward(ctx)
}

func (r *Request) check(ctx context.Context) error {
	if _, err := r.Conf(); err != nil {
		return err
	}
	if text := r.Plugin.NoPrev.Check; text != "" && r.prev == nil {
		return spec.Invalid("%s", text)
	}
	return r.call(ctx, r.Plugin.Check)
}

// add calls ADD of the plugin. If the version cannot express the result, add returns an error
// before any queued work is done.
func (r *Request) add(ctx context.Context) (*spec.Result, error) {
	if err := r.expressible(); err != nil {
		return nil, err
	}
	if _, err := r.Conf(); err != nil {
		return nil, err
	}
	if text := r.Plugin.NoPrev.Add; text != "" && r.prev == nil {
		return nil, spec.Invalid("%s", text)
	}
	result := r.Prev()
	if r.Plugin.Add != nil {
		var err error
		if result, err = r.Plugin.Add(ctx, r); err != nil {
			return nil, err
		}
	}
	if result == nil {
		result = &spec.Result{}
	}
	result.CNIVersion = r.Version
	if r.Plugin.Kind == Interface && !spec.AtLeast(r.Version, "1.1.0") {
		for i := range result.Interfaces {
			result.Interfaces[i].MTU = 0 // mtu exists since 1.1.0; keep what other plugins put into prevResult
		}
	}
	_, err := result.As(r.Version)
	return result, err
}

// expressible returns an error if the configuration leads to a result that the version cannot
// express.
func (r *Request) expressible() error {
	if !r.Plugin.Layer2 || r.Head.IPAM.Type != "" {
		return nil
	}
	_, err := new(spec.Result).As(r.Version)
	return err
}

// withVersion returns the error object for err, with the version of the request.
func withVersion(err error, version string) error {
	if err == nil {
		return nil
	}
	e := *spec.AsError(err)
	e.CNIVersion = version
	return &e
}

func firstLines(b []byte, most int) []byte { return b[:min(len(b), most)] }
