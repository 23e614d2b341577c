// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"fmt"
	"net/netip"

	"github.com/patchbay-net/patchbay/internal/life"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/owner"
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

// Seize calls remove for an attachment that is not on a GC's list, while ADDs of the attachment wait.
// If there is a reason to keep the attachment (stays), or another process works on it, Seize does not
// call remove. Unless remove returns Removed, this GC keeps the attachment's addresses
// (Request.Spare). names are the attachment's names as far as the caller knows them. The plugin's
// record stays locked until it is removed.
func (k *Kernel) Seize(r *plugin.Request, o owner.Key, names spec.AttachmentKey, remove func() (Outcome, error)) error {
	var others []string
	release, keep, err := k.Records.Seize(r.Network, o, func(now []record.CurrentRecord) string {
		for _, s := range now {
			if s.Record != nil {
				names = keyOf(s.Record)
			}
			if s.Plugin != r.Plugin.Name {
				others = append(others, s.Plugin)
			}
		}
		return k.stays(r, o, now)
	})
	did := Kept
	if err == nil && keep == "" {
		defer release()
		for _, other := range others {
			k.Records.Unlock(r.Network, o, other) // the other plugin's GC takes this lock
		}
		did, err = remove()
	}
	if did != Removed || err != nil {
		r.Spare(k.named(r, o, names))
	}
	return err
}

func keyOf(rec *record.Record) spec.AttachmentKey {
	return spec.AttachmentKey{ContainerID: rec.ContainerID, IfName: rec.IfName}
}

// named searches for the names of an owner if they are not known.
func (k *Kernel) named(r *plugin.Request, o owner.Key, names spec.AttachmentKey) spec.AttachmentKey {
	if names.ContainerID == "" {
		names.ContainerID, names.IfName = Names(k.session.Paths, r.Network, o, nil)
	}
	return names
}

// stays returns why a GC keeps an attachment that is not on its list, or "". The caller has locked the
// attachment's records.
//
//   - It was made after the list.
//   - Another runtime made it, and its namespace may exist. Runtimes that share a network each list
//     only their own attachments.
//   - It has no record, and its veth pair is in use.
func (k *Kernel) stays(r *plugin.Request, o owner.Key, now []record.CurrentRecord) string {
	for _, s := range now {
		switch {
		case s.Since.After(r.Listed()):
			return "it is newer than the list of valid attachments"
		case s.Record != nil && k.ofOther(r, s.Record):
			return "another runtime made it, and its namespace may exist"
		}
	}
	if len(now) == 0 && k.keepsPair(r, o) {
		return "its pair is in use"
	}
	return ""
}

// ofOther reports whether another runtime than the GC's caller may have made an attachment whose
// namespace may exist.
func (k *Kernel) ofOther(r *plugin.Request, rec *record.Record) bool {
	if r.Everyones() || !rec.OfOther(k.runtime()) {
		return false
	}
	state, _ := k.judge.At(rec.NetNS, rec.NetNSMark)
	return state != life.Dead
}

// LeadsTo returns what may still lead to the addresses of an attachment that a GC has seized: the record of
// another plugin than IPAM, whose objects are not removed, or a veth pair that is in use. It returns ""
// if there is nothing.
func (k *Kernel) LeadsTo(r *plugin.Request, o owner.Key) string {
	for _, s := range k.Records.Current(r.Network, o) {
		if !k.session.IsIPAM(s.Plugin) && k.Left(r.Network, o, s.Plugin) {
			return "plugin " + s.Plugin + " has a record of it"
		}
	}
	link, err := k.livingPair(o)
	switch {
	case err != nil:
		return err.Error()
	case link != "":
		return "its link " + link + " carries"
	}
	return ""
}

// Lives returns why an attachment may live that has no record of ours: a container on this host's links has one of
// its addresses. The reference attached it, or its records are lost. So another runtime may have called the ADD, and
// then a GC's list does not name it. Lives returns "" if nothing shows that.
func (k *Kernel) Lives(r *plugin.Request, o owner.Key, addrs []netip.Addr) string {
	if r.Everyones() || len(k.Records.Current(r.Network, o)) > 0 {
		return ""
	}
	where, err := k.attached()
	if err != nil {
		return err.Error()
	}
	for _, a := range addrs {
		if path := where[a]; path != "" {
			return fmt.Sprintf("no record says who made it, and %s has %s", path, a)
		}
	}
	return ""
}

// keepsPair reports whether a link of the owner is the host's end of a veth pair that is in use.
// If it cannot look, it returns true. In both cases it warns.
func (k *Kernel) keepsPair(r *plugin.Request, o owner.Key) bool {
	link, err := k.livingPair(o)
	switch {
	case err != nil:
		Warn(r, fmt.Errorf("what owner %s has without a record is kept: %w", o, err))
	case link != "":
		Warn(r, fmt.Errorf("what owner %s has without a record is kept: its link %s carries, so its container lives; its DEL removes it", o, link))
	}
	return err != nil || link != ""
}

// livingPair returns the name of the owner's link that is the host's end of a veth pair in use. It
// lists all links only once. While the caller holds the claim, no ADD makes a new one.
func (k *Kernel) livingPair(o owner.Key) (name string, err error) {
	host, err := k.Host()
	if err != nil {
		return "", err
	}
	if k.pairs == nil {
		if k.pairs, err = marked(host); err != nil {
			return "", err
		}
	}
	name, ok := k.pairs[o]
	if !ok {
		return "", nil
	}
	link, err := host.Link(name)
	if nl.IsNotFound(err) {
		return "", nil
	}
	if err != nil || link.Attrs().Alias != o.Alias() || !netstate.Carries(link) || !host.Lives(link.Attrs().NetNsID) {
		return "", err
	}
	return name, nil
}

// marked returns the names of the host's links that have our mark, by owner.
func marked(host *nl.Conn) (map[owner.Key]string, error) {
	links, err := host.LinkList()
	if err != nil {
		return nil, err
	}
	names := make(map[owner.Key]string)
	for _, l := range links {
		if o, ok := owner.FromAlias(l.Attrs().Alias); ok {
			names[o] = l.Attrs().Name
		}
	}
	return names, nil
}
