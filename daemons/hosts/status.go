// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/patchbay-net/patchbay/daemons/hosts/store"
	"github.com/patchbay-net/patchbay/daemons/internal/fabric"
	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/order"
)

// status is what the agent reports about this host, for `ls`.
type status struct {
	Node  string   `json:"node"`
	Wrong []string `json:"wrong,omitempty"`
}

const statusFile = "status.json"

// saveStatus writes the current problems of this host to a file.
func (a *Agent) saveStatus() error {
	data, err := json.Marshal(status{a.self, a.problems.All()})
	if err != nil {
		return err
	}
	path := filepath.Join(a.dir, statusFile)
	if was, err := os.ReadFile(path); err == nil && bytes.Equal(was, data) {
		return nil
	}
	return durable.WriteDurable(path, data, 0o600)
}

// Listing is what `ls` prints.
type Listing struct {
	Networks  []store.Network `json:"networks"`
	Nodes     []NodeLine      `json:"nodes"`
	Blocks    []BlockLine     `json:"blocks"`
	Endpoints []store.Entry   `json:"endpoints"`
	// Wrong lists the current problems of this host.
	Wrong []string `json:"wrong,omitempty"`
	// Remembered says why the store cannot be reached. If it is set, the rest is the last known
	// state.
	Remembered string `json:"remembered,omitempty"`
}

// NodeLine describes a host.
type NodeLine struct {
	store.Node
	Present bool `json:"present"`
}

// BlockLine describes a block, with the name of its host.
type BlockLine struct {
	store.Block
	NodeName string `json:"nodeName"`
	Present  bool   `json:"present"`
}

// List reads the store. If the store cannot be reached, List reads the agent's saved copy in
// dir.
func (a Admin) List(ctx context.Context, dir string) (*Listing, error) {
	w, err := a.read(ctx)
	out := &Listing{Nodes: []NodeLine{}, Blocks: []BlockLine{}, Endpoints: []store.Entry{}}
	unreadable := err
	if err != nil && !errors.Is(err, store.ErrUnreadable) {
		m := &mirror{}
		if m.load(dir) != nil || !m.loaded {
			return nil, err
		}
		w, out.Remembered, unreadable = m.cache, err.Error(), nil
	}
	present := w.present()
	out.Networks = append([]store.Network{}, w.Networks...)
	for _, n := range w.Nodes {
		out.Nodes = append(out.Nodes, NodeLine{n, present[n.ID]})
	}
	for _, b := range w.Blocks {
		out.Blocks = append(out.Blocks, BlockLine{b, w.nodeName(b.Node), present[b.Node]})
	}
	for _, e := range w.Endpoints {
		if !ofHost(&e) {
			out.Endpoints = append(out.Endpoints, e)
		}
	}
	if out.Wrong, err = wrongHere(dir); unreadable != nil {
		out.Wrong = append(out.Wrong, unreadable.Error())
	}
	return out, err
}

// wrongHere returns the problems that this host's agent has reported, if an agent is running.
func wrongHere(dir string) ([]string, error) {
	data, err := os.ReadFile(filepath.Join(dir, statusFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var s status
	if err := json.Unmarshal(data, &s); err != nil {
		return nil, fmt.Errorf("read status: %w", err)
	}
	return s.Wrong, nil
}

// read returns everything in the store. If some objects cannot be read, it returns the others
// and store.ErrUnreadable.
func (a Admin) read(ctx context.Context) (w world, err error) {
	var errs []error
	for _, read := range []func() error{
		func() error { return listInto(ctx, a.Store.Networks(), &w.Networks) },
		func() error { return listInto(ctx, a.Store.Nodes(), &w.Nodes) },
		func() error { return listInto(ctx, a.Store.Blocks(), &w.Blocks) },
		func() error { return listInto(ctx, a.Store.Entries(), &w.Endpoints) },
	} {
		err := read()
		if err != nil && !errors.Is(err, store.ErrUnreadable) {
			return world{}, err
		}
		errs = append(errs, err)
	}
	return w, errors.Join(errs...)
}

func listInto[T store.Object](ctx context.Context, t store.Table[T], into *[]T) error {
	items, _, err := list(ctx, t, "")
	*into = order.Values(items)
	return err
}

// Print writes a listing as tables.
func (l *Listing) Print(to io.Writer) error {
	var p fabric.Page
	if l.Remembered != "" {
		p.Intro = "the store is away, this is its last known state: " + l.Remembered
	}
	if l.Remembered == "" && len(l.Nodes) == 0 {
		p.Intro = "no host is in the store: no agent has run with it (systemctl status patchbay-hosts)"
	}
	names := map[string]string{}
	p.Row("NETWORK", "SUBNETS", "BLOCKS", "TRANSPORT")
	for _, n := range l.Networks {
		transport := string(n.Transport)
		if n.Isolate {
			transport += ", isolated"
		}
		p.Row(n.Name, join(n.Subnets), fmt.Sprint(l.count(n.Name)), transport)
	}
	p.Row()
	p.Row("HOST", "ID", "ADDRESSES", "STATE")
	for _, n := range l.Nodes {
		names[n.ID] = n.Name
		p.Row(n.Name, n.ID, join(n.Underlay), presentWord(n.Present, n.Seen))
	}
	p.Row()
	p.Row("BLOCK", "NETWORK", "HOST")
	for _, b := range l.Blocks {
		p.Row(b.Prefix.String(), b.Network, b.NodeName)
	}
	p.Row()
	p.Row("ENDPOINT", "NETWORK", "HOST", "ADDRESSES", "NAMES")
	for _, e := range l.Endpoints {
		p.Row(e.ID[:min(len(e.ID), shortID)], e.Network, names[e.Node], join(e.Addrs), strings.Join(e.Names, ", "))
	}
	for _, s := range l.Wrong {
		p.Wrong("on this host", s)
	}
	return p.Print(to)
}

func (l *Listing) count(network string) (n int) {
	for _, b := range l.Blocks {
		if b.Network == network {
			n++
		}
	}
	return n
}

func presentWord(present bool, seen time.Time) string {
	if present {
		return "present"
	}
	return "gone, last seen " + seen.Format(time.RFC3339)
}

func join[T netip.Addr | netip.Prefix](all []T) string {
	var out []string
	for _, x := range all {
		out = append(out, fmt.Sprint(x))
	}
	return strings.Join(slices.Clip(out), ",")
}
