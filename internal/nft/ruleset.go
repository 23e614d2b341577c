// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"

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
func (t *Table) String() string { return fmt.Sprintf("table %s %s", familyName(t.Family), t.Name) }

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
	if err := c.dial(); err != nil {
		return false, err
	}
	req, err := Ref{Family: t.Family, Table: t.Name}.request()
	if err != nil {
		return false, err
	}
	msgs, err := c.nl.Execute(req)
	switch {
	case errors.Is(err, syscall.ENOENT):
		return false, nil
	case err != nil:
		return false, errors.Join(fmt.Errorf("look at %s: %w", t, err), c.drain())
	}
	for _, m := range msgs {
		e, err := message(m)
		if err != nil {
			return false, err
		}
		t.Dormant = t.Dormant || number32(e.Attr(unix.NFTA_TABLE_FLAGS))&unix.NFT_TABLE_F_DORMANT != 0
	}
	return true, nil
}

// chainsOf lists the chains of a table. The kernel returns the chains of the whole family.
func (c *Conn) chainsOf(f nftables.TableFamily, table string) (chains []Chain, err error) {
	msgs, err := c.nl.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETCHAIN, Flags: netlink.Request | netlink.Dump},
		Data:   genHeader(f),
	})
	if err != nil {
		return nil, errors.Join(fmt.Errorf("list chains of %s: %w", table, err), c.drain())
	}
	for _, m := range msgs {
		e, err := message(m)
		if err != nil {
			return nil, err
		}
		if unix.ByteSliceToString(e.Attr(unix.NFTA_CHAIN_TABLE)) != table {
			continue
		}
		ch, err := decodeChain(e)
		if err != nil {
			return nil, err
		}
		chains = append(chains, ch)
	}
	return chains, nil
}

func decodeChain(e Expr) (Chain, error) {
	ch := Chain{Name: unix.ByteSliceToString(e.Attr(unix.NFTA_CHAIN_NAME)), Type: unix.ByteSliceToString(e.Attr(unix.NFTA_CHAIN_TYPE))}
	raw := e.Attr(unix.NFTA_CHAIN_HOOK)
	if raw == nil {
		return ch, nil
	}
	attrs, err := attributes(raw)
	if err != nil {
		return ch, fmt.Errorf("decode chain %s: %w", ch.Name, err)
	}
	hook := Expr{Attrs: attrs}
	ch.Base = true
	ch.Hook = nftables.ChainHook(number32(hook.Attr(unix.NFTA_HOOK_HOOKNUM)))
	ch.Prio = int32(number32(hook.Attr(unix.NFTA_HOOK_PRIORITY)))
	ch.Devices = devicesOf(hook)
	policy := e.Attr(unix.NFTA_CHAIN_POLICY)
	ch.Drops = len(policy) == 4 && number32(policy) == uint32(nftables.ChainPolicyDrop)
	return ch, nil
}

// devicesOf returns the devices of a hook: one, or a list.
func devicesOf(hook Expr) (names []string) {
	if one := hook.Attr(unix.NFTA_HOOK_DEV); one != nil {
		return []string{unix.ByteSliceToString(one)}
	}
	const devs = 4                         // NFTA_HOOK_DEVS
	list, _ := attributes(hook.Attr(devs)) // a list that cannot be read names none
	for _, a := range list {
		names = append(names, unix.ByteSliceToString(a.Data))
	}
	return names
}

// message is the attributes of an answer.
func message(m netlink.Message) (e Expr, err error) {
	if len(m.Data) < 4 {
		return e, fmt.Errorf("decode nftables answer: %w", errMalformed)
	}
	if e.Attrs, err = attributes(m.Data[4:]); err != nil {
		return e, fmt.Errorf("decode nftables answer: %w", err)
	}
	return e, nil
}

// number32 is a number in network byte order; 0 when there is none.
func number32(b []byte) uint32 {
	if len(b) != 4 {
		return 0
	}
	return binary.BigEndian.Uint32(b)
}
