// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/cli/doctor"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/record"
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
func (r *repairer) unrepaired(ctx context.Context) {
	look := doctor.NewLook(r.k, r.app.paths.Proc)
	list, _ := look.List(r.app.runtime(nil))
	for _, a := range list {
		name := named(a.Network, a.ContainerID, a.IfName)
		reported := slices.ContainsFunc(r.out.Skipped, func(s string) bool { return strings.HasPrefix(s, name+":") })
		if why := r.lacks(ctx, look, a); why != "" && !reported {
			r.out.Skipped = append(r.out.Skipped, name+": "+why)
		}
	}
}

// lacks is what a living attachment still lacks after the repair, and what to do.
func (r *repairer) lacks(ctx context.Context, look *doctor.Look, a *doctor.Attachment) string {
	switch {
	case a.Gone():
		return ""
	case look.Unrecorded(a):
		return fmt.Sprintf("its records below %s are lost, so its firewall elements are not known: "+
			"attach it again (patchbay check NETWORK NETNS lists what is missing)", r.app.paths.Run)
	case len(a.Records) == 0 || a.NetNS == "":
		return ""
	case slices.ContainsFunc(a.Records, func(rec *record.Record) bool { return r.store.Busy(rec.Network, rec.Owner, rec.Plugin) }):
		return "" // an ADD or DEL works on it
	}
	known, err := look.Firewall(ctx, a) // run has reported why these are missing
	l, perr := chain.ParseList(a.Config)
	if err != nil || perr != nil || len(known) > 0 {
		return ""
	}
	d := netstate.Found(doctor.Inspect(ctx, r.app.runtime(nil), r.session, l, a.Attachment))
	if len(d.Lost) == 0 {
		return ""
	}
	return fmt.Sprintf("%s missing, and its records below %s are lost: attach it again (patchbay del and add)", d.Sentence(), r.app.paths.Run)
}
