// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package wrap is the plugin `wrap`: it calls one other plugin, ours or another project's,
// with additions: commands before and after each verb, patches of the configuration and of
// the result, a timeout, retries when the plugin asks for them, a log. It takes the other
// plugin's place, first in a list, later in it, or within `patchbay`, and passes every verb
// on.
package wrap

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/kernel"
	"github.com/patchbay-net/patchbay/spec"
)

const name = "wrap"

// Plugin is the plugin.
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

// add runs the commands before, the plugin and the commands after; when something after the
// plugin fails, the plugin's DEL rolls its ADD back.
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

// addInner calls the plugin's ADD. A plugin that fails rolls itself back, and a DEL could
// remove an attachment that it refused to make twice. But a plugin that was killed in the
// middle did not roll back, nor did one that succeeded with an invalid result.
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

// undo is the plugin's DEL with the result of its ADD.
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

// throughout is DEL and GC: everything runs, and every failure is reported. Errors in the
// rest of the configuration must not keep the plugin from being called.
func throughout(ctx context.Context, r *plugin.Request) error {
	w, err := load(r)
	if err != nil {
		return bare(ctx, r, err)
	}
	before := w.before(ctx, false)
	inner := w.verb(ctx)
	return errors.Join(before, inner, w.after(ctx, false))
}

// bare calls the plugin alone, with its configuration unchanged.
func bare(ctx context.Context, r *plugin.Request, wrong error) error {
	w, err := loadPlugin(r, plugin.ConfOf[Conf](r)) // the readable part of it
	if err != nil {
		return wrong
	}
	kernel.Warn(w.request, wrong)
	return w.failed(w.Do(ctx, r.Verb, r.Head.PrevResult))
}

// inOrder is CHECK and STATUS: the first error is the answer.
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

// versions are those that the plugin supports as well, when the request names the plugin;
// runtimes call VERSION without a configuration.
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
