// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables"
)

// GuardTunnel returns the work that makes the kernel's objects of a tunnel what t wants.
func GuardTunnel(t Tunnel) Extra { return tunnelGuard{t} }

// UnguardTunnel returns the work that removes the objects of the tunnel of a mesh. keepOut leaves those that
// guard the ends of others.
func UnguardTunnel(mesh string, keepOut bool) Extra { return tunnelRemoval{mesh, keepOut} }

type tunnelGuard struct{ Tunnel }

// String names the mesh.
func (g tunnelGuard) String() string { return "guard the tunnel of mesh " + g.Name }

// Needs reports that the table must exist.
func (tunnelGuard) Needs() bool { return true }

// Plan compares chains, rules, sets and elements.
func (g tunnelGuard) Plan(c *Conn) (func(*nftables.Conn) error, error) {
	have, err := c.readTunnel(g.Tunnel)
	if err != nil {
		return nil, err
	}
	var want []Element
	for _, x := range g.From {
		want = append(want, x.element(g.Name))
	}
	gone, added := lacking(have.elements, want), lacking(want, have.elements)
	if len(have.noSets)+len(have.wrong)+len(gone)+len(added) == 0 {
		return nil, nil
	}
	return func(enc *nftables.Conn) error { return have.write(enc, gone, added) }, nil
}

// tunnelState is what the kernel has of a tunnel.
type tunnelState struct {
	noSets   []setSpec // missing
	wrong    []wrongChain
	elements []Element
}

// readTunnel compares the kernel with a tunnel.
func (c *Conn) readTunnel(t Tunnel) (s tunnelState, err error) {
	names, err := c.setNames(nftables.TableFamilyINet)
	if err != nil {
		return s, err
	}
	for _, set := range t.sets() {
		if !slices.Contains(names, set.name) {
			s.noSets = append(s.noSets, set)
			continue
		}
		list, err := c.List(set.name)
		if err != nil {
			return s, err
		}
		s.elements = append(s.elements, list...)
	}
	s.wrong, err = c.wrongChains(nftables.TableFamilyINet, t.chains())
	return s, err
}

// write queues what differs.
func (s tunnelState) write(enc *nftables.Conn, gone, added []Element) error {
	t := layoutOf(nftables.TableFamilyINet).table()
	for _, set := range s.noSets {
		if err := enc.AddSet(set.set(), nil); err != nil {
			return fmt.Errorf("add set %s: %w", set.name, err)
		}
	}
	for _, ch := range s.wrong {
		ch.replace(enc, t)
	}
	return errors.Join(bySet(gone, 0, enc.SetDeleteElements), bySet(added, 0, enc.SetAddElements))
}

// lacking returns the elements of list whose key is not in others, each key once. A tunnel may have many
// thousands.
func lacking(list, others []Element) (out []Element) {
	type at struct{ set, key, end string }
	seen := make(map[at]bool, len(others))
	for _, e := range others {
		seen[at{e.Set, string(e.Key), string(e.KeyEnd)}] = true
	}
	for _, e := range list {
		k := at{e.Set, string(e.Key), string(e.KeyEnd)}
		if !seen[k] {
			seen[k] = true
			out = append(out, e)
		}
	}
	return out
}

type tunnelRemoval struct {
	mesh    string
	keepOut bool
}

// chains returns the names of the chains to remove, in the order in which they can be made.
func (r tunnelRemoval) chains() []string {
	if r.keepOut {
		return chainsOfEnd(r.mesh)
	}
	return append(chainsOfEnd(r.mesh), chainsOut(r.mesh)...)
}

// String names the mesh.
func (r tunnelRemoval) String() string { return "remove the guard of the tunnel of mesh " + r.mesh }

// Needs reports that a missing table stays missing.
func (tunnelRemoval) Needs() bool { return false }

// Plan looks which objects exist.
func (r tunnelRemoval) Plan(c *Conn) (func(*nftables.Conn) error, error) {
	chains, sets := r.chains(), tunnelSets(r.mesh)
	refs := make([]Ref, len(chains))
	for i, name := range chains {
		refs[i] = Ref{nftables.TableFamilyINet, TableName, name}
	}
	there, err := c.Look(refs...)
	if err != nil {
		return nil, err
	}
	names, err := c.setNames(nftables.TableFamilyINet)
	if err != nil {
		return nil, err
	}
	chains = kept(chains, func(i int) bool { return there[i].Found })
	sets = slices.DeleteFunc(sets, func(s setSpec) bool { return !slices.Contains(names, s.name) })
	if len(chains)+len(sets) == 0 {
		return nil, nil
	}
	return func(enc *nftables.Conn) error {
		dropObjects(enc, layoutOf(nftables.TableFamilyINet).table(), chains, sets)
		return nil
	}, nil
}
