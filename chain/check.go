// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package chain

import (
	"context"
	"errors"
	"fmt"

	"github.com/patchbay-net/patchbay/spec"
)

// ErrCheckNotSupported means that the list's version is before 0.4.0 and has no CHECK. Check
// wraps it.
var ErrCheckNotSupported = errors.New("does not support the CHECK command")

// Check calls CHECK on every plugin to find out whether the attachment is still as ADD made it
// (docs/adr/0037). If one plugin fails, Check returns that plugin's error unchanged, with its
// code. Check joins the errors of several plugins. If the list sets disableCheck, Check returns
// nil.
func (rt *Runtime) Check(ctx context.Context, list *List, a Attachment) error {
	if err := checkable(list, a); err != nil || list.DisableCheck {
		return err
	}
	unlock, err := rt.lockContainer(ctx, a.ContainerID)
	if err != nil {
		return err
	}
	defer unlock()
	return rt.checkEach(ctx, list, a, func(ctx context.Context, _ string, check func(context.Context) error) error { return check(ctx) })
}

// Inspect works like Check, but takes no lock and ignores disableCheck. Inspect serves callers
// that must not write. An ADD or DEL may run at the same time, so these callers call Inspect
// again before they report an error. Each plugin has Limits.Ask to answer.
func (rt *Runtime) Inspect(ctx context.Context, list *List, a Attachment) error {
	if err := checkable(list, a); err != nil {
		return err
	}
	return rt.checkEach(ctx, list, a, func(ctx context.Context, pluginType string, check func(context.Context) error) error {
		return rt.ask(ctx, pluginType, spec.Check, check)
	})
}

func checkable(list *List, a Attachment) error {
	if err := a.validate(list); err != nil {
		return err
	}
	if !spec.AtLeast(list.CNIVersion, "0.4.0") {
		return fmt.Errorf("configuration version %q %w", list.CNIVersion, ErrCheckNotSupported)
	}
	return nil
}

// checkEach calls CHECK of every plugin. ask makes each call.
func (rt *Runtime) checkEach(ctx context.Context, list *List, a Attachment, ask func(context.Context, string, func(context.Context) error) error) error {
	r, err := rt.checkRequest(list, &a)
	if err != nil {
		return err
	}
	var errs []error
	for i := range list.Plugins {
		p := &list.Plugins[i]
		errs = append(errs, ask(ctx, p.Type, func(ctx context.Context) error {
			_, err := rt.run(ctx, p, r, rt.call(ctx, spec.Check, &a), false)
			return err
		}))
	}
	return spec.Join(errs...)
}

// checkRequest builds the CHECK request with the result that the ADD left in the cache. If no
// result is cached, the plugins are still called, and they report that prevResult is missing.
func (rt *Runtime) checkRequest(list *List, a *Attachment) (*request, error) {
	cached, err := rt.read(list.Name, a)
	if err != nil {
		return nil, fmt.Errorf("failed to get network %q cached result: %w", list.Name, err)
	}
	if cached == nil {
		return &request{list: list, capabilities: a.Capabilities}, nil
	}
	cached.fill(a)
	r := &request{list: list, capabilities: a.Capabilities}
	if cached.Result != nil {
		if r.prevResult, err = cached.Result.Encode(list.CNIVersion); err != nil {
			return nil, fmt.Errorf("failed to convert cached result to config version %q: %w", list.CNIVersion, err)
		}
	}
	return r, nil
}

// Status calls STATUS on every plugin of the lists to find out whether an ADD would work now. Without lists, it asks
// the default network; if there is none yet, its error has CodeNotAvailable and wraps ErrNoNetwork. If one plugin
// fails, Status returns that plugin's error unchanged, with its code. Status joins the errors of
// several plugins. Versions before 1.1.0 have no STATUS; a list of such a version counts as
// ready.
func (rt *Runtime) Status(ctx context.Context, lists ...*List) error {
	if len(lists) == 0 {
		list, err := rt.Default()
		if errors.Is(err, ErrNoNetwork) {
			return spec.Errorf(spec.CodeNotAvailable, "no default network: %w", err)
		}
		if err != nil {
			return err
		}
		lists = []*List{list}
	}
	var errs []error
	for _, list := range lists {
		errs = append(errs, rt.status(ctx, list)...)
	}
	return spec.Join(errs...)
}

func (rt *Runtime) status(ctx context.Context, list *List) (errs []error) {
	if !spec.AtLeast(list.CNIVersion, "1.1.0") {
		return nil
	}
	for i := range list.Plugins {
		p := &list.Plugins[i]
		errs = append(errs, rt.ask(ctx, p.Type, spec.Status, func(ctx context.Context) error {
			_, err := rt.run(ctx, p, &request{list: list}, rt.call(ctx, spec.Status, &Attachment{}), false)
			return err
		}))
	}
	return errs
}

// errSilent means that a plugin did not answer before its time was over.
var errSilent = errors.New("did not answer")

// ask gives a plugin Limits.Ask to answer. If one plugin hangs, the caller can then still ask the
// others.
func (rt *Runtime) ask(ctx context.Context, pluginType string, verb spec.Verb, question func(context.Context) error) error {
	if rt.limits.Ask <= 0 {
		return question(ctx)
	}
	bounded, cancel := context.WithTimeout(ctx, rt.limits.Ask)
	defer cancel()
	err := question(bounded)
	if err != nil && bounded.Err() != nil && ctx.Err() == nil {
		return spec.Errorf(spec.CodeTryAgain, "plugin %s %w %s within %v", pluginType, errSilent, verb, rt.limits.Ask)
	}
	return err
}

// VersionInfo asks a plugin which versions it supports. An old plugin that does not know VERSION
// answers with an error object; it supports 0.1.0 (SPEC.md 0.2.0).
func (rt *Runtime) VersionInfo(ctx context.Context, pluginType string) (*spec.VersionInfo, error) {
	call := rt.call(ctx, spec.Version, &Attachment{NetNS: "dummy", IfName: "dummy"}) // old plugins demand both fields
	call.Config = []byte(fmt.Sprintf(`{"cniVersion":%q}`, spec.Current))
	var out []byte
	err := rt.ask(ctx, pluginType, spec.Version, func(ctx context.Context) (err error) {
		out, err = rt.invoker.Invoke(ctx, pluginType, call)
		return err
	})
	if errors.Is(err, errSilent) {
		return nil, err
	}
	var object *spec.Error
	if errors.As(err, &object) {
		return &spec.VersionInfo{CNIVersion: spec.Legacy, SupportedVersions: []string{spec.Legacy}}, nil
	}
	if err != nil {
		return nil, err
	}
	return spec.ParseVersions(out)
}

// Validate checks that every plugin of a list exists and supports the list's version. Validate
// returns the capabilities that the list's plugins declare, sorted. Its error names every plugin
// at fault.
func (rt *Runtime) Validate(ctx context.Context, list *List) (capabilities []string, err error) {
	var errs []error
	set := map[string]bool{}
	for i := range list.Plugins {
		p := &list.Plugins[i]
		errs = append(errs, rt.validatePlugin(ctx, p.Type, list.CNIVersion))
		for name, on := range p.Capabilities {
			set[name] = set[name] || on
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	return trueKeys(set), nil
}

func (rt *Runtime) validatePlugin(ctx context.Context, pluginType, version string) error {
	if version == "" {
		version = spec.Legacy
	}
	info, err := rt.VersionInfo(ctx, pluginType)
	if err != nil {
		return err
	}
	for _, v := range info.SupportedVersions {
		if v == version {
			return nil
		}
	}
	return spec.Errorf(spec.CodeIncompatibleVersion, "plugin %s does not support config version %q", pluginType, version)
}
