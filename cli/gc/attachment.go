// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"cmp"
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/internal/inventory"
	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/nft/iptnft"
	"github.com/patchbay-net/patchbay/internal/owner"
)

// Object is one object that belongs to an attachment.
type Object struct {
	Kind string `json:"kind"`
	Name string `json:"name"`
}

// Candidate holds everything that gc found of one attachment, and gc's judgement. A stray object
// is also a Candidate, but has no names and no owner.
type Candidate struct {
	Network     string    `json:"network,omitempty"`
	ContainerID string    `json:"containerID,omitempty"`
	IfName      string    `json:"ifname,omitempty"`
	Pod         string    `json:"pod,omitempty"` // of Kubernetes: "namespace/name"
	Owner       owner.Key `json:"owner,omitempty"`

	State   State     `json:"state"`
	Why     string    `json:"why"`
	Young   bool      `json:"young,omitempty"` // unsure only because the attachment is young
	Since   time.Time `json:"since,omitzero"`
	Objects []Object  `json:"objects"`
	Removed bool      `json:"removed"`
	Error   string    `json:"error,omitempty"`
	NetNS   []string  `json:"netns,omitempty"` // paths in records and cached results

	Addrs []netip.Addr `json:"addresses,omitempty"`

	evidence      inventory.Evidence // what its traces say
	records       []kept
	shared        []string // the facts that its readable records name
	forgotten     string   // the path of the namespace, if containerd has forgotten the sandbox
	pendingDriver string   // the driver that the DEL could not reach yet
	cached        *chain.Cached
	pools         []pool // the directories where addresses are reserved
	links         []link
	elements      []nft.Element
	files         []string // files of plugins, which gc deletes
	kernel        []Object // objects that do not survive a reboot

	// fix tells an operator what to do about a stray object that gc keeps. doctor prints it.
	fix    string
	remove func(context.Context, *kernel.Kernel) error // removes a stray object
}

// kept names a record that exists.
type kept struct {
	plugin string
	path   string
	torn   bool
	marked bool // the plugin marks a link of the attachment (plugin.Plugin.Marked)
	driver bool // the record is in patchbay-cnm's store
	ended  bool // the attachment has ended, but the driver may not know
}

// pending reports whether nothing but a driver has to be notified of the end of the attachment. With a record of
// another plugin or a cached result, an ADD of the same names may have made a new attachment.
func (a *Candidate) pending() bool {
	return a.pendingDriver != "" && a.cached == nil && !slices.ContainsFunc(a.records, func(k kept) bool { return !k.driver })
}

// onlyRules reports whether nothing but firewall elements is left of an attachment: no record,
// result, reserved address, link or file.
func (a *Candidate) onlyRules() bool {
	known := len(a.records) + len(a.pools) + len(a.links) + len(a.files)
	return len(a.elements) > 0 && known == 0 && a.cached == nil
}

// onlyCached reports whether nothing is left of an attachment but its cached result.
func (a *Candidate) onlyCached() bool {
	return a.cached != nil && len(a.records)+len(a.pools)+len(a.links)+len(a.elements)+len(a.files) == 0
}

// onlyTorn reports whether nothing is left of the attachment but unreadable records of our plugins.
func (a *Candidate) onlyTorn() bool {
	readable := func(k kept) bool { return !k.torn || k.driver }
	return a.ContainerID == "" && len(a.records) > 0 && len(a.records) == len(a.Objects) && !slices.ContainsFunc(a.records, readable)
}

// pool is a directory in which host-local reserves addresses.
type pool struct{ dataDir, network string }

// link is a link of the host as gc found it. A later link may have the same name, so gc compares
// the index before it deletes the link.
type link struct {
	name  string
	index int
}

// addObject adds an object of the attachment.
func (a *Candidate) addObject(kind, name string, inKernel bool) {
	o := Object{kind, name}
	if slices.Contains(a.Objects, o) {
		return
	}
	a.Objects = append(a.Objects, o)
	if inKernel {
		a.kernel = append(a.kernel, o)
	}
}

func (a *Candidate) addr(addr netip.Addr) {
	if addr = addr.Unmap(); addr.IsValid() && !slices.Contains(a.Addrs, addr) {
		a.Addrs = append(a.Addrs, addr)
	}
}

// Name returns a name of the attachment for messages.
func (a *Candidate) Name() string {
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

// Stray reports whether this is a single object that belongs to no known attachment.
func (a *Candidate) Stray() bool { return a.Owner == "" }

// Fix returns what the operator can do. If gc has no advice, Fix returns "".
func (a *Candidate) Fix() string {
	if a.State == Dead {
		return "patchbay gc --apply"
	}
	return a.fix
}

// Reason returns why gc judged as it did, and what to do.
func (a *Candidate) Reason() string {
	if a.fix == "" {
		return a.Why
	}
	return a.Why + ": " + a.fix
}

// Links returns the names of the attachment's links on the host.
func (a *Candidate) Links() (names []string) {
	for _, l := range a.links {
		names = append(names, l.name)
	}
	return names
}

// inIPTables returns the attachment's names in the form that the reference plugins use in their
// rules.
func (a *Candidate) inIPTables() iptnft.Names {
	return iptnft.Names{Network: a.Network, ContainerID: a.ContainerID, IfName: a.IfName}
}
