// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"slices"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// Status checks whether an ADD to a network would work now: for doctor and `patchbay
// status`. For a list of a version without STATUS (before 1.1.0) it calls our own plugins
// as if the list had this version. s lists our plugins.
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

// Inspect runs the CHECK of an attachment's plugins in this process, even where its list is
// of a version without CHECK, or has disableCheck, which is for other vendors' plugins. It
// takes no lock.
func Inspect(ctx context.Context, rt *chain.Runtime, s *plugin.Session, l *chain.List, a chain.Attachment) error {
	list := *l
	if !spec.AtLeast(list.CNIVersion, "0.4.0") {
		list.CNIVersion = spec.Current
	}
	call := &spec.Call{Path: rt.Path}
	list.Plugins = slices.DeleteFunc(slices.Clone(l.Plugins), func(p chain.Plugin) bool { return s.Own(p.Type, call) == nil })
	return rt.Inspect(ctx, &list, a)
}
