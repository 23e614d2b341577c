// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"fmt"

	"github.com/google/nftables"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Table is a whole table of any program as the kernel has it: everything but its elements.
type Table struct {
	Family  nftables.TableFamily
	Name    string
	Dormant bool // the kernel calls none of its chains

	Chains []Chain
	Rules  map[string][]Rule // by chain

	sets map[string][]Member // see Members
}

// Chain is a chain of a table. One without Base is only jumped to.
type Chain struct {
	Name  string
	Base  bool
	Type  string // "filter", "nat" or "route"
	Hook  nftables.ChainHook
	Prio  int32
	Drops bool // by policy

	Devices []string // of a hook for devices
}

// chain finds a chain by its name.
func (t *Table) chain(name string) *Chain {
	for i := range t.Chains {
		if t.Chains[i].Name == name {
			return &t.Chains[i]
		}
	}
	return nil
}

// String names the table as a person would.
func (t *Table) String() string { return fmt.Sprintf("table %s %s", FamilyName(t.Family), t.Name) }

// ReadTable reads a table in three requests; it returns nil when there is none. While other
// processes write, the answers may be of different moments.
func (c *Conn) ReadTable(f nftables.TableFamily, name string) (*Table, error) {
	t := &Table{Family: f, Name: name, Rules: make(map[string][]Rule)}
	found, err := c.readFlags(t)
	if err != nil || !found {
		return nil, err
	}
	if t.Chains, err = c.chainsOf(f, name); err != nil {
		return nil, err
	}
	rules, err := c.listRules(f, name, "", (*Rule).decodeExprs)
	for _, r := range rules {
		t.Rules[r.Chain] = append(t.Rules[r.Chain], r)
	}
	return t, err
}

// readFlags fetches the table itself.
func (c *Conn) readFlags(t *Table) (found bool, err error) {
	what := []query{Ref{Family: t.Family, Table: t.Name}.query()}
	err = c.ask(what, func(_ int, answer []netlink.Message) error {
		found = true
		for _, m := range answer {
			a, err := message(m)
			if err != nil {
				return err
			}
			t.Dormant = t.Dormant || a.Number(unix.NFTA_TABLE_FLAGS)&unix.NFT_TABLE_F_DORMANT != 0
		}
		return nil
	})
	return found, err
}

// chainsOf lists the chains of a table. The kernel returns the chains of the whole family.
func (c *Conn) chainsOf(f nftables.TableFamily, table string) (chains []Chain, err error) {
	msgs, err := c.list(query{get: unix.NFT_MSG_GETCHAIN, family: f})
	for _, m := range msgs {
		a, err := message(m)
		if err != nil {
			return nil, err
		}
		if a.Text(unix.NFTA_CHAIN_TABLE) == table {
			chains = append(chains, decodeChain(a))
		}
	}
	return chains, err
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

// devicesOf returns the devices of a hook: one, or a list.
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
