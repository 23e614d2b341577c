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
	"time"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/cli/gc"
	"github.com/patchbay-net/patchbay/cli/netfile"
	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/packed"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/ipam"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/hostlocal"
)

// Node holds what the checks read. Only one thread may use it.
type Node struct {
	Paths      paths.Paths
	ConfDir    string
	Runtime    *chain.Runtime // finds and calls plugins
	NewSession func() *plugin.Session
	GC         gc.Options          // options of the check of leftovers; Apply is never set
	Wait       func(time.Duration) // for tests; nil waits in real time

	Networks []*Network
	Broken   []*chain.FileError

	Kernel *kernel.Kernel
	Host   *nl.Conn
	close  func()
	asked  map[owner.Key]*netstate.Differences // what CHECK found, by attachment
	cut    map[string]bool                     // networks whose traffic iptables certainly drops
}

// Network is a configured network, decoded for the checks.
type Network struct {
	*chain.List
	Members []Member // includes the plugins inside a plugin of type patchbay
}

// Member is a plugin of a network.
type Member struct{ netfile.Plugin }

// Open reads the configurations and opens the host's namespace, in which the calling thread
// runs.
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

// members decodes the plugins of a list. A plugin that is not a JSON object gets no fields, and
// its own STATUS reports that.
func members(l *chain.List) (out []Member) {
	for _, p := range l.Plugins {
		var m Member
		_ = json.Unmarshal(p.Raw, &m) // the plugin's STATUS reports an error
		out = append(out, m)
		if m.Type != packed.Type {
			continue
		}
		for _, inner := range m.Plugins {
			if inner != nil {
				out = append(out, Member{*inner})
			}
		}
	}
	return out
}

// bridge returns the name of the bridge, if the plugin is of type bridge. Otherwise it returns "".
func (m *Member) bridge() string {
	if m.Type != "bridge" {
		return ""
	}
	return cmp.Or(m.Bridge, "cni0")
}

// gateway reports whether the plugin gives addresses to its bridge.
func (m *Member) gateway() bool { return m.IsGateway || m.IsDefaultGateway }

func (m *Member) internal() bool { return m.Internal != nil && *m.Internal }

// sets returns the address ranges of a plugin that uses host-local, in canonical form. If they
// are invalid, it returns none, and the check configurations reports that.
func (m *Member) sets() []ipam.RangeSet {
	if m.IPAM.Type != "host-local" {
		return nil
	}
	var all [][]hostlocal.Range
	if m.IPAM.Subnet != "" {
		all = append(all, []hostlocal.Range{hostlocal.Range(m.IPAM.Range)})
	}
	for _, set := range m.IPAM.Ranges {
		var ranges []hostlocal.Range
		for _, r := range set {
			ranges = append(ranges, hostlocal.Range(r))
		}
		all = append(all, ranges)
	}
	sets, err := hostlocal.Sets(all)
	if err != nil {
		return nil
	}
	return sets
}

// ranges returns the ranges of all sets in one list.
func (m *Member) ranges() []ipam.Range { return slices.Concat(m.sets()...) }

// subnets returns the subnets from which a network assigns addresses.
func (n *Network) subnets() (out []netip.Prefix) {
	for i := range n.Members {
		for _, r := range n.Members[i].ranges() {
			out = append(out, r.Subnet.Masked())
		}
	}
	return out
}

// records returns the records that can be read. The check leftovers reports the others.
func (n *Node) records() []*record.Record {
	list, _, _ := n.Kernel.Records.Scan("")
	return list
}

// sysctlNumber reads a number below /proc/sys. ok is false if there is none.
func (n *Node) sysctlNumber(key string) (v int, ok bool) {
	text, err := os.ReadFile(filepath.Join(n.Paths.Proc, "sys", key))
	if err != nil {
		return 0, false
	}
	v, err = strconv.Atoi(strings.TrimSpace(string(text)))
	return v, err == nil
}

// setBy returns the command that sets a sysctl, and says how to set it permanently.
func setBy(key, value string) string {
	name := strings.ReplaceAll(key, "/", ".")
	return fmt.Sprintf("sysctl -w %s=%s, and the same line in /etc/sysctl.d/90-patchbay.conf", name, value)
}
