// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"errors"
	"fmt"

	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// FlowsTable is the table of `patchbay flows -f`. It exists only while somebody looks.
const FlowsTable = "patchbay_flows"

// PrefixFlow is the prefix of messages about new connections.
const PrefixFlow = "patchbay flow"

const (
	countFlows = "seen"
	chainFlow  = "new"

	// The hooks where a packet has its last destination and its first source. Filters were before.
	prioFlows = 90
)

// ErrOwner means that the kernel has no tables with an owner, which Linux 5.12 brought.
var ErrOwner = errors.New("this kernel has no nftables tables that go with their process: Linux 5.12 is needed")

// NewConnections are the rules that tell new connections to a group of NFLOG. The kernel removes them when Close is called,
// or when the process ends, however it ends (NFT_TABLE_F_OWNER, Linux 5.12).
type NewConnections struct{ conn *Conn }

// TellNewConnections makes the rules in the network namespace of the calling thread. They tell the first packet of each
// connection that comes through, leaves or arrives, of at most rate in a second, and count all. The group must have its
// reader before, so that each message is read. If another process has such a table, the error wraps unix.EPERM.
func TellNewConnections(group uint16, rate uint64) (*NewConnections, error) {
	c := Open("")
	if err := c.dial(); err != nil {
		return nil, err
	}
	msgs, err := flowMessages(group, rate)
	if err == nil {
		err = c.send(msgs)
	}
	if err == nil {
		return &NewConnections{c}, nil
	}
	if lacksOwner(err) {
		err = fmt.Errorf("%w: %w", ErrOwner, err)
	}
	return nil, errors.Join(fmt.Errorf("tell new connections to group %d of NFLOG: %w", group, err), c.Close())
}

// Count returns how many connections began since the rules exist.
func (n *NewConnections) Count() (uint64, error) {
	counters, err := n.conn.counters(FlowsTable, func(name string) bool { return name == countFlows })
	if err != nil || len(counters) != 1 {
		return 0, fmt.Errorf("count new connections: %d counters: %w", len(counters), err)
	}
	return counters[0].Packets, nil
}

// Close removes the rules.
func (n *NewConnections) Close() error { return n.conn.Close() }

func flowMessages(group uint16, rate uint64) ([]netlink.Message, error) {
	table := tableMessage(unix.NFT_MSG_NEWTABLE, nftables.TableFamilyINet, FlowsTable, tableFlagOwner)
	rest, err := encode(func(enc *nftables.Conn) error {
		t := &nftables.Table{Family: nftables.TableFamilyINet, Name: FlowsTable}
		enc.AddObj(&nftables.CounterObj{Table: t, Name: countFlows})
		for _, c := range flowChains(group, rate) {
			c.add(enc, t, false)
		}
		return nil
	})
	return append([]netlink.Message{table}, rest...), err
}

// flowChains returns the chains. A packet of a connection that the kernel knows meets one comparison.
func flowChains(group uint16, rate uint64) []chainSpec {
	first := []staticRule{{"", rule(unconfirmed(), jump(chainFlow))}}
	limit := &expr.Limit{Type: expr.LimitTypePkts, Rate: rate, Unit: expr.LimitTimeSecond, Burst: uint32(rate)}
	return []chainSpec{
		{name: chainFlow, rules: []staticRule{
			{"", match{&expr.Objref{Type: unix.NFT_OBJECT_COUNTER, Name: countFlows + "\x00"}}},
			{"", match{limit, Log{group, PrefixFlow}.expr()}},
		}},
		{name: "leaves", typ: nftables.ChainTypeFilter, hook: nftables.ChainHookPostrouting, prio: prioFlows, rules: first},
		{name: "arrives", typ: nftables.ChainTypeFilter, hook: nftables.ChainHookInput, prio: prioFlows, rules: first},
	}
}

// unconfirmed matches the first packet of a connection: the kernel confirms an entry when that packet has passed. A second
// packet without an answer is `new`, too, but confirmed.
func unconfirmed() match {
	const ipsConfirmed = 1 << 3 // IPS_CONFIRMED, include/uapi/linux/netfilter/nf_conntrack_common.h
	return match{
		&expr.Ct{Key: expr.CtKeySTATUS, Register: reg1}, bitwise(reg1, native(ipsConfirmed)),
		&expr.Cmp{Op: expr.CmpOpEq, Register: reg1, Data: make([]byte, 4)},
	}
}
