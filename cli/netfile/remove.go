// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package netfile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/record"
)

// Remover removes those objects of a network that belong to no attachment.
type Remover struct {
	Dir     string // the directory of the networks' files
	Paths   paths.Paths
	Host    *nl.Conn
	NFT     *nft.Conn
	Records *record.Dir
	Sysctl  []string // the files that set sysctls at boot
}

// Removal lists what was removed, and what stays and why.
type Removal struct {
	Network string   `json:"network"`
	Removed []string `json:"removed"`
	Kept    []string `json:"left"`

	looked bool     // this removal has examined forwarding
	host   []string // those texts of Kept that are about forwarding, a setting of the whole host
}

// Latest removes from several removals, in their order, all texts about forwarding except the last removal's:
// earlier ones repeat it or are out of date.
func Latest(all []*Removal) {
	looked := false
	for _, r := range slices.Backward(all) {
		if looked {
			r.Kept = slices.DeleteFunc(r.Kept, func(s string) bool { return slices.Contains(r.host, s) })
		}
		looked = looked || r.looked
	}
}

func (r *Removal) removed(format string, args ...any) {
	r.Removed = append(r.Removed, fmt.Sprintf(format, args...))
}

func (r *Removal) kept(format string, args ...any) {
	r.Kept = append(r.Kept, fmt.Sprintf(format, args...))
}

// Lock keeps other commands from changing the networks of the directory meanwhile.
func (m *Remover) Lock(ctx context.Context) (unlock func(), err error) {
	unlock, err = durable.LockDir(ctx, m.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return func() {}, nil
	}
	return unlock, err
}

// Remove removes a network without attachments, in this order: its elements, its directory of
// addresses, its bridge, its file, and then forwarding. Objects that may belong to another
// network stay. If the process is killed, a second call finishes the work, because the file is
// still there.
func (m *Remover) Remove(ctx context.Context, l *chain.List) (*Removal, error) {
	r := &Removal{Network: l.Name, Removed: []string{}, Kept: []string{}}
	i := Describe(l)
	if err := errors.Join(m.elements(ctx, r), m.addresses(r, i), m.bridge(r, l, i)); err != nil {
		return r, err // keeps the file, so that the operator can try again
	}
	if l.File != "" {
		if err := durable.Remove(l.File); err != nil {
			return r, fmt.Errorf("remove the file: %w", err)
		}
		r.removed("file %s", l.File)
	}
	before := len(r.Kept)
	err := m.forwarding(r)
	r.looked, r.host = err == nil, slices.Clone(r.Kept[before:])
	return r, err
}

// elements removes the firewall elements that have the network's name. If a fact of another
// network's attachment lists an element, elements keeps it.
func (m *Remover) elements(ctx context.Context, r *Removal) error {
	holders, facts, err := m.Records.Facts()
	if err != nil {
		return fmt.Errorf("read firewall facts: %w", err)
	}
	held := map[string]bool{}
	for _, f := range facts {
		for _, e := range f.Elements {
			held[e.String()] = held[e.String()] || len(holders[f.Name]) > 0
		}
	}
	all, err := m.NFT.OfNetworks()
	if err != nil {
		return fmt.Errorf("list the elements of networks: %w", err)
	}
	gone := slices.DeleteFunc(all, func(e nft.Element) bool { return e.Comment != r.Network || held[e.String()] })
	if len(gone) == 0 {
		return nil
	}
	m.NFT.Remove(gone...)
	m.NFT.Queue(nft.LeaveFastPath(gone...))
	r.removed("%d elements of the firewall", len(gone))
	return m.NFT.Commit(ctx)
}

// addresses removes host-local's directory of the network, if no address is reserved in it.
func (m *Remover) addresses(r *Removal, i Info) error {
	dir := filepath.Join(cmp.Or(i.DataDir, m.Paths.Pools()), r.Network)
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look for addresses: %w", err)
	}
	for _, e := range entries {
		if e.Name() != "lock" && e.Name() != "grant" && !strings.HasPrefix(e.Name(), "last_reserved_ip.") {
			r.kept("%s: the address %s is reserved in it, but no known attachment has this address", dir, e.Name())
			return nil
		}
	}
	for _, e := range entries {
		if err := durable.Remove(filepath.Join(dir, e.Name())); err != nil {
			return fmt.Errorf("remove %s: %w", dir, err)
		}
	}
	if err := os.Remove(dir); err != nil { // rmdir fails if an address was reserved meanwhile
		return fmt.Errorf("remove %s: %w", dir, err)
	}
	r.removed("directory %s", dir)
	return nil
}

// bridge removes the network's bridge if one of our plugins made it and it has no ports.
func (m *Remover) bridge(r *Removal, l *chain.List, i Info) error {
	if i.Driver != driverBridge {
		return nil
	}
	name := record.MadeBridge(i.Interface)
	link, err := m.Host.Link(i.Interface)
	if nl.IsNotFound(err) {
		return m.Records.ForgetMade(name)
	}
	if err != nil {
		return fmt.Errorf("look for the bridge %s: %w", i.Interface, err)
	}
	why, err := m.used(link, l, i)
	if err != nil {
		return err
	}
	note, err := m.Records.Made(name)
	switch {
	case err != nil:
		why = err.Error()
	case why == "" && (note == nil || note.Index != link.Attrs().Index || link.Type() != "bridge"):
		why = "no note says that patchbay made it, as it notes its own: ip link del " + i.Interface
	}
	if why != "" {
		r.kept("bridge %s: %s", i.Interface, why)
		return nil
	}
	if err := m.unlink(link, i); err != nil {
		return err
	}
	r.removed("bridge %s", i.Interface)
	return m.Records.ForgetBridge(i.Interface, note.Index)
}

// vlanGateway returns the name of the gateway's interface in a VLAN, which the bridge plugin
// makes.
func vlanGateway(i Info) string {
	return owner.Of("vlan gateway", i.Interface, fmt.Sprintf("%s.%d", i.Interface, i.Vlan)).LinkName("veth", 0)
}

// used returns the reason to keep the bridge, or "".
func (m *Remover) used(link netlink.Link, l *chain.List, i Info) (why string, err error) {
	dir, err := chain.LoadDir(m.Dir)
	if err != nil {
		return "", err
	}
	for _, other := range dir.Lists {
		if other.File != l.File && Describe(other).Interface == i.Interface {
			return fmt.Sprintf("network %s is on it too", other.Name), nil
		}
	}
	links, err := m.Host.LinkList()
	if err != nil {
		return "", fmt.Errorf("list the ports of %s: %w", i.Interface, err)
	}
	index := link.Attrs().Index
	for _, p := range links {
		a := p.Attrs()
		if a.MasterIndex == index && a.Name != vlanGateway(i) || a.ParentIndex == index && a.NetNsID < 0 {
			return a.Name + " is on it", nil
		}
	}
	addrs, err := m.Host.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return "", fmt.Errorf("list the addresses of %s: %w", i.Interface, err)
	}
	for _, a := range addrs {
		p := nl.PrefixOf(a.IPNet)
		if !p.Addr().IsLinkLocalUnicast() && !slices.Contains(i.Prefixes(), p.Masked()) {
			return fmt.Sprintf("it has the address %s, which is none of the network's", p), nil
		}
	}
	return "", nil
}

// unlink deletes the gateway's interface in the VLAN, and then the bridge.
func (m *Remover) unlink(bridge netlink.Link, i Info) error {
	gateway, err := m.Host.Link(vlanGateway(i))
	if err == nil && gateway.Attrs().MasterIndex == bridge.Attrs().Index {
		err = m.Host.LinkDel(gateway)
	}
	if nl.IsNotFound(err) {
		err = nil
	}
	derr := m.Host.LinkDel(bridge)
	if err := cmp.Or(err, derr); err != nil && !nl.IsNotFound(err) {
		return fmt.Errorf("remove the bridge %s: %w", i.Interface, err)
	}
	return nil
}
