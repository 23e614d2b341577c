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

// Object is one object of an attachment.
type Object struct {
	Kind string `json:"kind"`
	Name string `json:"name"`
}

// Attachment is all evidence of one attachment, and the verdict on it.
type Attachment struct {
	Network     string    `json:"network,omitempty"`
	ContainerID string    `json:"containerID,omitempty"`
	IfName      string    `json:"ifname,omitempty"`
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

	marks   map[string][]*life.Mark // of the namespaces in NetNS, where a record has them
	records []*record.Record
	torn    []record.Torn

	tornFiles []string // the paths of the torn records

	drivers       []string // plugins of patchbay-cnm that have a record, torn ones included
	pendingDriver string   // the driver that the DEL has not reached
	cached        *chain.Cached
	pools         []pool // where addresses are reserved
	links         []link
	elements      []nft.Element
	facts         []string
	files         []string // of plugins; gc deletes them
	kernel        []Object // the objects that do not survive a boot
}

// onlyRules reports whether only firewall elements are left of an attachment: no record,
// result, reserved address, link or file.
func (a *Attachment) onlyRules() bool {
	known := len(a.records) + len(a.torn) + len(a.drivers) + len(a.pools) + len(a.links) + len(a.files)
	return len(a.elements) > 0 && known == 0 && a.cached == nil
}

// pool is a directory of addresses.
type pool struct{ dataDir, network string }

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
	if a.ContainerID == "" {
		return cmp.Or(a.Network, "?") + " owner " + string(a.Owner)
	}
	return a.Network + " " + a.ContainerID + "/" + a.IfName
}
