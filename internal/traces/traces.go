// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package traces reads what attachments have left on a node: elements of the firewall, links of the host, the addresses
// that host-local has reserved, and names in files. Package record reads the records, and package spaces what is in
// namespaces. Whether an attachment is dead is another question: package inventory decides it.
package traces

import (
	"context"
	"path/filepath"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/ipam"
)

// Node is what the traces of a node are read from. A method reads only what its result needs.
type Node struct {
	Paths    paths.Paths
	NFT      *nft.Conn
	Records  *record.Dir
	Host     func() (*nl.Conn, error)
	Patterns []string // of the files that plugins leave (plugin.Plugin.Files), with their directories

	links Links // cache of Links
}

// Scope says whose traces to read: those of one owner, of a network or, if both fields are empty, of the whole node.
type Scope struct {
	Network string
	Owner   owner.Key
}

// has reports whether an element with this comment is in the scope. If the comment was cut, it proves the network, but not
// the names.
func (s Scope) has(o owner.Key, comment string) bool {
	if s.Owner != "" && s.Owner != o {
		return false
	}
	return s.Network == "" || s.Network == nft.NetworkOf(comment)
}

// Elements returns the firewall's elements, by owner. It lists all sets, because only comments name owners. Of the maps of
// conditions, it lists those of an owner's facts or, if the scope has no owner, of all facts.
func (n *Node) Elements(of Scope) (map[owner.Key][]nft.Element, error) {
	var maps []string
	for _, f := range n.facts(of.Owner) {
		if f.Conditions != nil {
			maps = append(maps, f.Conditions.Maps()...)
		}
	}
	list, err := n.NFT.Owned(maps...)
	by := make(map[owner.Key][]nft.Element)
	for _, e := range list {
		key, _ := nft.OwnerOf(e.Comment)
		if o := owner.Key(key); of.has(o, e.Comment) {
			by[o] = append(by[o], e)
		}
	}
	return by, err
}

// facts returns the facts that an owner holds or, if o is empty, all. One that cannot be read has no maps.
func (n *Node) facts(o owner.Key) (list []record.Fact) {
	if o == "" {
		_, list, _ = n.Records.Facts()
		return list
	}
	held, _ := n.Records.FactsOf(o)
	for _, name := range held {
		if f, err := n.Records.Fact(name); err == nil {
			list = append(list, f)
		}
	}
	return list
}

// Links are the links of the host.
type Links struct {
	All []netlink.Link
	Of  map[owner.Key][]netlink.Link // those with an owner's mark; bandwidth's ifb has it, too
}

// Links lists the links of the host once.
func (n *Node) Links() (Links, error) {
	if n.links.Of != nil {
		return n.links, nil
	}
	host, err := n.Host()
	if err != nil {
		return Links{}, err
	}
	all, err := host.LinkList()
	if err != nil {
		return Links{}, err
	}
	n.links = Links{all, make(map[owner.Key][]netlink.Link)}
	for _, l := range all {
		if o, ok := owner.FromAlias(l.Attrs().Alias); ok {
			n.links.Of[o] = append(n.links.Of[o], l)
		}
	}
	return n.links, nil
}

// IsOf reports whether a link with a name of the owner is the owner's. One without a mark is, too: its ADD ended before it
// wrote the mark.
func IsOf(link netlink.Link, o owner.Key) bool {
	theirs, marked := owner.FromAlias(link.Attrs().Alias)
	return !marked || theirs == o
}

// Pool returns host-local's store of a network. dataDir is the directory that the configuration or a record names, or "".
func Pool(p paths.Paths, network, dataDir string) *ipam.FileStore {
	if dataDir == "" {
		dataDir = p.Pools()
	}
	return &ipam.FileStore{DataDir: dataDir, Network: network, IndexDir: filepath.Join(p.Run, "ipam")}
}

// Reserved returns what a holder has reserved in a pool or, if of is empty, all that is reserved. It changes nothing.
func Reserved(ctx context.Context, pool *ipam.FileStore, of ipam.Holder) ([]ipam.Reservation, error) {
	tx, err := pool.Begin(ctx, ipam.ReadOnly)
	if err != nil {
		return nil, err
	}
	defer tx.Close()
	if of != (ipam.Holder{}) {
		return tx.Held(of)
	}
	return tx.List(false)
}
