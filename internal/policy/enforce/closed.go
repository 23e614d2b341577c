// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"github.com/google/nftables"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/policy"
)

// cover is what the kernel has for one address in one direction.
type cover struct {
	closing nft.Element // closes the address
	addr    netip.Addr
	side    policy.Direction
	closed  bool // by an ADD
	judged  bool // by the chain of a pod
}

// coveredIn returns what the kernel has for an attachment's addresses in the directions that it closes.
func coveredIn(fw *nft.Conn, a Closure) (list []cover, err error) {
	var asked []nft.Element
	for _, side := range []policy.Direction{policy.Ingress, policy.Egress} {
		for _, addr := range a.Addrs {
			if a.Close[side] {
				h := cover{closing: nft.Closed(int(side), addr, a.Comment), addr: addr, side: side}
				list = append(list, h)
				asked = append(asked, h.closing, nft.PolicyElement(dispatchOf(side, familyOf(addr)), addr))
			}
		}
	}
	found, err := fw.Find(asked...)
	has := func(e nft.Element) bool { return slices.ContainsFunc(found, e.SameKey) }
	for i := range list {
		list[i].closed, list[i].judged = has(asked[2*i]), has(asked[2*i+1])
	}
	return list, err
}

// Open says what is open although the attachment should be closed: no ADD closed it and no chain of a
// pod judges it, or the base chains do not work. It changes nothing.
func Open(fw *nft.Conn, a Closure) (open []string, err error) {
	list, err := coveredIn(fw, a)
	if err != nil || len(list) == 0 {
		return nil, err
	}
	wrong, err := wrongBase(fw)
	for _, name := range wrong {
		open = append(open, fmt.Sprintf("chain %s of table inet %s is missing or was changed", name, nft.TableName))
	}
	for _, h := range list {
		if !h.closed && !h.judged {
			open = append(open, fmt.Sprintf("%s of %s is neither closed nor enforced", h.side, h.addr))
		}
	}
	return open, err
}

// Reused reports whether a program may have a former pod with one of these addresses: the program in
// force or, if a pod had the address lately, the program that the agent is making. Without base chains
// there are no such policies.
func Reused(fw *nft.Conn, addrs []netip.Addr, lately bool) (bool, error) {
	set, _ := nft.PolicyRevision(0)
	asked := []nft.Element{{Set: set.Name, Key: nft.PolicyBase(0).Key}}
	for _, a := range addrs {
		asked = append(asked, nft.PolicyElement(kindLocal+families[familyOf(a)], a))
	}
	found, err := fw.Find(asked...)
	if err != nil {
		return false, fmt.Errorf("look for a former pod: %w", err)
	}
	based := slices.ContainsFunc(found, asked[0].SameKey)
	return based && (lately || len(found) > 1), nil
}

// Reclose closes again what Open finds, and has the sources of the attachment checked again. It returns
// what was missing.
func Reclose(ctx context.Context, fw *nft.Conn, a Closure) (open []string, err error) {
	unchecked, err := Attended(ctx, fw, a)
	if err != nil {
		return nil, err
	}
	if open, err = reclose(ctx, fw, a); unchecked != "" {
		open = append(open, unchecked)
	}
	return open, err
}

func reclose(ctx context.Context, fw *nft.Conn, a Closure) (open []string, err error) {
	if open, err = Open(fw, a); err != nil || len(open) == 0 {
		return nil, err
	}
	list, err := coveredIn(fw, a)
	if err != nil {
		return nil, err
	}
	for _, h := range list {
		if !h.closed && !h.judged {
			fw.Add(h.closing)
		}
	}
	checkSources(fw, true, false)
	fw.Queue(&rebasing{})
	return open, fw.Commit(ctx)
}

// ClosedBy returns the elements by which an owner closed addresses, and has the sources of its packets
// checked. It reads all sets of ADDs.
func ClosedBy(fw *nft.Conn, owner string) (list []nft.Element, err error) {
	for _, set := range append(slices.Concat(closedSets()...), nft.SourceSets()...) {
		all, err := fw.List(set)
		if err != nil {
			return nil, err
		}
		for _, e := range all {
			if key, ok := nft.OwnerOf(e.Comment); ok && key == owner {
				list = append(list, e)
			}
		}
	}
	return list, nil
}

// wrongBase returns the base chains that are missing or wrong: with them, closed addresses would be
// open. It does not judge chains of a newer version.
func wrongBase(fw *nft.Conn) (names []string, err error) {
	version, err := fw.ReadPolicyBase()
	if err != nil || version > baseVersion {
		return nil, err
	}
	lines := stateOf(&policy.Program{}, true).lines
	for _, name := range []string{chainEgress, chainIngress, chainInput} {
		rules, err := fw.ListRules(nftables.TableFamilyINet, nft.TableName, name)
		if err != nil {
			return nil, err
		}
		if !slices.EqualFunc(rules, lines[name], func(r nft.Rule, l line) bool { return r.Is(l.exprs()) }) {
			names = append(names, name)
		}
	}
	return names, nil
}

// rebasing makes the base chains again if one is missing, was changed, or is of an earlier version.
type rebasing struct{}

// String describes the work in errors.
func (*rebasing) String() string { return "make the base chains of network policies again" }

// Needs reports that the table must exist.
func (*rebasing) Needs() bool { return true }

// Plan returns nil if the base chains are right.
func (*rebasing) Plan(fw *nft.Conn) (func(*nftables.Conn) error, error) {
	version, err := fw.ReadPolicyBase()
	if err != nil || version > baseVersion {
		return nil, err
	}
	wrong, err := wrongBase(fw)
	if err != nil || len(wrong) == 0 && version == baseVersion {
		return nil, err
	}
	steps := makeBase(version)
	for _, name := range wrong { // a chain at another hook can only be replaced
		exists, err := fw.HasChain(nftables.TableFamilyINet, nft.TableName, name)
		if err != nil {
			return nil, err
		}
		if exists {
			steps = slices.Insert(steps, 0, deleteChain(name))
		}
	}
	return anew(fw, steps)
}
