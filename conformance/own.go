// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"errors"
	"net"
	"slices"
	"strings"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/test/nettest/leak"
)

// The host's own interface has ownAddr (RFC 5737), and what comes from there has a routing table, as on a node with two uplinks.
const (
	ownAddr  = "192.0.2.1"
	ownTable = 192
)

// cmdOwn gives the host an interface that is called like the container's, unless that is lo, and notes how both are. If the host has one, which a
// plugin left that broke another rule, that is the host's own.
func cmdOwn(ts *testscript.TestScript, neg bool, args []string) {
	w := theWorld(ts)
	w.diary.did("ip link set lo up")
	ts.Check(setUp("lo"))
	name := w.Attachment().IfName
	if _, err := netlink.LinkByName(name); err != nil {
		ts.Check(w.ownLink(name))
	}
	own, err := w.ownState()
	ts.Check(err)
	w.own = own
	ts.Check(w.begin())
}

func setUp(name string) error {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(link)
}

// ownLink makes the host's interface, with an address, its route, and a rule.
func (w *World) ownLink(name string) error {
	w.diary.did("ip link add %s type veth peer name pb-own; ip address add %s/24 dev %s; ip link set %s up", name, ownAddr, name, name)
	w.diary.did("ip rule add from %s table %d", ownAddr, ownTable)
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	link := &netlink.Veth{LinkAttrs: attrs, PeerName: "pb-own"}
	if err := netlink.LinkAdd(link); err != nil {
		return err
	}
	w.t.Cleanup(func() { _ = netlink.LinkDel(link) }) // fails if the plugin has deleted it
	rule := netlink.NewRule()
	rule.Src, rule.Table = &net.IPNet{IP: net.ParseIP(ownAddr).To4(), Mask: net.CIDRMask(32, 32)}, ownTable
	w.t.Cleanup(func() { _ = netlink.RuleDel(rule) }) // likewise
	return errors.Join(addressed(name, ownAddr), netlink.RuleAdd(rule))
}

// ownState lists what is the host's own: both links with their addresses, routes and attributes, and the rule.
func (w *World) ownState() (s leak.State, err error) {
	now, err := observe("/nonexistent") // no files
	if err != nil {
		return nil, err
	}
	names := slices.Compact([]string{"lo", w.Attachment().IfName})
	s = now.objects.Without(func(line string) bool { return !ofOwn(line, names) })
	for key, value := range now.attributes {
		if line := "attribute " + key + " " + value; ofOwn(line, names) {
			s = append(s, line)
		}
	}
	for _, name := range names {
		if link, err := netlink.LinkByName(name); err == nil && link.Attrs().Flags&net.FlagUp != 0 {
			s = append(s, "link "+name+" is up")
		}
	}
	return s, nil
}

// ofOwn reports whether a line is of one of these links, whose name follows the kind of the line and of the link, or of the rule.
func ofOwn(line string, names []string) bool {
	words := strings.Fields(line)
	if words[0] == "rule" {
		return slices.Contains(words, ownAddr+"/32")
	}
	return len(words) > 2 && slices.Contains(names, words[2])
}

// cmdKept checks that nothing is gone of what was the host's own.
func cmdKept(ts *testscript.TestScript, neg bool, args []string) {
	w := theWorld(ts)
	now, err := w.ownState()
	ts.Check(err)
	if gone := w.own.Beyond(now); len(gone) > 0 {
		ts.Fatalf("the host has no longer what was its own:\n%s", gone)
	}
}
