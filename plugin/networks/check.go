// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package networks

import (
	"context"
	"fmt"

	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/npwg"
	"github.com/patchbay-net/patchbay/internal/npwg/attached"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// check calls CHECK of each attachment's plugins with the result of its ADD.
func check(ctx context.Context, r *plugin.Request) error {
	plan, err := attached.Read(r.Session.Paths, r.Owner)
	if err != nil {
		return err
	}
	if plan == nil {
		return checkNone(r)
	}
	if !plan.Complete() {
		return spec.Errorf(spec.CodeInternal, "the ADD of the further networks did not end: start the pod again")
	}
	var errs []error
	for i := range plan.Interfaces {
		a := &plan.Interfaces[i]
		if err := checkOne(ctx, r, plan, a); err != nil {
			errs = append(errs, failed(a, err))
		}
	}
	return spec.Join(append(errs, checkRoutes(r, plan))...)
}

// checkNone returns an error if the pod should have a plan.
func checkNone(r *plugin.Request) error {
	all := plugin.ConfOf[Conf](r).RuntimeConfig.Annotations
	selected := false
	if all != nil {
		list, err := npwg.Parse(all.Networks, "default") // the namespace does not matter
		selected = err == nil && len(list) > 0
	}
	if pod, err := podOf(r); err == nil && pod != nil && (selected || kernel.Of(r).Read(r) != nil) {
		return spec.Errorf(spec.CodeInternal, "pod %s/%s has further networks, but their plan is lost: start the pod again", pod.Namespace, pod.Name)
	}
	return nil
}

func checkOne(ctx context.Context, r *plugin.Request, plan *npwg.Plan, a *npwg.Interface) error {
	if a.DisableCheck || !spec.AtLeast(a.CNIVersion, "0.4.0") {
		return nil
	}
	list, err := membersOf(r, plan, a)
	errs := []error{err}
	for _, m := range list {
		if err := m.Do(ctx, spec.Check, a.Result); err != nil {
			errs = append(errs, fmt.Errorf("plugin type=%q failed (check): %w", m.Type, err))
		}
	}
	return spec.Join(errs...)
}
