// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"cmp"
	"net/netip"
	"slices"
	"time"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/internal/life"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/record"
)

// Object is one thing that stands for an attachment.
type Object struct {
	Kind string `json:"kind"`
	Name string `json:"name"`
}

// Attachment is all evidence of one attachment, and what became of it.
type Attachment struct {
	Network     string    `json:"network,omitempty"`
	ContainerID string    `json:"containerID,omitempty"`
	IfName      string    `json:"ifname,omitempty"`
	Owner       owner.Key `json:"owner,omitempty"`

	State   State     `json:"state"`
	Why     string    `json:"why"`
	Young   bool      `json:"young,omitempty"` // unsure for its age alone
	Since   time.Time `json:"since,omitzero"`
	Objects []Object  `json:"objects"`
	Removed bool      `json:"removed"`
	Error   string    `json:"error,omitempty"`
	NetNS   []string  `json:"netns,omitempty"` // paths, as records and caches tell

	Addrs []netip.Addr `json:"addresses,omitempty"`

	marks   map[string][]*life.Mark // of NetNS, where a record has one
	records []*record.Record
	torn    []record.Torn

	tornFiles []string // where those are

	drivers  []string // plugins of patchbay-cnm that have a record, torn ones too
	untold   string   // the driver that has not heard of the DEL
	cached   *chain.Cached
	pools    []pool // where addresses are reserved
	links    []link
	elements []nft.Element
	facts    []string
	files    []string // of plugins, to be deleted
	kernel   []Object // those of Objects that do not survive a boot
}

// onlyRules says that nothing is left of an attachment but what the firewall has for
// it: no record, result, reserved address, link or file.
func (a *Attachment) onlyRules() bool {
	known := len(a.records) + len(a.torn) + len(a.drivers) + len(a.pools) + len(a.links) + len(a.files)
	return len(a.elements) > 0 && known == 0 && a.cached == nil
}

// pool is a directory of addresses.
type pool struct{ dataDir, network string }

// link is a host's link as it was seen: another one under its name has another
// index.
type link struct {
	name  string
	index int
}

// have notes a thing that stands.
func (a *Attachment) have(kind, name string, inKernel bool) {
	o := Object{kind, name}
	if slices.Contains(a.Objects, o) {
		return
	}
	a.Objects = append(a.Objects, o)
	if inKernel {
		a.kernel = append(a.kernel, o)
	}
}

// at notes where the attachment's namespace is said to be, and its mark where
// that is known.
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

// marksOf are the marks of a namespace; a nil one where nothing has any.
func (a *Attachment) marksOf(path string) []*life.Mark {
	if len(a.marks[path]) == 0 {
		return []*life.Mark{nil}
	}
	return a.marks[path]
}

// seen makes the attachment as young as its youngest evidence.
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

// Name is the attachment for people.
func (a *Attachment) Name() string {
	if a.ContainerID == "" {
		return cmp.Or(a.Network, "?") + " owner " + string(a.Owner)
	}
	return a.Network + " " + a.ContainerID + "/" + a.IfName
}
