// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package conntrack lists and deletes connection tracking entries of the current network
// namespace, over nfnetlink with mdlayher/netlink. As long as packets keep coming, such an entry
// decides where the packets of a UDP flow go. An entry may be older than a published port, or
// belong to a removed container. Then it sends the client's packets to the wrong place
// (plugins#123).
//
// vishvananda/netlink has the same calls, but lists the whole table, which has millions of
// entries on a busy node. Here the kernel filters (CTA_FILTER, Linux >= 5.8).
package conntrack

import (
	"errors"
	"fmt"
	"syscall"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// Conn is an nfnetlink socket. Only one goroutine may use it at a time.
type Conn struct{ nl *netlink.Conn }

// Dial opens a socket in the network namespace of the calling thread.
func Dial() (*Conn, error) {
	nl, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		return nil, fmt.Errorf("open nfnetlink for conntrack: %w", err)
	}
	return &Conn{nl}, nil
}

// Close closes the socket. After an nftables transaction that deleted something, closing any
// nfnetlink socket of the namespace waits (RCU). So callers close it last.
func (c *Conn) Close() error { return c.nl.Close() }

// These are message types of subsystem ctnetlink (linux/netfilter/nfnetlink_conntrack.h).
const (
	msgNew netlink.HeaderType = unix.NFNL_SUBSYS_CTNETLINK<<8 + iota
	msgGet
	msgDelete
)

// List returns the flows that match f. If the kernel cannot filter, it sends all entries, and
// List drops those that do not match.
func (c *Conn) List(f Filter) ([]Flow, error) {
	req, err := f.request()
	if err != nil {
		return nil, fmt.Errorf("list conntrack entries: %w", err)
	}
	msgs, err := c.nl.Execute(req)
	if err != nil {
		return nil, fmt.Errorf("list conntrack entries: %w", err)
	}
	var flows []Flow
	for _, m := range msgs {
		if m.Header.Type != msgNew {
			continue
		}
		flow, err := parse(m.Data)
		if err != nil {
			return nil, fmt.Errorf("list conntrack entries: %w", err)
		}
		if f.Match(flow) {
			flows = append(flows, flow)
		}
	}
	return flows, nil
}

// Delete deletes exactly this flow. Its tuple, its zone and the kernel's id identify it. Delete
// accepts that the flow has already ended.
func (c *Conn) Delete(f Flow) error {
	ae := netlink.NewAttributeEncoder()
	ae.Bytes(unix.NLA_F_NESTED|ctaTupleOrig, f.tuple)
	if f.zone != nil {
		ae.Bytes(ctaZone, f.zone)
	}
	if f.id != nil {
		ae.Bytes(ctaID, f.id)
	}
	b, err := ae.Encode()
	if err != nil {
		return fmt.Errorf("delete conntrack entry %s: %w", f, err)
	}
	_, err = c.nl.Execute(netlink.Message{
		Header: netlink.Header{Type: msgDelete, Flags: netlink.Request | netlink.Acknowledge},
		Data:   append(header(f.family()), b...),
	})
	if err != nil && !errors.Is(err, syscall.ENOENT) {
		return fmt.Errorf("delete conntrack entry %s: %w", f, err)
	}
	return nil
}

// header returns a struct nfgenmsg: family, version, resource id.
func header(family uint8) []byte { return []byte{family, unix.NFNETLINK_V0, 0, 0} }
