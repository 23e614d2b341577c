// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package plugin

import (
	"context"
	"errors"

	"github.com/patchbay-net/patchbay/spec"
)

// Delegate calls another plugin, which CNI_PATH finds, with this request's configuration
// and environment (SPEC.md section 4).
func (r *Request) Delegate(ctx context.Context, pluginType string, verb spec.Verb) ([]byte, error) {
	if pluginType == "" {
		return nil, errNoDelegate()
	}
	call := *r.Call
	call.Verb = verb
	return r.Session.Invoker().Invoke(ctx, pluginType, &call)
}

// IPAMAdd asks the IPAM plugin of the configuration for addresses, and then pushes their
// release to the undo stack. It pushes nothing for a plugin that refuses because the
// attachment already has addresses, which must be kept.
func (r *Request) IPAMAdd(ctx context.Context) (*spec.Result, error) {
	if err := r.Step("ipam"); err != nil {
		return nil, err
	}
	if r.Head.IPAM.Type == "" {
		return nil, errNoDelegate()
	}
	result, err := r.Session.Add(ctx, r.Head.IPAM.Type, r.Call, nil)
	if err != nil {
		if errors.Is(err, ErrResult) {
			r.Undo(r.IPAMDel)
		}
		return nil, err
	}
	if r.Session.Dry == nil {
		r.Undo(r.IPAMDel)
	}
	if err := CheckPrefixes(result); err != nil {
		return nil, err
	}
	return result, nil
}

func errNoDelegate() error {
	return spec.Invalid("no plugin name provided")
}

// IPAMDel releases the addresses of the attachment.
func (r *Request) IPAMDel(ctx context.Context) error {
	_, err := r.Delegate(ctx, r.Head.IPAM.Type, spec.Del)
	return err
}

// IPAMForward passes CHECK, GC or STATUS on to the IPAM plugin; without one it does
// nothing.
func (r *Request) IPAMForward(ctx context.Context) error {
	if r.Head.IPAM.Type == "" {
		return nil
	}
	_, err := r.Delegate(ctx, r.Head.IPAM.Type, r.Verb)
	return err
}

// IgnoreGone turns the given errors into success: for DEL a missing object counts as deleted.
func IgnoreGone(err error, gone ...error) error {
	for _, g := range gone {
		if errors.Is(err, g) {
			return nil
		}
	}
	return err
}
