// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"cmp"
	"encoding/binary"
	"net/netip"
	"slices"
	"strings"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// Package internal/policy/enforce makes the objects of network policies in the table `inet patchbay`: sets,
// maps, chains and counters whose names begin with "policy_", and the map of the revision. They exist only on a node that has
// policies, so they are not in the layout. Verify and Rebuild leave them alone.

// OfPolicies reports whether an object of our table belongs to the network policies.
func OfPolicies(name string) bool { return name == SetPolicy || strings.HasPrefix(name, "policy_") }

// decodeOurs works like decodeExprs, but leaves out the rules that package internal/policy/enforce compares.
func (r *Rule) decodeOurs(b []byte) error {
	if OfPolicies(r.Chain) && !OfSources(r.Chain) {
		return nil
	}
	return r.decodeExprs(b)
}

// Policies returns the names of the sets and counters of network policies, but not the map of the
// revision, and not the sets that check sources.
func (c *Conn) Policies() (sets, counters []string, err error) {
	if sets, err = c.setNames(nftables.TableFamilyINet); err != nil {
		return nil, nil, err
	}
	sets = slices.DeleteFunc(sets, func(name string) bool { return name == SetPolicy || !OfPolicies(name) || OfSources(name) })
	all, err := c.PolicyCounters()
	for _, counter := range all {
		if !OfSources(counter.Name) {
			counters = append(counters, counter.Name)
		}
	}
	return sets, counters, err
}

// Counter is a counter of a table of ours.
type Counter struct {
	Name           string
	Packets, Bytes uint64
}

// PolicyCounters returns the counters of network policies.
func (c *Conn) PolicyCounters() ([]Counter, error) {
	return c.counters(TableName, OfPolicies)
}

// counters returns the counters of an inet table whose names are wanted.
func (c *Conn) counters(table string, wanted func(name string) bool) (counters []Counter, err error) {
	msgs, err := c.list(query{get: unix.NFT_MSG_GETOBJ, family: nftables.TableFamilyINet, table: table})
	for _, m := range msgs {
		a, err := message(m)
		if err != nil {
			return nil, err
		}
		if name := a.Text(unix.NFTA_OBJ_NAME); a.Number(unix.NFTA_OBJ_TYPE) == unix.NFT_OBJECT_COUNTER && wanted(name) {
			data := a.nested(unix.NFTA_OBJ_DATA)
			counters = append(counters, Counter{name, data.long(unix.NFTA_COUNTER_PACKETS), data.long(unix.NFTA_COUNTER_BYTES)})
		}
	}
	return counters, err
}

// long returns an attribute that holds a number of 64 bits, or 0 if there is none.
func (a Attrs) long(typ uint16) uint64 {
	b := a.Attr(typ)
	if len(b) != 8 {
		return 0
	}
	return binary.BigEndian.Uint64(b)
}

// ClosedSets returns the names of the sets in which an ADD closes addresses, those of connections to
// them first.
func ClosedSets() [2][2]string {
	return [2][2]string{{SetClosedIn4, SetClosedIn6}, {SetClosedOut4, SetClosedOut6}}
}

// Closed returns the element that denies new connections to an address (side 0) or from it (1).
func Closed(side int, a netip.Addr, comment string) Element {
	sets := ClosedSets()[side]
	return Element{Set: of(a, sets[0], sets[1]), Key: Addr(a), Comment: comment}
}

// PolicyBase returns the element of the map SetPolicy that says which version the base chains of
// network policies have.
func PolicyBase(version uint16) nftables.SetElement {
	return nftables.SetElement{Key: number(1), Val: number(version)}
}

// ReadPolicyBase returns the version of the base chains, or 0 if there are none.
func (c *Conn) ReadPolicyBase() (version uint16, err error) {
	e, ok, err := c.Get(SetPolicy, number(1))
	if err != nil || !ok {
		return 0, err
	}
	return PolicyNumber(e), nil
}

// PolicyNumber returns the number of an element of the map SetPolicy.
func PolicyNumber(e Element) uint16 {
	if len(e.Data) != 2 {
		return 0
	}
	return binary.BigEndian.Uint16(e.Data)
}

// PolicyElement names one address in a set or map of network policies, for Find.
func PolicyElement(set string, a netip.Addr) Element { return Element{Set: set, Key: Addr(a)} }

// Find returns the given elements that exist in our tables, as the kernel has them, with one system call for
// each 64. It compares sets and keys. It accepts any set of `inet patchbay`, even a missing one, and leaves
// out elements that are being removed.
func (c *Conn) Find(elems ...Element) (have []Element, err error) {
	what := make([]query, len(elems))
	for i, e := range elems {
		what[i] = setSpec{name: e.Set, family: cmp.Or(e.Family(), nftables.TableFamilyINet)}.element(e.Key)
	}
	got, err := c.get(what)
	for i := range got {
		if got[i].found && !got[i].leaving {
			have = append(have, got[i].Element)
		}
	}
	return have, err
}

// PolicyRevision returns the map with the revision of the network policies, and its element. Each
// transaction that changes the policies changes the revision.
func PolicyRevision(n uint16) (*nftables.Set, nftables.SetElement) {
	spec, _ := specOf(SetPolicy)
	return spec.set(), nftables.SetElement{Key: number(0), Val: number(n)}
}

// ReadPolicyRevision returns the revision that the kernel has. ok is false if it has none: then no
// policy is loaded, or another program deleted the table.
func (c *Conn) ReadPolicyRevision() (n uint16, ok bool, err error) {
	e, ok, err := c.Get(SetPolicy, number(0))
	if err != nil || !ok || len(e.Data) != 2 {
		return 0, false, err
	}
	return binary.BigEndian.Uint16(e.Data), true, nil
}
