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

// Conditions limit a network's published ports (portmap's conditionsV4 and conditionsV6). A
// network with conditions has maps and a chain of its own:
//
//	map ports4_<id> { … }
//	chain cond_<id> { ip saddr 10.0.0.0/8 dnat ip to … map @ports4_<id> }
//	chain conditional { jump cond_<id> }
//
// It can be kept in a record. Ensure refuses a record that was written by hand.
type Conditions struct {
	Network string   `json:"network"`
	V4      []string `json:"v4,omitempty"` // tokens as in the configuration
	V6      []string `json:"v6,omitempty"`
}

// NewConditions checks the tokens and returns nil where there are none.
func NewConditions(network string, v4, v6 []string) (*Conditions, error) {
	if len(v4) == 0 && len(v6) == 0 {
		return nil, nil
	}
	c := &Conditions{Network: network, V4: v4, V6: v6}
	_, _, err := c.parse()
	return c, err
}

func (c *Conditions) parse() (v4, v6 match, err error) {
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

// ID names the chain and the maps. A network with the same conditions has the same ID;
// after a change of the conditions both chains exist for a while.
func (c *Conditions) ID() string {
	parts := append([]string{c.Network, "", "v4"}, c.V4...)
	parts = append(append(parts, "", "v6"), c.V6...)
	sum := sha256.Sum256([]byte(strings.Join(parts, "\x00")))
	return hex.EncodeToString(sum[:6])
}

// setName is the network's own map for a common one. For nil conditions it is the common
// one.
func (c *Conditions) setName(base string) string {
	if c == nil {
		return base
	}
	return base + "_" + c.ID()
}

func (c *Conditions) chainName() string { return chainOfConditions + c.ID() }

// chainOfConditions is the prefix of the names of the networks' chains.
const chainOfConditions = "cond_"

// Maps lists the names of the network's own maps.
func (c *Conditions) Maps() []string {
	return []string{c.setName(SetHostPorts4), c.setName(SetHostPorts6), c.setName(SetPorts4), c.setName(SetPorts6)}
}

// Ensure creates the chain and the maps when they are missing. Queue it before adding
// elements with Port.
func (c *Conditions) Ensure() Extra { return conditionsExtra{Conditions: c} }

// Drop removes them with all elements of the maps. It is for the last attachment of the
// network.
func (c *Conditions) Drop() Extra { return conditionsExtra{Conditions: c, drop: true} }

type conditionsExtra struct {
	*Conditions
	drop  bool
	mends bool // also mend what exists and was changed
}

// String names the chain.
func (x conditionsExtra) String() string {
	if x.drop {
		return "delete chain " + x.chainName()
	}
	return fmt.Sprintf("add chain %s (%s; %s)", x.chainName(), strings.Join(x.V4, " "), strings.Join(x.V6, " "))
}

// Merge keeps one of two equal extras.
func (x conditionsExtra) Merge(next Extra) (Extra, bool) {
	y, ok := next.(conditionsExtra)
	return x, ok && x.drop == y.drop && x.mends == y.mends && x.ID() == y.ID()
}

// Plan compiles the conditions and plans the chain.
func (x conditionsExtra) Plan(c *Conn) (func(*nftables.Conn) error, error) {
	t := &nftables.Table{Name: TableName, Family: nftables.TableFamilyINet}
	present, err := c.HasChain(t.Family, t.Name, x.chainName())
	switch {
	case err != nil:
		return nil, err
	case present && x.mends:
		return x.planMend(c)
	case present != x.drop:
		return nil, nil
	case x.drop:
		return x.planDrop(c, t)
	}
	v4, v6, err := x.parse()
	if err != nil {
		return nil, err
	}
	return func(enc *nftables.Conn) error { return x.create(enc, t, v4, v6) }, nil
}

// create queues maps, chain, rules and the jump to it.
func (c *Conditions) create(enc *nftables.Conn, t *nftables.Table, v4, v6 match) error {
	for _, name := range c.Maps() {
		spec, _ := specOf(name)
		if err := enc.AddSet(spec.set(), nil); err != nil {
			return fmt.Errorf("add map %s: %w", name, err)
		}
	}
	chain := enc.AddChain(&nftables.Chain{Name: c.chainName(), Table: t})
	for _, r := range c.rules(v4, v6) {
		enc.AddRule(&nftables.Rule{Table: t, Chain: chain, Exprs: r})
	}
	c.addJump(enc, t)
	return nil
}

// rules are the rules of the chain.
func (c *Conditions) rules(v4, v6 match) []match {
	return []match{
		dnatBy(false, true, c.setName(SetHostPorts4), v4...),
		dnatBy(true, true, c.setName(SetHostPorts6), v6...),
		dnatBy(false, false, c.setName(SetPorts4), v4...),
		dnatBy(true, false, c.setName(SetPorts6), v6...),
	}
}

func (c *Conditions) addJump(enc *nftables.Conn, t *nftables.Table) {
	enc.AddRule(&nftables.Rule{
		Table: t, Chain: &nftables.Chain{Name: chainConditional, Table: t}, Exprs: jump(c.chainName()),
		UserData: userdata.AppendString(nil, userdata.TypeComment, cleanComment(c.Network)),
	})
}

// planDrop finds the jumps, which have no name, only a handle.
func (c *Conditions) planDrop(conn *Conn, t *nftables.Table) (func(*nftables.Conn) error, error) {
	rules, err := conn.ListRules(t.Family, t.Name, chainConditional)
	if err != nil {
		return nil, err
	}
	rules = slices.DeleteFunc(rules, func(r Rule) bool { return !r.JumpsTo(c.chainName()) })
	return func(enc *nftables.Conn) error {
		from := &nftables.Chain{Name: chainConditional, Table: t}
		for _, r := range rules {
			if err := enc.DelRule(&nftables.Rule{Table: t, Chain: from, Handle: r.Handle}); err != nil {
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
	}, nil
}
