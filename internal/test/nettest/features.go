// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nettest

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// LinkKind is a kind of link, as in ip(8). The probe leaves out options such as a master. If the
// kernel supports the kind but needs such an option, it returns another error than EOPNOTSUPP.
func LinkKind(kind string) Feature {
	return Feature{"links of type " + kind, func() error {
		a := attrs()
		a.ParentIndex = 1 // lo: the library requires one for some kinds
		err := tryLink(&netlink.GenericLink{LinkAttrs: a, LinkType: kind})
		if errors.Is(err, unix.EOPNOTSUPP) {
			return err
		}
		return nil
	}}
}

// VLANFiltering is VLAN filtering in a bridge.
func VLANFiltering() Feature {
	return Feature{"bridge VLAN filtering (CONFIG_BRIDGE_VLAN_FILTERING)", func() error {
		on := true
		return tryLink(&netlink.Bridge{LinkAttrs: attrs(), VlanFiltering: &on})
	}}
}

// Dummy is the dummy device.
func Dummy() Feature {
	return Feature{"dummy device (CONFIG_DUMMY)", func() error { return tryLink(&netlink.Dummy{LinkAttrs: attrs()}) }}
}

// Tun is the device that creates taps. The module's device node may be missing until the
// module is loaded.
func Tun() Feature {
	return Feature{"taps (CONFIG_TUN)", func() error {
		f, err := os.OpenFile("/dev/net/tun", os.O_RDWR, 0)
		if err != nil {
			return err
		}
		return f.Close()
	}}
}

func attrs() netlink.LinkAttrs {
	a := netlink.NewLinkAttrs()
	a.Name = "pb-probe0"
	return a
}

// tryLink creates a link and removes it again.
func tryLink(l netlink.Link) error {
	if err := netlink.LinkAdd(l); err != nil {
		return err
	}
	return netlink.LinkDel(l)
}

// Program returns the feature that an executable (go, nft, conntrack) is in PATH. scripts/setup
// installs them here. The emulated machine of test/labs/vm has few programs, and skips tests that
// need others.
func Program(name string) Feature {
	return Feature{"program " + name, func() error { _, err := exec.LookPath(name); return err }}
}

// Flowtables are the flowtables of nftables and the rule that adds flows to them. nft --check asks the
// kernel, and changes nothing.
func Flowtables() Feature {
	return Feature{"flowtables (CONFIG_NF_FLOW_TABLE_INET, CONFIG_NFT_FLOW_OFFLOAD)", func() error {
		return nftSays("-c", "add table inet probe; add flowtable inet probe f { hook ingress priority 0; }; "+
			"add chain inet probe c; add rule inet probe c flow add @f")
	}}
}

// OwnedTables are tables that go with the process that made them. Linux has them from 5.12.
func OwnedTables() Feature {
	return Feature{"nftables tables with an owner (Linux 5.12)", func() error {
		return nftSays("-c", "add table inet probe { flags owner; }")
	}}
}

// BackRoutesAtForward is the match of a source's way back at the hook forward. Linux has it from 5.19.
func BackRoutesAtForward() Feature {
	return Feature{"`fib saddr . iif` at the hook forward (Linux 5.19)", func() error {
		// In one transaction with the removal, the kernel would not look at the rule.
		err := nftSays("add table inet probe; add chain inet probe c { type filter hook forward priority 0; }; " +
			"add rule inet probe c fib saddr . iif oif 0")
		_ = nftSays("delete table inet probe") // not there after a refusal
		return err
	}}
}

// ElementForOthers is the element * of a set, which stands for all that have no element. Linux has it from 5.13.
func ElementForOthers() Feature {
	return Feature{"the element * of a set (Linux 5.13)", func() error {
		return nftSays("add table inet probe; add set inet probe s { type ipv4_addr; elements = { * }; }; delete table inet probe")
	}}
}

// FirstAddress is the first address of a subnet as one of the host's own. Before Linux 5.14 it is a broadcast address, and no route
// can have it as its source.
func FirstAddress() Feature {
	return Feature{"the first address of a subnet (Linux 5.14)", func() error {
		link := &netlink.Bridge{LinkAttrs: attrs()}
		if err := netlink.LinkAdd(link); err != nil {
			return err
		}
		return errors.Join(routeFromFirst(link), netlink.LinkDel(link))
	}}
}

// routeFromFirst gives the host the first address of a subnet after a link that has the subnet is up, as where a bridge has it. In the
// other order some kernels before 5.14 accept the route.
func routeFromFirst(link netlink.Link) error {
	first := net.IPv4(198, 18, 0, 0)
	add := func(ip net.IP, bits int) error {
		return netlink.AddrAdd(link, &netlink.Addr{IPNet: &net.IPNet{IP: ip, Mask: net.CIDRMask(bits, 32)}})
	}
	if err := errors.Join(add(net.IPv4(198, 18, 0, 1), 24), netlink.LinkSetUp(link), add(first, 32)); err != nil {
		return err
	}
	to := &net.IPNet{IP: net.IPv4(198, 18, 1, 0), Mask: net.CIDRMask(24, 32)}
	return netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Scope: netlink.SCOPE_LINK, Dst: to, Src: first})
}

// nftSays returns what nft says of commands that the kernel refuses.
func nftSays(args ...string) error {
	out, err := exec.Command("nft", args...).CombinedOutput()
	if err != nil {
		first, _, _ := strings.Cut(string(out), "\n")
		return fmt.Errorf("%w: %s", err, first)
	}
	return nil
}
