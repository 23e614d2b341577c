// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/order"
)

// Table is a complete table of any program as the kernel has it, without its elements.
type Table struct {
	Family  nftables.TableFamily
	Name    string
	Dormant bool // the kernel runs none of its chains

	Chains []Chain
	Rules  map[string][]Rule // rules by chain

	sets map[string][]Member // read by Members
}

// Chain is a chain of a table. If Base is false, the chain is only the target of jumps.
type Chain struct {
	Name  string
	Base  bool
	Type  string // "filter", "nat" or "route"
	Hook  nftables.ChainHook
	Prio  int32
	Drops bool // the policy is drop

	Devices []string // devices of the hook, if it is a hook for devices
}

// chain returns the chain with this name.
func (t *Table) chain(name string) *Chain {
	for i := range t.Chains {
		if t.Chains[i].Name == name {
			return &t.Chains[i]
		}
	}
	return nil
}

// String returns the name of the table as users know it.
func (t *Table) String() string { return fmt.Sprintf("table %s %s", FamilyName(t.Family), t.Name) }

// ReadTable reads a table in three requests. ReadTable returns nil if the table does not
// exist. While other processes write, the three answers may not fit together.
func (c *Conn) ReadTable(f nftables.TableFamily, name string) (*Table, error) {
	return c.readTable(f, name, (*Rule).decodeExprs)
}

func (c *Conn) readTable(f nftables.TableFamily, name string, exprs func(*Rule, []byte) error) (*Table, error) {
	t := &Table{Family: f, Name: name, Rules: make(map[string][]Rule)}
	found, err := c.readFlags(t)
	if err != nil || !found {
		return nil, err
	}
	if err := c.readChains(t); err != nil {
		return nil, err
	}
	return t, c.readRules(t, exprs)
}

// readChains reads the chains of a table. The kernel sends those of the whole family.
func (c *Conn) readChains(t *Table) error {
	dump, err := c.list(query{get: unix.NFT_MSG_GETCHAIN, family: t.Family})
	if err != nil {
		return err
	}
	t.Chains, err = chainsIn(t, dump)
	return err
}

func (c *Conn) readRules(t *Table, exprs func(*Rule, []byte) error) error {
	rules, err := c.listRules(t.Family, t.Name, "", exprs)
	for _, r := range rules {
		t.Rules[r.Chain] = append(t.Rules[r.Chain], r)
	}
	return err
}

// ReadRunning reads the tables of this namespace whose chains the kernel runs, in the kernel's order, and of these the ones that wanted
// names. A dormant table has no running chain, and a table of family arp sees no packet of IP. wanted gets a table with its chains and
// without its rules, which may be many. If the rules of a table cannot be read, ReadRunning returns the other tables and an error.
func (c *Conn) ReadRunning(wanted func(*Table) bool) (tables []*Table, err error) {
	all, err := c.listRunning()
	for _, t := range all {
		if !wanted(t) {
			continue
		}
		if rerr := c.readRules(t, (*Rule).decodeExprs); rerr != nil {
			err = errors.Join(err, rerr)
			continue
		}
		tables = append(tables, t)
	}
	return tables, err
}

// listRunning returns the tables of ReadRunning, with chains and without rules.
func (c *Conn) listRunning() (tables []*Table, err error) {
	all, err := c.listTables()
	if err != nil {
		return nil, err
	}
	chains, err := c.list(query{get: unix.NFT_MSG_GETCHAIN})
	if err != nil {
		return nil, err
	}
	for _, t := range all {
		if t.Dormant || t.Family == nftables.TableFamilyARP {
			continue
		}
		if t.Chains, err = chainsIn(t, chains); err != nil {
			return nil, err
		}
		tables = append(tables, t)
	}
	return tables, nil
}

// listTables returns all tables, without chains and rules.
func (c *Conn) listTables() (tables []*Table, err error) {
	msgs, err := c.list(query{get: unix.NFT_MSG_GETTABLE})
	for _, m := range msgs {
		a, err := message(m)
		if err != nil {
			return nil, err
		}
		t := &Table{Family: familyOf(m), Name: a.Text(unix.NFTA_TABLE_NAME), Rules: make(map[string][]Rule)}
		t.setFlags(a)
		tables = append(tables, t)
	}
	return tables, err
}

// familyOf returns the family of an object that the kernel sent: the first byte of struct nfgenmsg.
func familyOf(m netlink.Message) nftables.TableFamily { return nftables.TableFamily(m.Data[0]) }

func (t *Table) setFlags(a Attrs) {
	t.Dormant = t.Dormant || a.Number(unix.NFTA_TABLE_FLAGS)&unix.NFT_TABLE_F_DORMANT != 0
}

// readFlags reads the table's own attributes.
func (c *Conn) readFlags(t *Table) (found bool, err error) {
	what := []query{Ref{Family: t.Family, Table: t.Name}.query()}
	err = c.ask(what, func(_ int, answer []netlink.Message) error {
		found = true
		for _, m := range answer {
			a, err := message(m)
			if err != nil {
				return err
			}
			t.setFlags(a)
		}
		return nil
	})
	return found, err
}

// chainsIn returns those chains of a dump that are a table's.
func chainsIn(t *Table, dump []netlink.Message) (chains []Chain, err error) {
	for _, m := range dump {
		a, err := message(m)
		if err != nil {
			return nil, err
		}
		if familyOf(m) == t.Family && a.Text(unix.NFTA_CHAIN_TABLE) == t.Name {
			chains = append(chains, decodeChain(a))
		}
	}
	return chains, nil
}

func decodeChain(a Attrs) Chain {
	ch := Chain{Name: a.Text(unix.NFTA_CHAIN_NAME), Type: a.Text(unix.NFTA_CHAIN_TYPE)}
	hook := a.nested(unix.NFTA_CHAIN_HOOK)
	if hook == nil {
		return ch
	}
	ch.Base = true
	ch.Hook = nftables.ChainHook(hook.Number(unix.NFTA_HOOK_HOOKNUM))
	ch.Prio = int32(hook.Number(unix.NFTA_HOOK_PRIORITY))
	ch.Devices = devicesOf(hook)
	policy := a.Attr(unix.NFTA_CHAIN_POLICY)
	ch.Drops = len(policy) == 4 && policy[3] == byte(nftables.ChainPolicyDrop)
	return ch
}

// devicesOf returns the devices of a hook.
func devicesOf(hook Attrs) (names []string) {
	if hook.Attr(unix.NFTA_HOOK_DEV) != nil {
		return []string{hook.Text(unix.NFTA_HOOK_DEV)}
	}
	const devs = 4 // NFTA_HOOK_DEVS
	for _, a := range hook.nested(devs) {
		names = append(names, unix.ByteSliceToString(a.Data))
	}
	return names
}

// Member is an element of any program's set or map. Member covers the keys from Low to High,
// both included, in the kernel's bytes. Verdict is nil if the set is not a verdict map.
type Member struct {
	Low, High []byte
	Verdict   *expr.Verdict
	Fields    bool // the kernel compares field by field; otherwise it compares the whole key
}

// Members returns the elements of a set of any program's table, in order. Members reads the
// set at the first call. A key with several fields has them one after the other, each padded
// to a multiple of four bytes. For a set with a catch-all element, Members returns nil.
func (t *Table) Members(set string) ([]Member, error) {
	if members, ok := t.sets[set]; ok {
		return members, nil
	}
	members, err := t.readSet(set)
	if err != nil {
		return nil, fmt.Errorf("read set %s of %s: %w", set, t, err)
	}
	if t.sets == nil {
		t.sets = make(map[string][]Member)
	}
	t.sets[set] = members
	return members, nil
}

// readSet returns nil for a set with a catch-all element.
func (t *Table) readSet(set string) ([]Member, error) {
	c, err := nftables.New()
	if err != nil {
		return nil, err
	}
	s, err := c.GetSetByName(&nftables.Table{Family: t.Family, Name: t.Name}, set)
	if err != nil {
		return nil, err
	}
	list, err := settled(func() ([]nftables.SetElement, bool, error) {
		list, err := c.GetSetElements(s)
		return list, len(list) == 0, err
	}, sameMember)
	forOthers := func(e nftables.SetElement) bool { return len(e.Key) == 0 }
	if err != nil || slices.ContainsFunc(list, forOthers) {
		return nil, err
	}
	several := func(e nftables.SetElement) bool { return e.KeyEnd != nil }
	if s.Interval && !s.Concatenation && !slices.ContainsFunc(list, several) {
		return ranges(list), nil
	}
	members := []Member{}
	for _, e := range list {
		high := e.KeyEnd
		if high == nil {
			high = e.Key
		}
		m := member(e, high)
		m.Fields = several(e)
		members = append(members, m)
	}
	return members, nil
}

func sameMember(a, b nftables.SetElement) bool {
	return bytes.Equal(a.Key, b.Key) && bytes.Equal(a.KeyEnd, b.KeyEnd) && a.IntervalEnd == b.IntervalEnd
}

func member(e nftables.SetElement, high []byte) Member {
	m := Member{Low: e.Key, High: high}
	if code, chain, ok := verdictIn(e.Val); ok {
		m.Verdict = &expr.Verdict{Kind: expr.VerdictKind(code), Chain: chain}
	}
	return m
}

// ranges turns the elements of an interval set into ranges. The kernel sends a start, then an
// element with the end flag one past the last key. An interval without an end has no second
// element.
func ranges(list []nftables.SetElement) []Member {
	order.By(list, func(a, b nftables.SetElement) int {
		return cmp.Or(bytes.Compare(a.Key, b.Key), ended(a)-ended(b))
	})
	members := []Member{}
	for i, e := range list {
		switch {
		case e.IntervalEnd:
		case i+1 < len(list):
			members = append(members, member(e, before(list[i+1].Key)))
		default:
			members = append(members, member(e, bytes.Repeat([]byte{0xff}, len(e.Key))))
		}
	}
	return members
}

// ended sorts the end of an interval before the start of the next one.
func ended(e nftables.SetElement) int {
	if e.IntervalEnd {
		return 0
	}
	return 1
}

// before returns the key before another key.
func before(key []byte) []byte {
	out := bytes.Clone(key)
	for i := len(out) - 1; i >= 0; i-- {
		out[i]--
		if out[i] != 0xff {
			break
		}
	}
	return out
}
