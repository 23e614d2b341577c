// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/cli/attached"
	"github.com/patchbay-net/patchbay/cli/vet"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/kernel"
	"github.com/patchbay-net/patchbay/plugin/portmap"
)

// restorable omits the elements whose map is gone with the conditions of their network:
// only the lost shared fact describes the map, and the other elements must not fail with
// these.
func (r *repairer) restorable(name string, rec *record.Record) []nft.Element {
	left := slices.Clone(rec.Elements)
	for _, fact := range rec.Shared {
		id, ok := strings.CutPrefix(fact, portmap.FactConditions)
		if _, err := r.store.Fact(fact); !ok || !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		left = slices.DeleteFunc(left, func(e nft.Element) bool { return strings.HasSuffix(e.Set, "_"+id) && !r.stands(e) })
	}
	if len(left) < len(rec.Elements) {
		r.out.Skipped = append(r.out.Skipped, fmt.Sprintf("%s: the conditions of its published ports are lost with %s/shared: attach it again (patchbay del and add)", name, r.store.Dir))
	}
	return left
}

func (r *repairer) stands(e nft.Element) bool {
	_, there, err := r.fw.Get(e.Set, e.Key)
	return there && err == nil
}

// unrepaired reports living attachments that lack objects which no record lists. Doctor
// reports files that cannot be read.
func (c *repairCommand) unrepaired(out *repaired) {
	s := c.app.session()
	defer s.Close()
	look := attached.New(kernel.OfSession(s), c.app.paths.Proc)
	list, _ := look.List(c.app.runtime(nil))
	for _, a := range list {
		name := fmt.Sprintf("%s %s/%s", a.Network, a.ContainerID, a.IfName)
		reported := slices.ContainsFunc(out.Skipped, func(s string) bool { return strings.HasPrefix(s, name+":") })
		if why := c.lacks(s, look, a); why != "" && !reported {
			out.Skipped = append(out.Skipped, name+": "+why)
		}
	}
}

// lacks is what a living attachment still lacks after the repair, and what to do.
func (c *repairCommand) lacks(s *plugin.Session, look *attached.Look, a *attached.Attachment) string {
	switch {
	case a.Gone():
		return ""
	case look.Unrecorded(a):
		return fmt.Sprintf("its records below %s are lost, so its firewall elements are not known: "+
			"attach it again (patchbay check NETWORK NETNS lists what is missing)", c.app.paths.Run)
	case len(a.Records) == 0 || a.NetNS == "" || busy(s, a):
		return ""
	}
	known, err := look.Firewall(c.app.ctx, a) // run has reported why these are missing
	l, perr := chain.ParseList(a.Config)
	if err != nil || perr != nil || len(known) > 0 {
		return ""
	}
	d := netstate.Found(vet.Check(c.app.ctx, c.app.runtime(nil), s, l, a.Attachment))
	if len(d.Lost) == 0 {
		return ""
	}
	return fmt.Sprintf("%s missing, and its records below %s are lost: attach it again (patchbay del and add)", d.Sentence(), c.app.paths.Run)
}

// busy reports whether an ADD or DEL works on the attachment.
func busy(s *plugin.Session, a *attached.Attachment) bool {
	store := kernel.OfSession(s).Records
	return slices.ContainsFunc(a.Records, func(r *record.Record) bool { return store.Busy(r.Network, r.Owner, r.Plugin) })
}
