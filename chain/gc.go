// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package chain

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"time"

	"github.com/patchbay-net/patchbay/internal/claim"
	"github.com/patchbay-net/patchbay/internal/clock"
	"github.com/patchbay-net/patchbay/internal/inventory"
	"github.com/patchbay-net/patchbay/internal/life"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/invoke"
	"github.com/patchbay-net/patchbay/spec"
)

// Keep lists the valid attachments of a network. GC removes every other attachment of the
// network. If Valid is empty, GC removes all of them.
type Keep struct {
	List  *List
	Valid []spec.AttachmentKey

	// Now, if set, returns further valid attachments. GC calls Now at a moment when this runtime
	// runs no ADD and no DEL on the network. So GC also learns of the attachments that were made
	// after Valid was listed.
	Now func(context.Context) ([]spec.AttachmentKey, error)
	// Everyones means that the list has the attachments of every runtime on the network. Otherwise GC
	// also keeps an attachment that another runtime made, as long as its namespace may exist.
	Everyones bool
	// Alive reports whether an attachment is in use after all. GC calls Alive just before it
	// detaches the attachment; at that moment no runtime can run an ADD of the attachment. Alive may
	// be nil.
	Alive func(*Cached) bool

	listed time.Time // time at which Valid was listed; GC keeps attachments made later
}

// GC removes what is left of attachments that are no longer valid. GC works on the networks one
// after the other. For each cached attachment that is not valid, it calls DEL with the
// configuration of the ADD. Then it calls GC on every plugin with the list of valid attachments
// (since 1.1.0). While the list is made, and while a plugin's GC runs, this runtime runs no ADD and no DEL
// on the network. GC skips a container on which another operation works. GC keeps
// attachments that other runtimes make at the same time. It also keeps attachments that other runtimes
// made if their namespaces may exist; Keep.Everyones turns that off. GC continues after errors and joins
// them. GC skips networks that set disableGC.
func (rt *Runtime) GC(ctx context.Context, networks ...Keep) error {
	errs := []error{rt.sweepTemporary(clock.Listing(ctx))}
	for _, k := range networks {
		if !k.List.DisableGC {
			errs = append(errs, rt.gc(ctx, &k))
		}
	}
	return errors.Join(errs...)
}

func (rt *Runtime) gc(ctx context.Context, k *Keep) error {
	del := rt.limits.Del
	rt = rt.With(WithInvoker(&patient{rt.invoker, del, min(gcShare*del, max(del, rt.limits.Lock/2))}))
	cached, err := rt.listed(ctx, k)
	if err != nil {
		return err
	}
	return errors.Join(rt.delStale(ctx, k, cached), rt.gcPlugins(ctx, k), rt.sweepAlone(ctx, k))
}

// listed completes the list of valid attachments, and returns the cached attachments. Meanwhile this
// runtime runs no ADD and no DEL on the network.
func (rt *Runtime) listed(ctx context.Context, k *Keep) ([]Cached, error) {
	unlock, err := rt.lockNetwork(ctx, k.List.Name)
	if err != nil {
		return nil, err
	}
	defer unlock()
	k.listed = clock.Listing(ctx)
	if k.Now != nil {
		more, err := k.Now(ctx)
		if err != nil {
			return nil, err // without the list, GC cannot tell which attachments are dead
		}
		k.Valid = append(slices.Clone(k.Valid), more...)
	}
	cached, err := rt.Attachments("")
	if err != nil {
		rt.warn(err) // report the error and continue
	}
	return cached, nil
}

// gcShare says how much longer than a DEL a plugin's GC may take (Limits.Del). It gets no more than half of Limits.Lock
// beyond that: ADDs and DELs of the network wait for it, and they wait no longer than Limits.Lock.
const gcShare = 20

// patient is an Invoker that applies the time limits of a GC.
type patient struct {
	invoke.Invoker
	del, gc time.Duration
}

// Invoke calls a plugin.
func (p *patient) Invoke(ctx context.Context, pluginType string, call *spec.Call) ([]byte, error) {
	limit := p.del
	if call.Verb == spec.GC {
		limit = p.gc
	}
	return invoke.Within(ctx, limit, p.Invoker, pluginType, call)
}

// delStale detaches the cached attachments of a network that are not valid.
func (rt *Runtime) delStale(ctx context.Context, k *Keep, cached []Cached) error {
	valid := make(map[spec.AttachmentKey]bool, len(k.Valid))
	for _, a := range k.Valid {
		valid[a] = true
	}
	var errs []error
	for i := range cached {
		c := &cached[i]
		if c.Network != k.List.Name || valid[c.key()] {
			continue
		}
		if err := rt.delOne(ctx, k, c); err != nil {
			errs = append(errs, fmt.Errorf("failed to delete stale attachment %s %s: %w", c.ContainerID, c.IfName, err))
		}
	}
	return errors.Join(errs...)
}

// delOne detaches one attachment. It first locks the container against other operations of this runtime. If
// one is working on the container, the attachment stays. It then claims the attachment, so that no other
// runtime can ADD it. While it holds both, it checks again whether the attachment is dead.
func (rt *Runtime) delOne(ctx context.Context, k *Keep, c *Cached) error {
	unlock, err := rt.tryContainer(c.ContainerID)
	if err != nil || unlock == nil {
		return err
	}
	defer unlock()
	records, o := claim.Dir{Path: rt.runDir}, owner.Of(c.Network, c.ContainerID, c.IfName)
	defer records.Close()
	var v inventory.Verdict
	release, stays, err := records.Seize(c.Network, o, func(now []claim.File) (keep string) {
		v, keep = rt.judge(k, c, now)
		return keep
	})
	if v.Maker == inventory.Another && v.State != life.Dead {
		k.Valid = append(k.Valid, c.key()) // for plugins that cannot know
	}
	if err != nil || stays != "" {
		return err
	}
	defer release()
	records.UnlockAll(c.Network, o)
	list, err := rt.CachedList(c)
	if err != nil {
		list = k.List
	}
	a := c.Attachment
	return rt.del(ctx, list, &a)
}

// judge decides whether a cached attachment is dead that is not in Valid. If GC may remove it, keep is "". Otherwise keep
// says why it stays: also because it is detached, or because its user says that it is alive.
func (rt *Runtime) judge(k *Keep, c *Cached, now []claim.File) (v inventory.Verdict, keep string) {
	again, err := rt.read(c.Network, &c.Attachment)
	q := inventory.OfList(k.listed, life.RuntimeName(procfs, os.Getpid()), k.Everyones)
	v = inventory.Judge(rt.evidence(c, again, now), q)
	switch {
	case v.State != life.Dead:
		return v, v.Why
	case err == nil && again == nil:
		return v, "it was detached"
	case err == nil && k.Alive != nil && k.Alive(again):
		return v, "its namespace exists"
	}
	return v, ""
}

// evidence returns what records and the cached result say of an attachment: again is the result as it is now, or nil. Only
// plugins know its links.
func (rt *Runtime) evidence(c, again *Cached, now []claim.File) *inventory.Evidence {
	judge := life.Judge{Proc: procfs, Run: rt.runDir}
	e := &inventory.Evidence{Cached: true, Names: c.key(), At: judge.At}
	for _, f := range now {
		h, _ := f.Head() // nil of a record that cannot be read
		e.Record(h, f.Since)
	}
	if again != nil {
		e.Date(again.Since)
		e.Space(again.Place(), nil)
	}
	return e
}

const procfs = "/proc"

// gcPlugins calls the verb GC of every plugin. Meanwhile this runtime runs no ADD and no DEL on the network, because
// a plugin may remove what is not on the list; between two plugins, those that wait go on. Those that ran since the
// list was made are added to it.
func (rt *Runtime) gcPlugins(ctx context.Context, k *Keep) error {
	if !spec.AtLeast(k.List.CNIVersion, "1.1.0") {
		return nil
	}
	var errs []error
	for i := range k.List.Plugins {
		p := &k.List.Plugins[i]
		if err := rt.gcPlugin(ctx, k, p); err != nil {
			errs = append(errs, fmt.Errorf("failed to GC plugin %s: %w", p.Type, err))
		}
	}
	return errors.Join(errs...)
}

func (rt *Runtime) gcPlugin(ctx context.Context, k *Keep, p *Plugin) error {
	unlock, err := rt.lockNetwork(ctx, k.List.Name)
	if err != nil {
		return err
	}
	defer unlock()
	valid := append(rt.newer(k), k.Valid...)
	r := &request{list: k.List, valid: &valid, listed: k.listed, everyones: k.Everyones}
	_, err = rt.run(ctx, p, r, rt.call(ctx, spec.GC, &Attachment{}), false)
	return err
}

// newer returns the cached attachments of the network that were made after the list, and that are not on it.
func (rt *Runtime) newer(k *Keep) (keys []spec.AttachmentKey) {
	cached, _ := rt.Attachments("") // listed has reported the error
	for _, c := range cached {
		if c.Network == k.List.Name && c.Since.After(k.listed) && !slices.Contains(k.Valid, c.key()) {
			keys = append(keys, c.key())
		}
	}
	return keys
}
