// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package vet

import (
	"context"
	"slices"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// Status asks whether an ADD to a network would work now: for doctor and `patchbay
// status`. Of a list of a version without that verb (before 1.1.0) our own plugins
// are asked, as if it were of this one. s knows which are ours.
func Status(ctx context.Context, rt *chain.Runtime, s *plugin.Session, l *chain.List) error {
	if spec.AtLeast(l.CNIVersion, "1.1.0") {
		return rt.Status(ctx, l)
	}
	list := *l
	list.CNIVersion = spec.Current
	list.Plugins = slices.DeleteFunc(slices.Clone(l.Plugins), func(p chain.Plugin) bool { return !own(s, rt, &p) })
	return rt.Status(ctx, &list)
}

// own reports whether a plugin and its IPAM plugin are of this process.
func own(s *plugin.Session, rt *chain.Runtime, p *chain.Plugin) bool {
	call := &spec.Call{Path: rt.Path}
	head, err := spec.ParseConf(p.Raw)
	return err == nil && s.Own(p.Type, call) != nil && (head.IPAM.Type == "" || s.Own(head.IPAM.Type, call) != nil)
}

// Check asks those plugins of an attachment that are of this process whether it is
// as ADD made it, also where its list is of a version without that verb, or has
// disableCheck, which is there for the plugins of others. It takes no lock.
func Check(ctx context.Context, rt *chain.Runtime, s *plugin.Session, l *chain.List, a chain.Attachment) error {
	list := *l
	if !spec.AtLeast(list.CNIVersion, "0.4.0") {
		list.CNIVersion = spec.Current
	}
	call := &spec.Call{Path: rt.Path}
	list.Plugins = slices.DeleteFunc(slices.Clone(l.Plugins), func(p chain.Plugin) bool { return s.Own(p.Type, call) == nil })
	return rt.Inspect(ctx, &list, a)
}
