// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/netns"
)

// feature is a kernel feature that a plugin needs, and how to try it in an empty
// namespace.
type feature struct {
	name    string
	module  string // the kernel module with the feature
	plugins []string
	try     func() error
}

// features lists what can be missing; every plugin needs only its own features.
func features() []feature {
	on := true
	return []feature{
		{"veth pairs", "veth", []string{"bridge", "ptp"}, link(func(a netlink.LinkAttrs) netlink.Link {
			return &netlink.Veth{LinkAttrs: a, PeerName: "probe1"}
		})},
		{"bridges", "bridge", []string{"bridge"}, link(func(a netlink.LinkAttrs) netlink.Link { return &netlink.Bridge{LinkAttrs: a} })},
		{"VLAN filtering of bridges", "CONFIG_BRIDGE_VLAN_FILTERING", []string{"bridge vlan"}, link(func(a netlink.LinkAttrs) netlink.Link {
			return &netlink.Bridge{LinkAttrs: a, VlanFiltering: &on}
		})},
		{"macvlan", "macvlan", []string{"macvlan"}, onVeth(func(a netlink.LinkAttrs) netlink.Link {
			return &netlink.Macvlan{LinkAttrs: a, Mode: netlink.MACVLAN_MODE_BRIDGE}
		})},
		{"ipvlan", "ipvlan", []string{"ipvlan"}, onVeth(func(a netlink.LinkAttrs) netlink.Link {
			return &netlink.IPVlan{LinkAttrs: a, Mode: netlink.IPVLAN_MODE_L2}
		})},
		{"VLAN devices", "8021q", []string{"vlan"}, onVeth(func(a netlink.LinkAttrs) netlink.Link {
			return &netlink.Vlan{LinkAttrs: a, VlanId: 7, VlanProtocol: netlink.VLAN_PROTOCOL_8021Q}
		})},
		{"dummy devices", "dummy", []string{"dummy"}, link(func(a netlink.LinkAttrs) netlink.Link { return &netlink.Dummy{LinkAttrs: a} })},
		{"VRF devices", "vrf", []string{"vrf"}, link(func(a netlink.LinkAttrs) netlink.Link { return &netlink.Vrf{LinkAttrs: a, Table: 7} })},
		{"tap devices", "tun", []string{"tap"}, func() error { return unix.Access("/dev/net/tun", unix.F_OK) }},
		{"ifb devices", "ifb", []string{"bandwidth"}, link(func(a netlink.LinkAttrs) netlink.Link { return &netlink.Ifb{LinkAttrs: a} })},
		{"the tbf queue", "sch_tbf", []string{"bandwidth"}, tryTBF},
		{"nftables with NAT", "nf_tables, nft_masq, nft_nat", []string{"portmap", "firewall", "bridge ipMasq", "ptp ipMasq"}, tryNAT},
		{"policy routing", "CONFIG_IP_MULTIPLE_TABLES", []string{"sbr"}, tryRule},
	}
}

// kernelFeatures tries what the configured networks need, in a namespace that ends with
// the thread. The kernel may load modules, as for an ADD.
func kernelFeatures(_ context.Context, n *Node) (found []Finding, err error) {
	needed := n.needs()
	var try []feature
	for _, f := range features() {
		if slices.ContainsFunc(f.plugins, func(p string) bool { return needed[p] != "" }) {
			try = append(try, f)
		}
	}
	if len(try) == 0 {
		return nil, nil
	}
	missing, err := tryAll(try)
	for _, m := range missing {
		i := slices.IndexFunc(m.plugins, func(p string) bool { return needed[p] != "" })
		found = append(found, problem(
			fmt.Sprintf("the kernel has no %s, which network %s needs: %v", m.name, needed[m.plugins[i]], m.err),
			"modprobe %s, or a kernel that has it", m.module))
	}
	return found, err
}

// needs maps plugins, and features that only some configurations need, to a network that
// needs them.
func (n *Node) needs() map[string]string {
	needed := make(map[string]string)
	for _, net := range n.Networks {
		for _, m := range net.Members {
			needed[m.Type] = net.Name
			if m.Type == "bridge" && m.VLAN != 0 {
				needed["bridge vlan"] = net.Name
			}
			if m.IPMasq || len(m.Outside) > 0 {
				needed[m.Type+" ipMasq"] = net.Name
			}
		}
	}
	return needed
}

type missingFeature struct {
	feature
	err error
}

// tryAll tries features on a thread in a separate namespace. The thread is never reused,
// and the namespace ends with it.
func tryAll(list []feature) (missing []missingFeature, err error) {
	done := make(chan struct{})
	netns.GoOnThread(func() {
		defer close(done)
		if err = unix.Unshare(unix.CLONE_NEWNET); err != nil {
			err = fmt.Errorf("make a namespace to try the kernel in: %w", err)
			return
		}
		for _, f := range list {
			if terr := f.try(); terr != nil {
				missing = append(missing, missingFeature{f, terr})
			}
		}
	})
	<-done
	return missing, err
}

func link(of func(netlink.LinkAttrs) netlink.Link) func() error {
	return func() error {
		a := netlink.NewLinkAttrs()
		a.Name = "probe0"
		l := of(a)
		if err := netlink.LinkAdd(l); err != nil {
			return err
		}
		return netlink.LinkDel(l)
	}
}

// onVeth tries a kind of link that needs a lower link.
func onVeth(of func(netlink.LinkAttrs) netlink.Link) func() error {
	return func() error {
		a := netlink.NewLinkAttrs()
		a.Name = "probe2"
		parent := &netlink.Veth{LinkAttrs: a, PeerName: "probe3"}
		if err := netlink.LinkAdd(parent); err != nil {
			return err
		}
		below, err := netlink.LinkByName("probe2")
		if err != nil {
			return err
		}
		err = link(func(a netlink.LinkAttrs) netlink.Link {
			a.ParentIndex = below.Attrs().Index
			return of(a)
		})()
		if derr := netlink.LinkDel(below); err == nil {
			err = derr
		}
		return err
	}
}

func tryTBF() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	return netlink.QdiscAdd(&netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: lo.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
		Rate:       1 << 20, Buffer: 1 << 16, Limit: 1 << 16,
	})
}

// tryNAT creates our whole table.
func tryNAT() error {
	fw := nft.Open("")
	fw.Add(nft.Masquerade(netip.MustParsePrefix("192.0.2.0/24"), "doctor")...)
	fw.Add(nft.Port(nft.Published{Protocol: unix.IPPROTO_TCP, Port: 9, To: netip.MustParseAddrPort("192.0.2.1:9")}, nil, "doctor"))
	err := fw.Commit(context.Background())
	if cerr := fw.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("%s", strings.TrimSpace(err.Error()))
	}
	return nil
}

func tryRule() error {
	r := netlink.NewRule()
	r.Family, r.Table, r.Priority = netlink.FAMILY_V4, 7, 7
	return netlink.RuleAdd(r)
}
