// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"context"
	"errors"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/internal/results"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// SweepLost finds attachments of the network that have elements in the firewall, but no record
// and no entry in the GC's list. An ADD writes its record first, so such an attachment has lost
// its record. SweepLost calls remove with those elements that mine selects. It skips elements
// that a record names, because Sweep removes those. Seize keeps an attachment whose veth pair is in
// use, because the GC's caller may have lost the attachment too.
func (k *Kernel) SweepLost(r *plugin.Request, mine func(nft.Element) bool, remove func(*record.Record) error) error {
	living := k.living(r)
	elems, err := k.OwnedElements()
	errs := []error{err}
	lost := make(map[owner.Key][]nft.Element)
	for _, e := range elems {
		key, _ := nft.OwnerOf(e.Comment)
		if o := owner.Key(key); mine(e) && ofNetwork(r.Network, o, e.Comment) && !living[o] {
			lost[o] = append(lost[o], e)
		}
	}
	if err != nil {
		r.Spare(spec.AttachmentKey{}) // an element that was not listed may lead to any address
	}
	for o, elems := range lost {
		var names spec.AttachmentKey
		names.ContainerID, names.IfName = Names(k.session.Paths, r.Network, o, elems)
		errs = append(errs, k.Seize(r, Suspect{Owner: o, Names: names}, func() (Outcome, error) { return k.removeLost(r, o, elems, remove) }))
	}
	return errors.Join(errs...)
}

// SpareLost keeps the addresses of attachments of the network that have lost their records and whose veth pairs are
// in use, whatever IPAM plugin has given them. Without a record and elements nothing else leads a GC to them.
func (k *Kernel) SpareLost(r *plugin.Request) {
	host, err := k.Host()
	var links map[owner.Key][]string
	if err == nil {
		links, err = k.marked(host)
	}
	if err != nil {
		Warn(r, err)
		r.Spare(spec.AttachmentKey{})
		return
	}
	lost := maps.Clone(links)
	for _, o := range k.Records.Owners() {
		delete(lost, o)
	}
	living := k.living(r)
	if len(lost) == 0 {
		return
	}
	candidates(k.session.Paths, r.Network, func(id, ifName string) bool {
		o := owner.Of(r.Network, id, ifName)
		if lost[o] != nil && !living[o] && k.stays(r, Suspect{Owner: o}, nil) != "" {
			r.Spare(spec.AttachmentKey{ContainerID: id, IfName: ifName})
			delete(lost, o)
		}
		return false
	})
}

// removeLost removes those elements of a seized owner that no record names.
func (k *Kernel) removeLost(r *plugin.Request, o owner.Key, elems []nft.Element, remove func(*record.Record) error) (Outcome, error) {
	current := k.Records.Current(r.Network, o)
	if slices.ContainsFunc(current, func(s record.CurrentRecord) bool { return s.Record == nil }) {
		return Kept, nil // that record may name any element
	}
	rec := &record.Record{Plugin: r.Plugin.Name, Network: r.Network, Owner: o, Elements: unnamed(elems, current)}
	if len(rec.Elements) == 0 {
		return Removed, nil // Sweep decides
	}
	err := remove(rec)
	if errors.Is(err, errLater) {
		err = nil
	}
	return outcome(err)
}

// OfOwner returns those elements of an owner that mine selects. It finds them by their comments,
// so it must list all sets. OfOwner serves a DEL that has no other trace of the attachment.
func (k *Kernel) OfOwner(o owner.Key, mine func(nft.Element) bool) ([]nft.Element, error) {
	elems, err := k.OwnedElements()
	return slices.DeleteFunc(elems, func(e nft.Element) bool {
		key, _ := nft.OwnerOf(e.Comment)
		return owner.Key(key) != o || !mine(e)
	}), err
}

// ofNetwork reports whether an element's comment names the network. If the comment was not cut,
// the names in it must also give this owner.
func ofNetwork(network string, o owner.Key, comment string) bool {
	_, names, _ := strings.Cut(comment, " ")
	parts := strings.Split(names, "/")
	if len(comment) >= nft.MaxComment {
		return len(parts) > 1 && parts[0] == network
	}
	return len(parts) == 3 && owner.Of(network, parts[1], parts[2]) == o
}

// unnamed returns the elements that no record names.
func unnamed(elems []nft.Element, records []record.CurrentRecord) []nft.Element {
	return slices.DeleteFunc(elems, func(e nft.Element) bool {
		return slices.ContainsFunc(records, func(s record.CurrentRecord) bool {
			return slices.ContainsFunc(s.Record.Elements, e.SameKey)
		})
	})
}

// Derive makes a new record in place of one that cannot be read. It collects everything that has
// the owner's key: facts that no readable record has, elements, and links. It adds the
// attachment's names if it can find them.
func (k *Kernel) Derive(t record.Torn) (*record.Record, error) {
	rec := &record.Record{Plugin: t.Plugin, Owner: t.Owner, Network: t.Network}
	if t.Plugin == "tuning" {
		rec.DataDir = filepath.Join(k.session.Paths.RunCNI, t.Plugin)
	}
	var err error
	if rec.Shared, err = k.unclaimed(t); err != nil {
		return nil, err
	}
	elems, err := k.OwnedElements()
	if err != nil {
		return nil, err
	}
	for _, e := range elems {
		if o, _ := nft.OwnerOf(e.Comment); o == string(t.Owner) {
			rec.Elements = append(rec.Elements, e)
		}
	}
	if rec.Links, err = k.linksOf(t.Owner); err != nil {
		return nil, err
	}
	rec.ContainerID, rec.IfName = Names(k.session.Paths, t.Network, t.Owner, rec.Elements)
	return rec, nil
}

// unclaimed returns the facts that the owner holds and that no record of another plugin lists
// for this owner.
func (k *Kernel) unclaimed(t record.Torn) (names []string, err error) {
	held, err := k.Records.Held(t.Owner)
	if err != nil || len(held) == 0 {
		return nil, err
	}
	records, _, _ := k.Records.Scan(t.Network)
	claimed := make(map[string]bool)
	for _, r := range records {
		for _, name := range r.Shared {
			claimed[name] = claimed[name] || r.Owner == t.Owner
		}
	}
	for _, name := range held {
		if !claimed[name] {
			names = append(names, name)
		}
	}
	return names, nil
}

// OwnedElements returns the elements of attachments, including those in the maps of
// conditions. OwnedElements lists all sets; GC uses it.
func (k *Kernel) OwnedElements() ([]nft.Element, error) {
	_, facts, _ := k.Records.Facts() // a fact that cannot be read has no maps
	var maps []string
	for _, f := range facts {
		if f.Conditions != nil {
			maps = append(maps, f.Conditions.Maps()...)
		}
	}
	return k.NFT.Owned(maps...)
}

// linksOf returns the names of the host's links whose alias has the owner. linksOf adds the
// names that an ADD may have given to a link before it wrote the alias.
func (k *Kernel) linksOf(o owner.Key) (names []string, err error) {
	host, err := k.Host()
	if err != nil {
		return nil, err
	}
	links, err := k.marked(host)
	if err != nil {
		return nil, err
	}
	names = slices.Clone(links[o])
	if unmarked := o.LinkName("veth", 0); !slices.Contains(names, unmarked) {
		names = append(names, unmarked)
	}
	return names, nil
}

// Names finds the container id and the interface name of an owner. Names searches comments of
// elements, cached results, address files and tuning's backups. The owner is a hash of the
// names, so a match is certain. Without a match both names are empty.
func Names(p paths.Paths, network string, o owner.Key, elems []nft.Element) (id, ifName string) {
	try := func(a, b string) bool {
		if owner.Of(network, a, b) == o {
			id, ifName = a, b
		}
		return ifName != ""
	}
	for _, e := range elems {
		_, rest, _ := strings.Cut(e.Comment, " ")
		if parts := strings.Split(rest, "/"); len(parts) == 3 && try(parts[1], parts[2]) {
			return id, ifName
		}
	}
	candidates(p, network, try)
	return id, ifName
}

// candidates calls try with the names that cached results, address files and tuning's backups may have of attachments
// of a network, until try returns true.
func candidates(p paths.Paths, network string, try func(id, ifName string) (stop bool)) {
	for _, at := range []struct{ pattern, prefix, suffix, sep string }{
		{filepath.Join(results.Dir(p.CNI), "*"), results.Prefix(network), "", results.Separator},
		{filepath.Join(p.RunCNI, "tuning", "*"), "", ".json", "_"},
	} {
		found, _ := filepath.Glob(at.pattern)
		for _, path := range found {
			name, ok := strings.CutPrefix(strings.TrimSuffix(filepath.Base(path), at.suffix), at.prefix)
			if ok && splits(name, at.sep, try) {
				return
			}
		}
	}
	found, _ := filepath.Glob(filepath.Join(p.CNI, "networks", network, "*"))
	for _, path := range found {
		text, err := durable.ReadConf(path)
		if a, b, ok := strings.Cut(strings.TrimSpace(string(text)), "\r\n"); err == nil && ok && try(a, b) {
			return
		}
	}
}

// splits tries every way to split name in two at sep. Both parts may contain sep too.
func splits(name, sep string, try func(a, b string) bool) bool {
	for i := range len(name) {
		if name[i:i+1] == sep && try(name[:i], name[i+1:]) {
			return true
		}
	}
	return false
}

// collect keeps `patchbay repair` out until the session ends, because repair would restore
// what is being removed. It also removes the claims that an earlier GC could not remove.
func (k *Kernel) collect(ctx context.Context, r *plugin.Request) {
	if k.collecting {
		return
	}
	k.collecting = true
	done, err := k.Records.Collecting(ctx)
	if err != nil {
		Warn(r, err)
		return
	}
	k.session.OnClose(done)
	if err := k.Records.SweepClaims(r.Network); err != nil {
		Warn(r, err)
	}
}
