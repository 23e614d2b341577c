// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"
	"golang.org/x/sys/unix"
)

// ServicesRevision is the element of the table of Services that each transaction of the agent replaces. It is a key, so
// the kernel refuses a transaction that expects another one.
type ServicesRevision struct {
	Layout, Number uint16
	Exists         bool
}

// Next returns the revision after this one.
func (r ServicesRevision) Next() ServicesRevision {
	return ServicesRevision{servicesLayout, r.Number + 1, true}
}

func (r ServicesRevision) element() []nftables.SetElement {
	padded := func(n uint16) []byte { return append(number(n), 0, 0) }
	return []nftables.SetElement{{Key: append(padded(r.Layout), padded(r.Number)...)}}
}

// ReadServicesRevision returns the revision that the kernel has.
func (c *Conn) ReadServicesRevision() (r ServicesRevision, err error) {
	err = c.EachElement(setRevision, func(key, _ []byte, _ bool) {
		if len(key) == 8 {
			r = ServicesRevision{binary.BigEndian.Uint16(key), binary.BigEndian.Uint16(key[4:]), true}
		}
	})
	return r, err
}

// ServicesState is what the kernel has of the table of Services, without its elements.
type ServicesState struct {
	Revision ServicesRevision
	Exists   bool // the table, whoever made it
	Ours     bool // it has our layout
	Sets     []string

	chains  []string
	dormant bool
}

// Fault says why this program does not understand the table, or "" if it does or there is none.
func (s ServicesState) Fault() string {
	switch {
	case !s.Exists || s.Ours:
		return ""
	case s.dormant:
		return "it is dormant, so the kernel runs none of its chains"
	case !s.Revision.Exists:
		return "it has no revision: another program made it, or emptied it"
	}
	return fmt.Sprintf("it has the layout %d, and this release of patchbay knows only %d", s.Revision.Layout, servicesLayout)
}

// ReadServices returns the state of the table of Services.
func (c *Conn) ReadServices() (s ServicesState, err error) {
	if s.Revision, err = c.ReadServicesRevision(); err != nil {
		return s, err
	}
	t := &Table{Family: nftables.TableFamilyINet, Name: ServicesTable}
	if s.Exists, err = c.readFlags(t); err != nil || !s.Exists {
		return s, err
	}
	s.dormant = t.Dormant
	s.Ours = s.Revision.Exists && s.Revision.Layout == servicesLayout && !t.Dormant
	if s.Sets, err = c.setNamesOf(nftables.TableFamilyINet, ServicesTable); err != nil {
		return s, err
	}
	err = c.readChains(t)
	for _, ch := range t.Chains {
		s.chains = append(s.chains, ch.Name)
	}
	return s, err
}

// ServicesWork is one transaction in the table of Services.
type ServicesWork struct {
	Was, Next ServicesRevision // the kernel must have the first, and then has the second

	Anew bool          // delete the table first, if there is one
	Grow ServiceLayout // if it has more sets than Have, those are made
	Have ServiceLayout
	Mend *ServicesMend // nil: nothing

	Elements *Bulk
}

// ServicesMend is what differs between the kernel's table and a layout.
type ServicesMend struct {
	noSets   []setSpec
	wrong    []wrongChain
	oldSets  []string
	oldChain []string
}

// String says what differs.
func (m *ServicesMend) String() string {
	var list []string
	add := func(what string, names ...string) {
		if len(names) > 0 {
			list = append(list, what+" "+strings.Join(names, ", "))
		}
	}
	var sets, chains []string
	for _, s := range m.noSets {
		sets = append(sets, s.name)
	}
	for _, w := range m.wrong {
		chains = append(chains, w.name)
	}
	add("it lacks the sets", sets...)
	add("it has other rules in the chains", chains...)
	add("it has sets that are not ours,", m.oldSets...)
	add("it has chains that are not ours,", m.oldChain...)
	return strings.Join(list, "; ")
}

// MendServices compares the table with a layout. It returns nil if nothing differs.
func (c *Conn) MendServices(have ServicesState, want ServiceLayout) (*ServicesMend, error) {
	m := new(ServicesMend)
	var names []string
	for _, s := range want.sets() {
		if names = append(names, s.name); !slices.Contains(have.Sets, s.name) {
			m.noSets = append(m.noSets, s)
		}
	}
	for _, name := range have.Sets {
		if !slices.Contains(names, name) {
			m.oldSets = append(m.oldSets, name)
		}
	}
	var err error
	chains := want.chains()
	m.wrong, err = c.wrongChainsOf(nftables.TableFamilyINet, ServicesTable, chains)
	for _, name := range have.chains {
		if !slices.ContainsFunc(chains, func(s chainSpec) bool { return s.name == name }) {
			m.oldChain = append(m.oldChain, name)
		}
	}
	if len(m.noSets)+len(m.oldSets)+len(m.wrong)+len(m.oldChain) == 0 {
		return nil, err
	}
	return m, err
}

func servicesTable() *nftables.Table {
	return &nftables.Table{Name: ServicesTable, Family: nftables.TableFamilyINet}
}

// write queues what makes the table the layout.
func (m *ServicesMend) write(enc *nftables.Conn) error {
	t := servicesTable()
	for _, s := range m.noSets {
		if err := enc.AddSet(s.set(), nil); err != nil {
			return fmt.Errorf("add set %s: %w", s.name, err)
		}
	}
	for _, w := range m.wrong {
		w.replace(enc, t)
	}
	for _, name := range m.oldChain {
		enc.FlushChain(&nftables.Chain{Name: name, Table: t})
	}
	for _, name := range m.oldChain {
		enc.DelChain(&nftables.Chain{Name: name, Table: t})
	}
	for _, name := range m.oldSets {
		enc.DelSet(&nftables.Set{Name: name, Table: t})
	}
	return nil
}

// String describes the work in errors.
func (w *ServicesWork) String() string { return "change Services" }

// Light reports that only one process changes this table.
func (w *ServicesWork) Light() bool { return true }

// Bulk returns the elements.
func (w *ServicesWork) Bulk() *Bulk { return w.Elements }

// ServicesChangedError means that the kernel has another revision: another program changed or deleted the table of Services. It is a type
// without a value, so that no package which names it works before main.
type ServicesChangedError struct{}

// Error returns the text.
func (ServicesChangedError) Error() string {
	return "the Services in the kernel were changed by another program"
}

// Plan returns the work, unless the kernel has done it already: an answer can get lost (ENOBUFS).
func (w *ServicesWork) Plan(c *Conn) (func(*nftables.Conn) error, error) {
	switch r, err := c.ReadServicesRevision(); {
	case err != nil:
		return nil, err
	case r == w.Next:
		return nil, nil
	case r != w.Was:
		return nil, ServicesChangedError{}
	}
	return w.encode, nil
}

func (w *ServicesWork) encode(enc *nftables.Conn) error {
	set, _ := serviceSet(setRevision)
	if w.Anew {
		enc.AddTable(servicesTable()) // so that the deletion does not fail
		enc.DelTable(servicesTable())
	}
	if w.Anew || !w.Was.Exists {
		enc.CreateTable(servicesTable())
	} else if err := enc.SetDeleteElements(set.set(), w.Was.element()); err != nil {
		return err
	}
	if w.Mend != nil {
		if err := w.Mend.write(enc); err != nil {
			return err
		}
	} else if err := w.grow(enc, w.Anew || !w.Was.Exists); err != nil {
		return err
	}
	return enc.SetAddElements(set.set(), w.Next.element())
}

// grow queues what the larger layout has more, or all.
func (w *ServicesWork) grow(enc *nftables.Conn, all bool) error {
	if !all && len(w.Grow.sized) == len(w.Have.sized) {
		return nil
	}
	chains, sets := w.Grow.chains(), w.Grow.sets()
	if !all {
		sets = slices.DeleteFunc(sets, func(s setSpec) bool { return w.Have.Has(s.name) })
		chains = differentChains(w.Have.chains(), chains)
	}
	for _, s := range sets {
		if err := enc.AddSet(s.set(), nil); err != nil {
			return fmt.Errorf("add set %s: %w", s.name, err)
		}
	}
	for _, ch := range chains {
		ch.add(enc, servicesTable(), !all)
	}
	return nil
}

// differentChains returns the chains that are new or have more rules.
func differentChains(have, want []chainSpec) []chainSpec {
	return slices.DeleteFunc(want, func(w chainSpec) bool {
		return slices.ContainsFunc(have, func(h chainSpec) bool { return h.name == w.name && len(h.rules) == len(w.rules) })
	})
}

// Table returns the layout as a table without sets, so that its rules can be evaluated. It reads nothing of the kernel.
func (l ServiceLayout) Table() (*Table, error) {
	t := &Table{Family: nftables.TableFamilyINet, Name: ServicesTable, Rules: make(map[string][]Rule)}
	msgs, err := encode(func(enc *nftables.Conn) error {
		for _, ch := range l.chains() {
			ch.add(enc, servicesTable(), false)
			t.Chains = append(t.Chains, ch.chain())
		}
		return nil
	})
	for _, m := range msgs {
		if m.Header.Type != msgNewRule {
			continue
		}
		r, err := decodeRule(m, (*Rule).decodeExprs)
		if err != nil {
			return nil, err
		}
		t.Rules[r.Chain] = append(t.Rules[r.Chain], r)
	}
	return t, err
}

// chain returns the chain as the kernel has it.
func (s chainSpec) chain() Chain {
	ch := Chain{Name: s.name, Base: s.hook != nil, Type: string(s.typ), Prio: int32(s.prio)}
	if ch.Base {
		ch.Hook = *s.hook
	}
	return ch
}

// RemoveServices returns the work that deletes the table of Services. Connections go on, as they are in connection tracking.
func RemoveServices() Extra { return servicesRemoval{} }

type servicesRemoval struct{}

// String describes the work in errors.
func (servicesRemoval) String() string { return "remove Services" }

// Light reports that two processes may do it at once.
func (servicesRemoval) Light() bool { return true }

// Plan deletes the table if there is one.
func (servicesRemoval) Plan(c *Conn) (func(*nftables.Conn) error, error) {
	got, err := c.ReadPresence(Ref{Family: nftables.TableFamilyINet, Table: ServicesTable})
	if err != nil || !got[0].Found {
		return nil, err
	}
	return func(enc *nftables.Conn) error { enc.DelTable(servicesTable()); return nil }, nil
}

// AffinityMap returns the name of the map in which packets write where a client was sent.
func AffinityMap(v6 bool) string { return setAffinity + familyDigit(v6) }

// DropMemories deletes elements of the map of affinity of a family. Any of them may have expired meanwhile: then the kernel refuses
// the whole transaction, and each is deleted alone.
func (c *Conn) DropMemories(v6 bool, keys [][]byte) error {
	const together = 500
	for part := range slices.Chunk(keys, together) {
		err := c.dropMemories(v6, part)
		for _, key := range part {
			if !errors.Is(err, unix.ENOENT) {
				break
			}
			if err := c.dropMemories(v6, [][]byte{key}); err != nil && !errors.Is(err, unix.ENOENT) {
				return err
			}
		}
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return err
		}
	}
	return nil
}

func (c *Conn) dropMemories(v6 bool, keys [][]byte) error {
	if err := c.dial(); err != nil {
		return err
	}
	b := NewServicesBulk()
	for _, key := range keys {
		b.Remove(AffinityMap(v6)).Element(key, nil, false)
	}
	if err := c.send(b.messages()); err != nil {
		return fmt.Errorf("forget clients of Services: %w", err)
	}
	return nil
}
