// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package wrap is the plugin `wrap`. It calls one other plugin, ours or another project's. It can
// run commands before and after each verb, and change the configuration and the result by
// patches. It can also limit the time, repeat a call that the other plugin wants repeated, and
// write a log. In a list, or inside `patchbay`, wrap takes the other plugin's place and passes
// every verb on.
package wrap

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

const name = "wrap"

// Plugin has the name, the versions and the functions of this plugin.
var Plugin = plugin.Plugin{
	Name:  name,
	Kind:  plugin.Interface,
	About: "calls another plugin and does something around it: commands, patches, timeout, retry, log",
	Conf:  func() any { return new(Conf) },

	Validate: func(r *plugin.Request) error { _, err := load(r); return err },

	Add:    add,
	Del:    throughout,
	Check:  inOrder,
	GC:     throughout,
	Status: inOrder,

	VersionsFor: versions,
}

// add runs the commands before the plugin, the plugin, and the commands after it. If a step
// after the plugin fails, add calls the plugin's DEL to roll back the ADD.
func add(ctx context.Context, r *plugin.Request) (*spec.Result, error) {
	w, err := load(r)
	if err != nil {
		return nil, err
	}
	if err := w.before(ctx, true); err != nil {
		return nil, err
	}
	result, err := w.addInner(ctx)
	if err != nil {
		return nil, w.failed(err)
	}
	if err := result.Validate(); err != nil {
		return nil, w.failed(err)
	}
	if result, err = w.changeResult(result, w.conf.Result); err != nil {
		return nil, err
	}
	return w.afterAdd(ctx, result)
}

// addInner calls the plugin's ADD. If the ADD fails, the plugin has rolled itself back, and
// addInner calls no DEL: after an ADD that failed because the attachment exists, a DEL would
// remove the existing attachment. In two cases nothing was rolled back, and addInner calls DEL:
// the plugin was killed, or it succeeded with an invalid result.
func (w *wrapped) addInner(ctx context.Context) (result *spec.Result, err error) {
	r := w.request
	if err := r.Step("wrapped " + w.Type); err != nil {
		return nil, err
	}
	undo := func(ctx context.Context) error { return w.undo(ctx, result) }
	err = w.call(ctx, func(ctx context.Context) error {
		result, err = w.Add(ctx, r.Prev())
		if err != nil && (ctx.Err() != nil || errors.Is(err, plugin.ErrResult)) {
			r.Undo(undo)
		}
		return err
	})
	if err == nil && r.Session.Dry == nil {
		r.Undo(undo)
	}
	return result, err
}

// undo calls the plugin's DEL with the result of its ADD.
func (w *wrapped) undo(ctx context.Context, result *spec.Result) error {
	var prev json.RawMessage
	if result != nil && spec.AtLeast(w.request.Version, "0.4.0") {
		var err error
		if prev, err = result.Encode(w.request.Version); err != nil {
			kernel.Warn(w.request, err)
		}
	}
	return w.Do(ctx, spec.Del, prev)
}

// throughout performs DEL and GC. It runs everything and reports every failure. An error in
// another part of the configuration must not stop the call of the plugin.
func throughout(ctx context.Context, r *plugin.Request) error {
	w, err := load(r)
	if err != nil {
		return bare(ctx, r, err)
	}
	before := w.before(ctx, false)
	inner := w.verb(ctx)
	return errors.Join(before, inner, w.after(ctx, false))
}

// bare calls only the plugin, with its configuration unchanged.
func bare(ctx context.Context, r *plugin.Request, wrong error) error {
	w, err := loadPlugin(r, plugin.ConfOf[Conf](r)) // reads as much of the configuration as it can
	if err != nil {
		return wrong
	}
	kernel.Warn(w.request, wrong)
	return w.failed(w.Do(ctx, r.Verb, r.Head.PrevResult))
}

// inOrder performs CHECK and STATUS. inOrder stops at the first error.
func inOrder(ctx context.Context, r *plugin.Request) error {
	w, err := load(r)
	if err != nil {
		return err
	}
	if err := w.before(ctx, true); err != nil {
		return err
	}
	if err := w.verb(ctx); err != nil {
		return err
	}
	return w.after(ctx, true)
}

// verb calls the plugin with the verb of the request.
func (w *wrapped) verb(ctx context.Context) error {
	return w.failed(w.call(ctx, func(ctx context.Context) error {
		return w.Do(ctx, w.request.Verb, w.request.Head.PrevResult)
	}))
}

func (w *wrapped) failed(err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("wrapped plugin type=%q failed (%s): %w", w.Type, w.request.Verb, err)
}

// versions returns the versions that both wrap and the plugin support, if the request names the
// plugin. (Runtimes send VERSION without a configuration.)
func versions(ctx context.Context, s *plugin.Session, call *spec.Call) []string {
	var conf struct {
		Plugin json.RawMessage `json:"plugin"`
	}
	var head struct {
		Type string `json:"type"`
	}
	if json.Unmarshal(call.Config, &conf) != nil || json.Unmarshal(conf.Plugin, &head) != nil {
		return nil
	}
	inner := *call
	inner.Config = conf.Plugin
	out, err := s.Invoke(ctx, head.Type, &inner)
	var theirs struct {
		SupportedVersions []string `json:"supportedVersions"`
	}
	if err != nil || json.Unmarshal(out, &theirs) != nil {
		return nil // ADD reports the error
	}
	return theirs.SupportedVersions
}
