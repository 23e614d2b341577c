// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package chain

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/patchbay-net/patchbay/spec"
)

// rollbackTime is the default of RollbackTime.
const rollbackTime = time.Minute

// Add attaches a container: it calls every plugin in order, each with the previous one's
// result, and caches the last result. When a plugin or the cache fails, every plugin gets a
// DEL, also those that were not called (SPEC.md, "Attachment"). No DEL is called when
// NoRollback is set or a result of this attachment was cached before: a working attachment
// may exist then, and the caller's DEL decides. See FileDecides for a list whose file was
// removed or changed since it was read.
func (rt *Runtime) Add(ctx context.Context, list *List, a Attachment) (*spec.Result, error) {
	if err := a.validate(list); err != nil {
		return nil, err
	}
	unlock, err := rt.lockAttachment(ctx, list.Name, a.ContainerID)
	if err != nil {
		return nil, err
	}
	defer unlock()
	if err := rt.stands(list); err != nil {
		return nil, err
	}
	before, _ := rt.read(list.Name, &a)
	result, err := rt.addAll(ctx, list, &a)
	if err == nil {
		if err = rt.write(list, &a, result); err == nil {
			return result, nil
		}
		err = fmt.Errorf("failed to set network %q cached result: %w", list.Name, err)
	}
	if rt.NoRollback || before != nil {
		return nil, err
	}
	if rerr := rt.rollback(ctx, list, &a, result); rerr != nil {
		err = fmt.Errorf("%w; rollback: %w", err, rerr)
	}
	return nil, err
}

// addAll returns the last good result even when a plugin failed.
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

// rollback calls DEL on every plugin, even when ctx has ended.
func (rt *Runtime) rollback(ctx context.Context, list *List, a *Attachment, result *spec.Result) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cmp.Or(rt.RollbackTime, rollbackTime))
	defer cancel()
	return rt.delAll(ctx, list, a, result, true)
}

// delAll calls DEL on every plugin in reverse order, goes on after errors (docs/adr/0010),
// and joins the errors.
func (rt *Runtime) delAll(ctx context.Context, list *List, a *Attachment, result *spec.Result, rollback bool) error {
	r := &request{list: list, capabilities: a.Capabilities}
	if result != nil && spec.AtLeast(list.CNIVersion, "0.4.0") {
		data, err := result.Encode(list.CNIVersion)
		if err != nil {
			rt.warn(fmt.Errorf("network %q: go on without a previous result: %w", list.Name, err))
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

// Del detaches a container. Every plugin runs, in reverse order; only when all succeeded is
// the cached result deleted, so that a DEL can be repeated until it works. A cached result
// that cannot be read is passed to Warn. Args and Capabilities that the caller leaves empty
// are those of the ADD.
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

// Alone runs fn while no other operation of this runtime works on a container, nor a GC of
// the network. detach is Del with the locks held. entered is false when Alone could not get
// the locks.
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

// del is Del without locks.
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

// DelCached detaches with the configuration of the ADD, for a network whose configuration
// is gone or was replaced. Without a cached configuration it returns an error that wraps
// ErrNotCached.
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
	if cached == nil || len(cached.Config) == 0 {
		return fmt.Errorf("delete %s/%s of network %s: %w", a.ContainerID, a.IfName, network, ErrNotCached)
	}
	list, err := ParseList(cached.Config)
	if err != nil {
		return fmt.Errorf("delete %s/%s: cached configuration: %w", a.ContainerID, a.IfName, err)
	}
	return rt.del(ctx, list, &a)
}
