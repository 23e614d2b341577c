// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/google/nftables"
	"github.com/google/nftables/userdata"
)

// Conditions limit the clients of a network's published ports (conditionsV4 and conditionsV6
// of portmap). A network with conditions has its own maps and its own chain:
//
//	map ports4_<id> { … }
//	chain cond_<id> { ip saddr 10.0.0.0/8 dnat ip to … map @ports4_<id> }
//	chain conditional { jump cond_<id> }
//
// A record can store Conditions. Ensure refuses tokens that are not valid, because a person
// may have written the record.
type Conditions struct {
	Network string   `json:"network"`
	V4      []string `json:"v4,omitempty"` // tokens, as in the configuration
	V6      []string `json:"v6,omitempty"`
}

// NewConditions checks the tokens. If there are no tokens, it returns nil.
func NewConditions(network string, v4, v6 []string) (*Conditions, error) {
	if len(v4) == 0 && len(v6) == 0 {
		return nil, nil
	}
	c := &Conditions{Network: network, V4: v4, V6: v6}
	_, _, err := c.parse()
	return c, err
}

func (c *Conditions) parse() (v4, v6 []match, err error) {
	v4, err4 := parseConditions(c.V4, false)
	if err4 != nil {
		err4 = fmt.Errorf("conditionsV4: %w", err4)
	}
	v6, err6 := parseConditions(c.V6, true)
	if err6 != nil {
		err6 = fmt.Errorf("conditionsV6: %w", err6)
	}
	return v4, v6, errors.Join(err4, err6)
}

// ID is part of the names of the chain and the maps. ID is a hash of the network and its
// conditions. So after a change of the conditions, the old and the new chain exist next to
// each other for a while.
func (c *Conditions) ID() string {
	parts := append([]string{c.Network, "", "v4"}, c.V4...)
	parts = append(append(parts, "", "v6"), c.V6...)
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return hex.EncodeToString(sum[:6])
}

// setName returns the name of the network's own map that replaces the common map base. For nil
// conditions it returns base.
func (c *Conditions) setName(base string) string {
	if c == nil {
		return base
	}
	return base + "_" + c.ID()
}

func (c *Conditions) chainName() string { return chainOfConditions + c.ID() }

// chainOfConditions is the prefix of the names of these chains.
const chainOfConditions = "cond_"

// Maps lists the names of the network's own maps.
func (c *Conditions) Maps() []string {
	return []string{c.setName(SetHostPorts4), c.setName(SetHostPorts6), c.setName(SetPorts4), c.setName(SetPorts6)}
}

// Ensure returns the work that creates the chain and the maps if they are missing. Queue it
// before you add elements with Port.
func (c *Conditions) Ensure() Extra { return conditionsExtra{Conditions: c} }

// Drop returns the work that removes the chain and the maps with all elements. The DEL of the
// network's last attachment queues it.
func (c *Conditions) Drop() Extra { return conditionsExtra{Conditions: c, drop: true} }

// Restore works like Ensure and also repairs a chain, map or jump that was changed. The repair
// command queues it instead of Ensure.
func (c *Conditions) Restore() Extra { return conditionsExtra{Conditions: c, mends: true} }

type conditionsExtra struct {
	*Conditions
	drop  bool
	mends bool // also repair what exists but was changed
}

// String names the chain.
func (x conditionsExtra) String() string {
	if x.drop {
		return "delete chain " + x.chainName()
	}
	return fmt.Sprintf("add chain %s (%s; %s)", x.chainName(), strings.Join(x.V4, " "), strings.Join(x.V6, " "))
}

// Needs reports whether the change creates something.
func (x conditionsExtra) Needs() bool { return !x.drop }

// Merge drops the second of two equal extras.
func (x conditionsExtra) Merge(next Extra) (Extra, bool) {
	y, ok := next.(conditionsExtra)
	return x, ok && x.drop == y.drop && x.mends == y.mends && x.ID() == y.ID()
}

// Plan compiles the conditions and plans the changes of the chain.
func (x conditionsExtra) Plan(c *Conn) (func(*nftables.Conn) error, error) {
	present, err := c.HasChain(nftables.TableFamilyINet, TableName, x.chainName())
	if err != nil || !x.mends && present != x.drop {
		return nil, err
	}
	have, err := x.read(c)
	if err != nil {
		return nil, err
	}
	if x.drop {
		return func(enc *nftables.Conn) error { return x.remove(enc, have) }, nil
	}
	rules, err := x.rules()
	if err != nil || len(x.lost(have, rules)) == 0 {
		return nil, err
	}
	return func(enc *nftables.Conn) error { return x.write(enc, have, rules) }, nil
}

// condState is what the kernel has for a network's conditions.
type condState struct {
	sets  []string // all sets of the table
	rules []Rule   // rules of the chain
	jumps []Rule   // rules that jump to the chain
}

func (c *Conditions) read(conn *Conn) (have condState, err error) {
	if have.sets, err = conn.setNames(nftables.TableFamilyINet); err != nil {
		return have, err
	}
	if have.rules, err = conn.ListRules(nftables.TableFamilyINet, TableName, c.chainName()); err != nil {
		return have, err
	}
	jumps, err := conn.ListRules(nftables.TableFamilyINet, TableName, chainConditional)
	have.jumps = slices.DeleteFunc(jumps, func(r Rule) bool { return !r.JumpsTo(c.chainName()) })
	return have, err
}

// Lost names the parts of the chain, the maps and the jump that differ from what Ensure
// creates.
func (c *Conditions) Lost(conn *Conn) (lost []string, err error) {
	rules, err := c.rules()
	if err != nil {
		return nil, err
	}
	have, err := c.read(conn)
	return c.lost(have, rules), err
}

func (c *Conditions) lost(have condState, rules []match) (lost []string) {
	for _, name := range c.missing(have) {
		lost = append(lost, fmt.Sprintf("map %s is missing", name))
	}
	same := func(r Rule, want match) bool { return sameRule(byte(nftables.TableFamilyINet), r.Exprs, want) }
	if !slices.EqualFunc(have.rules, rules, same) {
		lost = append(lost, fmt.Sprintf("the rules of chain %s were changed", c.chainName()))
	}
	if len(have.jumps) == 0 {
		lost = append(lost, fmt.Sprintf("nothing jumps to chain %s", c.chainName()))
	}
	return lost
}

func (c *Conditions) missing(have condState) []string {
	return slices.DeleteFunc(c.Maps(), func(name string) bool { return slices.Contains(have.sets, name) })
}

// write queues missing maps, replaces all rules of the chain, and adds the jump to the chain
// if it is missing. The elements of the maps remain.
func (c *Conditions) write(enc *nftables.Conn, have condState, rules []match) error {
	t := &nftables.Table{Name: TableName, Family: nftables.TableFamilyINet}
	for _, name := range c.missing(have) {
		spec, _ := specOf(name)
		if err := enc.AddSet(spec.set(), nil); err != nil {
			return fmt.Errorf("add map %s: %w", name, err)
		}
	}
	chain := enc.AddChain(&nftables.Chain{Name: c.chainName(), Table: t})
	if len(have.rules) > 0 {
		enc.FlushChain(chain)
	}
	for _, r := range rules {
		enc.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: r})
	}
	if len(have.jumps) == 0 {
		enc.AddRule(&nftables.Rule{
			Table: t, Chain: &nftables.Chain{Name: chainConditional, Table: t}, Exprs: jump(c.chainName()),
			UserData: userdata.AppendString(nil, userdata.TypeComment, CleanComment(c.Network)),
		})
	}
	return nil
}

// rules returns the rules that the chain must have. Each map has one rule for each alternative.
func (c *Conditions) rules() (rules []match, err error) {
	v4, v6, err := c.parse()
	add := func(v6, host bool, name string, alternatives []match) {
		for _, a := range alternatives {
			rules = append(rules, dnatBy(v6, host, c.setName(name), a...))
		}
	}
	add(false, true, SetHostPorts4, v4)
	add(true, true, SetHostPorts6, v6)
	add(false, false, SetPorts4, v4)
	add(true, false, SetPorts6, v6)
	return rules, err
}

// remove queues the deletion of the chain, the maps and the jumps. A jump has no name, so it
// is deleted by its handle.
func (c *Conditions) remove(enc *nftables.Conn, have condState) error {
	t := &nftables.Table{Name: TableName, Family: nftables.TableFamilyINet}
	for _, r := range have.jumps {
		if err := enc.DelRule(&nftables.Rule{Table: t, Chain: &nftables.Chain{Name: chainConditional, Table: t}, Handle: r.Handle}); err != nil {
			return err
		}
	}
	chain := &nftables.Chain{Name: c.chainName(), Table: t}
	enc.FlushChain(chain)
	enc.DelChain(chain)
	for _, name := range c.Maps() {
		enc.DelSet(&nftables.Set{Name: name, Table: t})
	}
	return nil
}
