// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/patchbay-net/patchbay/internal/inventory"
	"github.com/patchbay-net/patchbay/internal/life"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/internal/traces"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// Outcome says what a GC did with an attachment that is not on its list.
type Outcome int

const (
	// Kept means that something of the attachment may still exist. Then its addresses stay too.
	Kept Outcome = iota
	// Removed means that nothing leads to the attachment's addresses any more.
	Removed
)

// outcome returns Removed if err is nil.
func outcome(err error) (Outcome, error) {
	if err != nil {
		return Kept, err
	}
	return Removed, nil
}

// Suspect is an attachment that is not on a GC's list, as far as the caller knows it.
type Suspect struct {
	Owner owner.Key
	Names spec.AttachmentKey
	Addrs []netip.Addr // those that its IPAM plugin has reserved
	Since time.Time    // of the reservation
}

// Seize calls remove for an attachment that is not on a GC's list, while ADDs of the attachment wait. If it is not
// certainly dead (inventory.Judge), or another process works on it, Seize does not call remove. Unless remove returns
// Removed, this GC keeps the attachment's addresses (Request.Spare). The plugin's record stays locked until it is removed.
func (k *Kernel) Seize(r *plugin.Request, s Suspect, remove func() (Outcome, error)) error {
	var others []string
	release, keep, err := k.Records.Seize(r.Network, s.Owner, func(now []record.CurrentRecord) string {
		for _, at := range now {
			if at.Record != nil {
				s.Names = keyOf(at.Record)
			}
			if at.Plugin != r.Plugin.Name {
				others = append(others, at.Plugin)
			}
		}
		return k.stays(r, s, now)
	})
	did := Kept
	if err == nil && keep == "" {
		defer release()
		for _, other := range others {
			k.Records.Unlock(r.Network, s.Owner, other) // the other plugin's GC takes this lock
		}
		did, err = remove()
	}
	if did != Removed || err != nil {
		r.Spare(k.named(r, s.Owner, s.Names))
	}
	return err
}

func keyOf(rec *record.Record) spec.AttachmentKey {
	return spec.AttachmentKey{ContainerID: rec.ContainerID, IfName: rec.IfName}
}

// named searches for the names of an owner if they are not known.
func (k *Kernel) named(r *plugin.Request, o owner.Key, names spec.AttachmentKey) spec.AttachmentKey {
	if names.ContainerID == "" {
		names = k.Traces().Names(r.Network, o, nil)
	}
	return names
}

// stays returns why a GC keeps an attachment that is not on its list, or "". It warns of one that has lost its records.
func (k *Kernel) stays(r *plugin.Request, s Suspect, now []record.CurrentRecord) string {
	v := k.verdict(r, s, now)
	switch {
	case v.State == life.Dead:
		return ""
	case v.Maker == inventory.Nobody && v.Row != inventory.Newer:
		Warn(r, fmt.Errorf("what owner %s has without a record is kept: %s; its DEL removes it", s.Owner, v.Why))
	}
	return v.Why
}

// Dead reports whether an attachment is dead that is not on a GC's list. now are its records.
func (k *Kernel) Dead(r *plugin.Request, s Suspect, now []record.CurrentRecord) bool {
	return k.verdict(r, s, now).State == life.Dead
}

// verdict decides whether an attachment is dead that is not on a GC's list.
func (k *Kernel) verdict(r *plugin.Request, s Suspect, now []record.CurrentRecord) inventory.Verdict {
	e := k.evidence(r.Network, s.Owner, now)
	e.Names = cmp.Or(e.Names, s.Names)
	e.Date(s.Since)
	e.Here = func() (string, error) { return k.attached(s.Addrs...) }
	e.Settling = &k.settling
	return inventory.Judge(e, inventory.OfList(r.Listed(), k.runtime(), r.Everyones()))
}

// evidence returns what records, the cached result and links say of an attachment. Another program may have attached the
// container again after ours, and then only the result says where.
func (k *Kernel) evidence(network string, o owner.Key, now []record.CurrentRecord) *inventory.Evidence {
	var links []string
	e := &inventory.Evidence{At: k.judge.At, Pair: func(ending bool) (string, error) { return k.LivingPair(o, links, ending) }}
	for _, at := range now {
		e.Record(at.Record.Head(), at.Since)
		if at.Record != nil {
			links = append(links, at.Record.Links...)
		}
	}
	if slices.ContainsFunc(now, func(at record.CurrentRecord) bool { return at.Record == nil }) {
		links = nil // the lost record may have had the pair
	}
	if e.Names.ContainerID != "" {
		e.Space(traces.CachedNetNS(k.session.Paths, network, e.Names), nil)
	}
	return e
}

// LeadsTo returns what may still lead to the addresses of an attachment that a GC has seized: the record of
// another plugin than IPAM, whose objects are not removed, or a veth pair that is in use. It returns ""
// if there is nothing.
func (k *Kernel) LeadsTo(r *plugin.Request, o owner.Key) string {
	for _, s := range k.Records.Current(r.Network, o) {
		if !k.session.IsIPAM(s.Plugin) && k.HasRecord(r.Network, o, s.Plugin) {
			return "plugin " + s.Plugin + " has a record of it"
		}
	}
	link, err := k.LivingPair(o, nil, false)
	switch {
	case err != nil:
		return err.Error()
	case link != "":
		return "its link " + link + " carries"
	}
	return ""
}

// LivingPair returns the name of the owner's link that is the host's end of a veth pair whose other end is up in an existing
// namespace. The kernel deletes a pair later than its namespace; if ending, such a pair counts, too. links are the names that
// traces have. Without them it looks for the owner's mark, and lists all links, but only once in a session. While the caller
// holds the claim, no ADD makes a new one.
func (k *Kernel) LivingPair(o owner.Key, links []string, ending bool) (name string, err error) {
	host, err := k.Host()
	if err == nil && len(links) == 0 {
		links, err = k.marked(o)
	}
	if err != nil {
		return "", err
	}
	for _, name := range links {
		link, err := host.Link(name)
		if err != nil && !nl.IsNotFound(err) {
			return "", err
		}
		if err == nil && traces.IsOf(link, o) && netstate.Carries(link) && (ending || host.Lives(link.Attrs().NetNsID)) {
			return name, nil
		}
	}
	return "", nil
}

// marked returns the names of the host's links that have the owner's mark.
func (k *Kernel) marked(o owner.Key) (names []string, err error) {
	links, err := k.Traces().Links()
	for _, l := range links.Of[o] {
		names = append(names, l.Attrs().Name)
	}
	return names, err
}
