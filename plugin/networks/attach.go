// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package networks

import (
	"context"
	"errors"
	"fmt"

	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/npwg"
	"github.com/patchbay-net/patchbay/internal/npwg/attached"
	"github.com/patchbay-net/patchbay/internal/sealed"
	"github.com/patchbay-net/patchbay/spec"
)

// replace removes what an earlier ADD of the same attachment left, if that was killed, or its namespace is gone. A complete one of a
// living container stays, and then this ADD fails.
func (w *work) replace(ctx context.Context) error {
	r := w.request
	earlier, err := attached.Read(r.Session.Paths, r.Owner)
	switch {
	case errors.Is(err, sealed.ErrDamaged):
		kernel.Warn(r, err) // a power loss
		return nil
	case earlier == nil || err != nil:
		return err
	case earlier.Complete() && w.present(earlier):
		return spec.Errorf(spec.CodeInvalidEnvironment, "container %s is attached to its further networks already: call DEL first", r.ContainerID)
	case r.Session.Dry != nil:
		return nil
	}
	if err := r.Step("earlier plan"); err != nil {
		return err
	}
	return remove(ctx, r, earlier)
}

// present reports whether the container has an interface of a plan.
func (w *work) present(plan *npwg.Plan) bool {
	sandbox, err := kernel.Of(w.request).Sandbox(w.request.NetNS)
	if err != nil {
		return false
	}
	for i := range plan.Interfaces {
		if _, err := sandbox.Link(plan.Interfaces[i].IfName); err == nil {
			return true
		}
	}
	return false
}

// attach runs the ADDs of one network's plugins. The plan says before that something of it may exist.
func (w *work) attach(ctx context.Context, index int) error {
	a := &w.plan.Interfaces[index]
	a.State = npwg.Attempted
	if err := w.save(); err != nil {
		return err
	}
	if dry := w.request.Session.Dry; dry != nil {
		dry(fmt.Sprintf("# %s: network %s", a.IfName, a.Definition))
	}
	var result *spec.Result
	err := w.request.Session.Apart(func() (err error) {
		result, err = w.run(ctx, index)
		return err
	})
	if err == nil && w.request.Session.Dry == nil {
		err = a.Ask.Honoured(result, a.IfName)
	}
	if err == nil {
		a.Result, err = encoded(a, result)
	}
	if err != nil {
		return failed(a, err)
	}
	a.State = npwg.Done
	return nil
}

// run calls the plugins in order.
func (w *work) run(ctx context.Context, index int) (result *spec.Result, err error) {
	for _, m := range w.lists[index] {
		m.Reserves(func() {}) // if the ADD fails, the plan's removal calls DEL of all
	}
	for _, m := range w.lists[index] {
		if err := w.request.Step("plugin " + m.Type); err != nil {
			return nil, err
		}
		if dry := w.request.Session.Dry; dry != nil {
			dry("# " + m.Type)
		}
		if result, err = m.Add(ctx, result); err != nil {
			return nil, fmt.Errorf("plugin type=%q failed (add): %w", m.Type, err)
		}
	}
	if result == nil {
		result = new(spec.Result)
	}
	return result, nil
}

// save writes the plan.
func (w *work) save() error {
	if w.request.Session.Dry != nil {
		return nil
	}
	if err := w.request.Step("plan"); err != nil {
		return err
	}
	return attached.Write(w.request.Session.Paths, w.plan)
}
