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
	"slices"
	"strconv"
	"strings"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/cli/gc"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/ipam"
	"github.com/patchbay-net/patchbay/owner"
	"github.com/patchbay-net/patchbay/paths"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/hostlocal"
	"github.com/patchbay-net/patchbay/plugin/kernel"
)

// Node is what the checks read. It belongs to one thread.
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
	asked  map[owner.Key]*netstate.Differences // the differences that CHECK found, by attachment
	cut    map[string]bool                     // networks that iptables drops, without any accept
}

// Network is a configured network, decoded for the checks.
type Network struct {
	*chain.List
	Members []Member // including the members of a plugin of type patchbay
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
		Type       string              `json:"type"`
		DataDir    string              `json:"dataDir"`
		SocketPath string              `json:"daemonSocketPath"`
		Ranges     [][]hostlocal.Range `json:"ranges"`
		hostlocal.Range
	} `json:"ipam"`
	Plugins []json.RawMessage `json:"plugins"`
}

// Open reads the configurations and opens the host's namespace, which is the calling
// thread's.
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

// Close closes what Open opened.
func (n *Node) Close() { n.close() }

// members reads the plugins of a list. One that is no JSON object has no fields, and the
// plugin's own STATUS reports it.
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

// bridge is the name of a bridge member's bridge; empty for other types.
func (m *Member) bridge() string {
	if m.Type != "bridge" {
		return ""
	}
	return cmp.Or(m.Bridge, "cni0")
}

// gateway reports whether the bridge gets addresses.
func (m *Member) gateway() bool { return m.IsGateway || m.IsDefault }

// sets are the canonical ranges of a member that uses host-local; none if they are invalid,
// which the check of configurations reports.
func (m *Member) sets() []ipam.RangeSet {
	if m.IPAM.Type != "host-local" {
		return nil
	}
	all := m.IPAM.Ranges
	if m.IPAM.Subnet != "" {
		all = append([][]hostlocal.Range{{m.IPAM.Range}}, all...)
	}
	sets, err := hostlocal.Sets(all)
	if err != nil {
		return nil
	}
	return sets
}

// ranges are the ranges of all sets.
func (m *Member) ranges() []ipam.Range { return slices.Concat(m.sets()...) }

// subnets are the subnets that a network assigns addresses from.
func (n *Network) subnets() (out []netip.Prefix) {
	for i := range n.Members {
		for _, r := range n.Members[i].ranges() {
			out = append(out, r.Subnet.Masked())
		}
	}
	return out
}

// records returns the readable records: the check of leftovers reports the others.
func (n *Node) records() []*record.Record {
	list, _, _ := n.Kernel.Records.Scan("")
	return list
}

// sysctlNumber reads a number below /proc/sys; ok is false without one.
func (n *Node) sysctlNumber(key string) (v int, ok bool) {
	text, err := os.ReadFile(filepath.Join(n.Paths.Proc, "sys", key))
	if err != nil {
		return 0, false
	}
	v, err = strconv.Atoi(strings.TrimSpace(string(text)))
	return v, err == nil
}

// setBy is the command that sets a sysctl permanently.
func setBy(key, value string) string {
	name := strings.ReplaceAll(key, "/", ".")
	return fmt.Sprintf("sysctl -w %s=%s, and the same line in /etc/sysctl.d/90-patchbay.conf", name, value)
}
