// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/internal/gc"
	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/ipam"
	"github.com/patchbay-net/patchbay/plugin"
)

// Node is what the checks look at. It belongs to one thread.
type Node struct {
	Paths      paths.Paths
	ConfDir    string
	Runtime    *chain.Runtime // finds plugins
	NewSession func() *plugin.Session
	GC         gc.Options // for the leftovers; never with Apply

	Networks []*Network
	Broken   []*chain.FileError

	Kernel *kernel.Kernel
	Host   *nl.Conn
	close  func()
	asked  map[owner.Key]*netstate.Differences // what CHECK said, by attachment
	cut    map[string]bool                     // networks that iptables drops and nobody accepts
}

// Network is a configured network with what several checks read in it.
type Network struct {
	*chain.List
	Members []Member // those within a plugin of type patchbay, too
}

// Member is a plugin of a network. The fields are the reference's.
type Member struct {
	Type       string `json:"type"`
	Bridge     string `json:"bridge"`
	Master     string `json:"master"`
	MTU        int    `json:"mtu"`
	IsGateway  bool   `json:"isGateway"`
	IsDefault  bool   `json:"isDefaultGateway"`
	IPMasq     bool   `json:"ipMasq"`
	Internal   bool   `json:"internal"`
	Outside    []any  `json:"ipMasqOutside"`
	VLAN       int    `json:"vlan"`
	SocketPath string `json:"daemonSocketPath"`

	InContainer bool `json:"linkInContainer"`

	IPAM struct {
		Type       string    `json:"type"`
		DataDir    string    `json:"dataDir"`
		SocketPath string    `json:"daemonSocketPath"`
		Ranges     [][]Range `json:"ranges"`
		Range
	} `json:"ipam"`
	Plugins []json.RawMessage `json:"plugins"`
}

// Range is host-local's.
type Range struct {
	Subnet     string `json:"subnet"`
	RangeStart string `json:"rangeStart"`
	RangeEnd   string `json:"rangeEnd"`
	Gateway    string `json:"gateway"`
}

// Open reads the configurations and opens the host's namespace, which is that of
// the calling thread.
func (n *Node) Open() error {
	s := n.NewSession()
	n.Kernel = kernel.OfSession(s)
	n.close = s.Close
	host, err := n.Kernel.Host()
	if err != nil {
		s.Close()
		return err
	}
	n.Host = host
	d, err := chain.LoadDir(n.ConfDir)
	if err != nil {
		s.Close()
		return err
	}
	n.Broken = d.Broken
	for _, l := range d.Lists {
		n.Networks = append(n.Networks, &Network{l, members(l)})
	}
	return nil
}

// Close ends what Open opened.
func (n *Node) Close() { n.close() }

// members reads the plugins of a list; what is no object has no fields, and the
// plugin's own STATUS says so.
func members(l *chain.List) (out []Member) {
	for _, p := range l.Plugins {
		var m Member
		_ = json.Unmarshal(p.Raw, &m) // see above
		out = append(out, m)
		if m.Type != "patchbay" {
			continue
		}
		for _, raw := range m.Plugins {
			var inner Member
			_ = json.Unmarshal(raw, &inner) // see above
			out = append(out, inner)
		}
	}
	return out
}

// bridge is the name of the bridge of a member of that type; empty for others.
func (m *Member) bridge() string {
	if m.Type != "bridge" {
		return ""
	}
	return cmp.Or(m.Bridge, "cni0")
}

// gateway reports whether the bridge gets addresses.
func (m *Member) gateway() bool { return m.IsGateway || m.IsDefault }

// ranges are those of all sets; none where they make no sense, which the check of
// configurations tells.
func (m *Member) ranges() (all []ipam.Range) {
	sets, err := m.sets()
	if err != nil {
		return nil
	}
	for _, set := range sets {
		all = append(all, set...)
	}
	return all
}

// sets are the ranges of a member whose addresses are host-local's, canonical.
func (m *Member) sets() (sets []ipam.RangeSet, err error) {
	if m.IPAM.Type != "host-local" {
		return nil, nil
	}
	all := m.IPAM.Ranges
	if m.IPAM.Subnet != "" {
		all = append([][]Range{{m.IPAM.Range}}, all...)
	}
	for _, ranges := range all {
		var set ipam.RangeSet
		for _, r := range ranges {
			parsed, err := ipam.ParseRange(r.Subnet, r.RangeStart, r.RangeEnd, r.Gateway)
			if err != nil {
				return nil, err
			}
			set = append(set, parsed)
		}
		sets = append(sets, set)
	}
	return sets, ipam.Canonicalize(sets)
}

// subnets are those a network gives addresses from. One that cannot be read is
// the business of the check of configurations.
func (n *Network) subnets() (out []netip.Prefix) {
	for i := range n.Members {
		sets, err := n.Members[i].sets()
		if err != nil {
			continue
		}
		for _, set := range sets {
			for _, r := range set {
				out = append(out, r.Subnet.Masked())
			}
		}
	}
	return out
}

// records are those that can be read: the check of leftovers tells of others.
func (n *Node) records() []*record.Record {
	list, _, _ := n.Kernel.Records.Scan("")
	return list
}

// sysctlNumber reads a number below /proc/sys; ok is false when there is none.
func (n *Node) sysctlNumber(key string) (v int, ok bool) {
	text, err := os.ReadFile(filepath.Join(n.Paths.Proc, "sys", key))
	if err != nil {
		return 0, false
	}
	v, err = strconv.Atoi(strings.TrimSpace(string(text)))
	return v, err == nil
}

// setBy tells how to set a sysctl for good.
func setBy(key, value string) string {
	name := strings.ReplaceAll(key, "/", ".")
	return fmt.Sprintf("sysctl -w %s=%s, and the same line in /etc/sysctl.d/90-patchbay.conf", name, value)
}
