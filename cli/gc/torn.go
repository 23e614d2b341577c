// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/internal/life"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/netns"
)

// marks reports whether a plugin's link has the owner in its alias, on the host or in the
// container, as long as the attachment exists.
func marks(plugin string) bool {
	return slices.Contains([]string{"bridge", "ptp", "macvlan", "ipvlan", "vlan", "tap", "dummy"}, plugin)
}

// onlyTorn judges an attachment that only has truncated records.
func (w *world) onlyTorn(a *Attachment) (State, string) {
	const why = "only a truncated record names it"
	unmarked := slices.ContainsFunc(a.torn, func(t record.Torn) bool { return !marks(t.Plugin) })
	switch where, err := w.marked(a.Owner); {
	case err != nil:
		return Unsure, fmt.Sprintf("%s, and a namespace cannot be read: %v", why, err)
	case where != "":
		return Unsure, "its record is truncated, and its link is in " + where + ": attach it again, or delete the link"
	case unmarked:
		return Unsure, why + ": when its container is gone, delete " + strings.Join(a.tornFiles, ", ")
	case !w.seesAll():
		return Unsure, why + ", and this process does not see all namespaces: run gc where the runtime runs"
	}
	return Dead, why + " and no namespace has a link of it"
}

// markedLinks maps the links of every namespace, the host's included, to where each is: by
// alias, and by name, which is all that a link has at the start of an ADD.
func markedLinks(proc string) (map[string]string, error) {
	spaces, err := life.Namespaces(proc)
	if err != nil {
		return nil, err
	}
	own, err := netns.Current()
	if err != nil {
		return nil, err
	}
	defer own.Close() //nolint:errcheck // read only
	where := make(map[string]string)
	errs := []error{linksIn(own, proc, where)}
	for _, path := range spaces {
		ns, err := netns.Open(path)
		if netns.Gone(err) {
			continue
		}
		if err == nil {
			err = linksIn(ns, proc, where)
			ns.Close() //nolint:errcheck // read only
		}
		errs = append(errs, err)
	}
	return where, errors.Join(errs...)
}

func linksIn(ns *netns.NS, proc string, where map[string]string) error {
	conn, err := nl.In(ns, proc)
	if err != nil {
		return err
	}
	defer conn.Close()
	links, err := conn.LinkList()
	for _, l := range links {
		where[l.Attrs().Alias], where[l.Attrs().Name] = ns.Path(), ns.Path()
	}
	return err
}

// removeTorn removes truncated records. DEL cannot be called, since their names are lost.
func (r *remover) removeTorn(ctx context.Context) error {
	done, err := r.k.Records.Collecting(ctx)
	if err != nil {
		return err
	}
	defer done()
	release, keep, err := r.k.Records.Seize(r.a.Network, r.a.Owner, r.stillTorn)
	if err != nil || keep != "" {
		return r.leave(keep, err)
	}
	defer release()
	for _, t := range r.a.torn {
		err = errors.Join(err, r.k.Records.Remove(t.Network, t.Owner, t.Plugin))
	}
	r.a.Removed = err == nil
	return err
}

// stillTorn gives the reason to keep the attachment when an ADD has written a record
// meanwhile.
func (r *remover) stillTorn(list []record.Standing) (keep string) {
	known := r.plugins()
	for _, at := range list {
		if at.Record != nil || !slices.Contains(known, at.Plugin) {
			return record.InUse
		}
	}
	return ""
}

// aliasOrName finds a link of the owner.
func aliasOrName(where map[string]string, o owner.Key) string {
	if at, ok := where[o.Alias()]; ok {
		return at
	}
	return where[o.LinkName("veth", 0)]
}
