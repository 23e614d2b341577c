// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package chain

import (
	"context"
	"errors"
	"fmt"

	"github.com/patchbay-net/patchbay/spec"
)

// Add attaches a container. Add calls every plugin in order, passes each one the result of the
// plugin before, and caches the last result. If a plugin fails, or if the result cannot be
// cached, Add calls DEL on every plugin of the list, even on plugins whose ADD did not run
// (SPEC.md, "Attachment"). In two cases Add calls no DEL: WithNoRollback is set, or the cache already
// held a result of this attachment, even one that cannot be read. With such a result, a working attachment
// may exist, and the caller decides when to run DEL. WithFileDecides says what happens when the file of the list was
// changed or removed after it was read.
func (rt *Runtime) Add(ctx context.Context, list *List, a Attachment) (*spec.Result, error) {
	result, _, err := rt.add(ctx, list, a)
	return result, err
}

// add is Add. It also reports whether the attachment may have existed before.
func (rt *Runtime) add(ctx context.Context, list *List, a Attachment) (result *spec.Result, existed bool, err error) {
	if err := a.validate(list); err != nil {
		return nil, false, err
	}
	unlock, err := rt.lockAttachment(ctx, list.Name, a.ContainerID)
	if err != nil {
		return nil, false, err
	}
	defer unlock()
	if err := rt.checkSource(list); err != nil {
		return nil, false, err
	}
	existed = rt.mayExist(list.Name, &a)
	result, err = rt.addAll(ctx, list, &a)
	if err == nil {
		if err = rt.write(list, &a, result); err == nil {
			return result, existed, nil
		}
		err = fmt.Errorf("failed to set network %q cached result: %w", list.Name, err)
	}
	if existed {
		return nil, existed, err
	}
	return nil, existed, rt.undo(ctx, err, func(ctx context.Context) error { return rt.delAll(ctx, list, &a, result, true) })
}

// addAll calls ADD on the plugins in order. If one plugin fails, addAll returns the result of the
// plugin before, with the error.
func (rt *Runtime) addAll(ctx context.Context, list *List, a *Attachment) (*spec.Result, error) {
	result := a.Prev
	for i := range list.Plugins {
		p := &list.Plugins[i]
		next, err := rt.addOne(ctx, list, p, a, result)
		if err != nil {
			return result, fmt.Errorf("plugin %s failed (add): %w", p, err)
		}
		result = next
	}
	return result, nil
}

func (rt *Runtime) addOne(ctx context.Context, list *List, p *Plugin, a *Attachment, prev *spec.Result) (*spec.Result, error) {
	r := &request{list: list, capabilities: a.Capabilities}
	if prev != nil {
		var err error
		if r.prevResult, err = prev.Encode(list.CNIVersion); err != nil {
			return nil, err
		}
	}
	out, err := rt.run(ctx, p, r, rt.call(ctx, spec.Add, a), false)
	if err != nil {
		return nil, err
	}
	return spec.ParseResult(out, list.CNIVersion)
}

// undo calls back, which undoes what was done before cause, even when ctx has ended. undo returns both errors.
// WithNoRollback stops it.
func (rt *Runtime) undo(ctx context.Context, cause error, back func(context.Context) error) error {
	if rt.noRollback {
		return cause
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), rt.limits.Rollback)
	defer cancel()
	if err := back(ctx); err != nil {
		return fmt.Errorf("%w; rollback: %w", cause, err)
	}
	return cause
}

// delAll calls DEL on every plugin in reverse order. delAll continues after an error
// (docs/adr/0010) and joins the errors.
func (rt *Runtime) delAll(ctx context.Context, list *List, a *Attachment, result *spec.Result, rollback bool) error {
	r := &request{list: list, capabilities: a.Capabilities}
	if result != nil && spec.AtLeast(list.CNIVersion, "0.4.0") {
		data, err := result.Encode(list.CNIVersion)
		if err != nil {
			rt.warn(fmt.Errorf("network %q: the plugins get no previous result: %w", list.Name, err))
		}
		r.prevResult = data
	}
	var errs []error
	for i := len(list.Plugins) - 1; i >= 0; i-- {
		p := &list.Plugins[i]
		if _, err := rt.run(ctx, p, r, rt.call(ctx, spec.Del, a), rollback); err != nil {
			errs = append(errs, fmt.Errorf("plugin %s failed (delete): %w", p, err))
		}
	}
	return errors.Join(errs...)
}

// Del detaches a container. Del calls every plugin in reverse order. If all plugins succeed, Del
// deletes the cached result. Otherwise the caller can repeat the DEL until it works. If the
// cached result cannot be read, Del passes the error to Warn. If the caller leaves Args or
// Capabilities empty, Del uses the values of the ADD.
func (rt *Runtime) Del(ctx context.Context, list *List, a Attachment) error {
	if err := a.validate(list); err != nil {
		return err
	}
	unlock, err := rt.lockAttachment(ctx, list.Name, a.ContainerID)
	if err != nil {
		return err
	}
	defer unlock()
	return rt.del(ctx, list, &a)
}

// Alone locks the container and the network and runs fn. Meanwhile this runtime runs no other
// operation on the container and no GC on the network. fn gets the function detach, which runs
// Del without taking the locks again. If Alone could not get the locks, entered is false.
func (rt *Runtime) Alone(ctx context.Context, network, containerID string, fn func(detach func(context.Context, *List, Attachment) error) error) (entered bool, err error) {
	if err := spec.ValidateNetworkName(network); err != nil {
		return false, err
	}
	if err := spec.ValidateContainerID(containerID); err != nil {
		return false, err
	}
	unlock, err := rt.lockAttachment(ctx, network, containerID)
	if err != nil {
		return false, err
	}
	defer unlock()
	return true, fn(func(ctx context.Context, list *List, a Attachment) error {
		if err := a.validate(list); err != nil {
			return err
		}
		return rt.del(ctx, list, &a)
	})
}

// del is Del for callers that hold the locks.
func (rt *Runtime) del(ctx context.Context, list *List, a *Attachment) error {
	cached, err := rt.read(list.Name, a)
	if err != nil {
		rt.warn(err)
	}
	var result *spec.Result
	if cached != nil {
		result = cached.Result
		cached.fill(a)
	}
	if err := rt.delAll(ctx, list, a, result, false); err != nil {
		return err
	}
	return rt.forget(list.Name, a)
}

// DelCached detaches with the configuration that the ADD left in the cache (CachedList). DelCached is for
// networks whose configuration was removed or replaced. If no plugin is cached, it calls none, keeps the
// cached result, and its error wraps ErrNotCached.
func (rt *Runtime) DelCached(ctx context.Context, network string, a Attachment) error {
	if err := a.validate(&List{Name: network}); err != nil {
		return err
	}
	unlock, err := rt.lockAttachment(ctx, network, a.ContainerID)
	if err != nil {
		return err
	}
	defer unlock()
	cached, err := rt.read(network, &a)
	if err != nil {
		return err
	}
	if cached == nil {
		cached = &Cached{Network: network}
	}
	list, err := rt.CachedList(cached)
	if err != nil {
		return fmt.Errorf("delete %s/%s of network %s: %w", a.ContainerID, a.IfName, network, err)
	}
	return rt.del(ctx, list, &a)
}
