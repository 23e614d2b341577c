// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/policy/enforce"
	"github.com/patchbay-net/patchbay/netns"
)

// feature is a kernel feature that some plugin needs. try uses it in an empty namespace.
type feature struct {
	name    string
	module  string // the kernel module that provides the feature
	plugins []string
	try     func(*nl.Conn) error
}

// features lists the features that a kernel may lack. A plugin needs only some of them.
func features() []feature {
	return []feature{
		{"veth pairs", "veth", []string{"bridge", "ptp"}, links("veth")},
		{"bridges", "bridge", []string{"bridge"}, links("bridge")},
		{"VLAN filtering of bridges", "CONFIG_BRIDGE_VLAN_FILTERING", []string{"bridge vlan"}, (*nl.Conn).CanFilterVLANs},
		{"macvlan", "macvlan", []string{"macvlan"}, links("macvlan")},
		{"ipvlan", "ipvlan", []string{"ipvlan"}, links("ipvlan")},
		{"VLAN devices", "8021q", []string{"vlan"}, links("vlan")},
		{"dummy devices", "dummy", []string{"dummy"}, links("dummy")},
		{"VRF devices", "vrf", []string{"vrf"}, links("vrf")},
		{"tap devices", "tun", []string{"tap"}, func(*nl.Conn) error { return nl.CanTap() }},
		{"ifb devices", "ifb", []string{"bandwidth"}, links("ifb")},
		{"the tbf queue", "sch_tbf", []string{"bandwidth"}, tryTBF},
		{"nftables with NAT", "nf_tables, nft_masq, nft_nat", []string{"portmap", "firewall", "bridge ipMasq", "ptp ipMasq"}, tryNAT},
		{"nftables as network policies use it", "nf_tables, nft_ct, nft_fib_inet", []string{"policy"}, tryPolicies},
		{"policy routing", "CONFIG_IP_MULTIPLE_TABLES", []string{"sbr"}, tryRule},
	}
}

// kernelFeatures tries the features that the configured networks need. It tries them in a
// namespace that ends with the thread. The kernel may load modules for this, as it does for an
// ADD.
func kernelFeatures(_ context.Context, n *Node) (found []Finding, err error) {
	needed := n.needs()
	list := slices.DeleteFunc(features(), func(f feature) bool { return f.neededBy(needed) == "" })
	if len(list) == 0 {
		return nil, nil
	}
	done := make(chan struct{})
	netns.GoOnThread(func() {
		defer close(done)
		found, err = tryAll(list, needed, n.Paths.Proc)
	})
	<-done
	return found, err
}

// tryAll moves the calling thread to a new namespace and tries the features there.
func tryAll(list []feature, needed map[string]string, proc string) (found []Finding, err error) {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return nil, fmt.Errorf("make a namespace to try the kernel in: %w", err)
	}
	c, err := nl.Host(proc)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	for _, f := range list {
		if err := f.try(c); err != nil {
			found = append(found, problem(fmt.Sprintf("the kernel has no %s, which network %s needs: %v", f.name, f.neededBy(needed), err),
				"modprobe %s, or a kernel that has it", f.module))
		}
	}
	return found, nil
}

// neededBy returns the name of a network that needs the feature. If there is none, it returns "".
func (f *feature) neededBy(needed map[string]string) (network string) {
	for _, p := range f.plugins {
		network = cmp.Or(network, needed[p])
	}
	return network
}

// needs returns what the networks need, each with the name of one network that needs it. The
// keys are plugins, and features that a plugin needs only in some configurations.
func (n *Node) needs() map[string]string {
	needed := make(map[string]string)
	for _, net := range n.Networks {
		for _, m := range net.Members {
			needed[m.Type] = net.Name
			if m.Type == "bridge" && m.Vlan != 0 {
				needed["bridge vlan"] = net.Name
			}
			if m.IPMasq || len(m.IPMasqOutside) > 0 {
				needed[m.Type+" ipMasq"] = net.Name
			}
		}
	}
	return needed
}

// links returns a function that tries to make a kind of link. The finding names the kind, so the
// function's error does not.
func links(kind string) func(*nl.Conn) error {
	return func(c *nl.Conn) error { return errors.Unwrap(c.CanMake(kind)) }
}

func tryTBF(c *nl.Conn) error {
	lo, err := c.Link("lo")
	if err != nil {
		return err
	}
	return c.QdiscAdd(&netlink.Tbf{
		QdiscAttrs: netlink.QdiscAttrs{LinkIndex: lo.Attrs().Index, Handle: netlink.MakeHandle(1, 0), Parent: netlink.HANDLE_ROOT},
		Rate:       1 << 20, Buffer: 1 << 16, Limit: 1 << 16,
	})
}

// tryNAT creates the whole table that our plugins use.
func tryNAT(*nl.Conn) error {
	return tryTable(func(fw *nft.Conn) error {
		fw.Add(nft.AnyPort(netip.MustParsePrefix("192.0.2.0/24"), "doctor"))
		fw.Add(nft.Port(nft.Published{Protocol: unix.IPPROTO_TCP, Port: 9, To: netip.MustParseAddrPort("192.0.2.1:9")}, nil, "doctor"))
		return fw.Commit(context.Background())
	})
}

// tryPolicies isolates a pod that does not exist, as the plugin policy does. If the kernel refuses the agent's
// program, the agent itself reports that: only patchbayd has the code that writes the program.
func tryPolicies(*nl.Conn) error {
	return tryTable(func(fw *nft.Conn) error {
		addrs := []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")}
		enforce.Close(fw, enforce.Closure{Link: "pod", Port: "port", Addrs: addrs, Close: [2]bool{true, true}, Comment: "doctor"}, false)
		return fw.Commit(context.Background())
	})
}

// tryTable calls fill, and returns its error as one line.
func tryTable(fill func(*nft.Conn) error) error {
	fw := nft.Open("")
	err := fill(fw)
	if cerr := fw.Close(); err == nil {
		err = cerr
	}
	if err != nil {
		return fmt.Errorf("%s", strings.TrimSpace(err.Error()))
	}
	return nil
}

func tryRule(c *nl.Conn) error {
	r := netlink.NewRule()
	r.Family, r.Table, r.Priority = netlink.FAMILY_V4, 7, 7
	return c.RuleAdd(r)
}
