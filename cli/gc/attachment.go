// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"cmp"
	"context"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/internal/life"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/nft/iptnft"
	"github.com/patchbay-net/patchbay/owner"
	"github.com/patchbay-net/patchbay/plugin/kernel"
)

// Object is one object of an attachment.
type Object struct {
	Kind string `json:"kind"`
	Name string `json:"name"`
}

// Attachment is all evidence of one attachment, and the verdict on it. An object without a
// known attachment is one without names and owner.
type Attachment struct {
	Network     string    `json:"network,omitempty"`
	ContainerID string    `json:"containerID,omitempty"`
	IfName      string    `json:"ifname,omitempty"`
	Pod         string    `json:"pod,omitempty"` // of Kubernetes: "namespace/name"
	Owner       owner.Key `json:"owner,omitempty"`

	State   State     `json:"state"`
	Why     string    `json:"why"`
	Young   bool      `json:"young,omitempty"` // unsure only because of its age
	Since   time.Time `json:"since,omitzero"`
	Objects []Object  `json:"objects"`
	Removed bool      `json:"removed"`
	Error   string    `json:"error,omitempty"`
	NetNS   []string  `json:"netns,omitempty"` // paths in records and cached results

	Addrs []netip.Addr `json:"addresses,omitempty"`

	marks         map[string][]*life.Mark // of the namespaces in NetNS, where a record has them
	records       []kept
	pendingDriver string // the driver that the DEL has not reached
	cached        *chain.Cached
	pools         []pool // where addresses are reserved
	links         []link
	elements      []nft.Element
	files         []string // of plugins; gc deletes them
	kernel        []Object // the objects that do not survive a boot

	// fix is what only an operator can do about a stray object that gc keeps; doctor
	// reports it.
	fix    string
	remove func(context.Context, *kernel.Kernel) error // of a stray object
}

// kept is a record that exists.
type kept struct {
	plugin string
	path   string
	torn   bool
	driver bool // it is patchbay-cnm's
}

// onlyRules reports whether only firewall elements are left of an attachment: no record,
// result, reserved address, link or file.
func (a *Attachment) onlyRules() bool {
	known := len(a.records) + len(a.pools) + len(a.links) + len(a.files)
	return len(a.elements) > 0 && known == 0 && a.cached == nil
}

// onlyTorn reports whether truncated records of our plugins are all that is left.
func (a *Attachment) onlyTorn() bool {
	readable := func(k kept) bool { return !k.torn || k.driver }
	return a.ContainerID == "" && len(a.records) > 0 && len(a.records) == len(a.Objects) && !slices.ContainsFunc(a.records, readable)
}

// pool is a directory of addresses.
type pool struct{ dataDir, network string }

func (p pool) file(a netip.Addr) string { return filepath.Join(p.dataDir, p.network, a.String()) }

// link is a link of the host as gc found it: a later link with the same name has another
// index.
type link struct {
	name  string
	index int
}

// addObject adds an object of the attachment.
func (a *Attachment) addObject(kind, name string, inKernel bool) {
	o := Object{kind, name}
	if slices.Contains(a.Objects, o) {
		return
	}
	a.Objects = append(a.Objects, o)
	if inKernel {
		a.kernel = append(a.kernel, o)
	}
}

// at adds a path of the attachment's namespace, with the namespace's mark if a record has
// it.
func (a *Attachment) at(path string, mark *life.Mark) {
	if path == "" {
		return
	}
	if !slices.Contains(a.NetNS, path) {
		a.NetNS = append(a.NetNS, path)
	}
	if mark != nil && !slices.ContainsFunc(a.marks[path], mark.Same) {
		if a.marks == nil {
			a.marks = make(map[string][]*life.Mark)
		}
		a.marks[path] = append(a.marks[path], mark)
	}
}

// marksOf returns the marks of a namespace, or a single nil if no record has one.
func (a *Attachment) marksOf(path string) []*life.Mark {
	if len(a.marks[path]) == 0 {
		return []*life.Mark{nil}
	}
	return a.marks[path]
}

// seen dates the attachment by its youngest evidence.
func (a *Attachment) seen(t time.Time) {
	if t.After(a.Since) {
		a.Since = t
	}
}

func (a *Attachment) addr(addr netip.Addr) {
	if addr = addr.Unmap(); addr.IsValid() && !slices.Contains(a.Addrs, addr) {
		a.Addrs = append(a.Addrs, addr)
	}
}

// Name names the attachment in messages.
func (a *Attachment) Name() string {
	switch {
	case a.Stray():
		return a.Objects[0].Kind + " " + a.Objects[0].Name
	case a.ContainerID == "":
		return cmp.Or(a.Network, "?") + " owner " + string(a.Owner)
	}
	name := a.Network + " " + a.ContainerID + "/" + a.IfName
	if a.Pod != "" {
		name += " of pod " + a.Pod
	}
	return name
}

// Stray reports whether it is a single object without a known attachment.
func (a *Attachment) Stray() bool { return a.Owner == "" }

// Fix is what the operator can do about it; empty where gc cannot say.
func (a *Attachment) Fix() string {
	if a.State == Dead {
		return "patchbay gc --apply"
	}
	return a.fix
}

// Reason is the reason for the verdict, with what to do.
func (a *Attachment) Reason() string {
	if a.fix == "" {
		return a.Why
	}
	return a.Why + ": " + a.fix
}

// Links names the attachment's links on the host.
func (a *Attachment) Links() (names []string) {
	for _, l := range a.links {
		names = append(names, l.name)
	}
	return names
}

// inIPTables is the attachment as the reference plugins name it in their rules.
func (a *Attachment) inIPTables() iptnft.Attachment {
	return iptnft.Attachment{Network: a.Network, ContainerID: a.ContainerID, IfName: a.IfName}
}
