// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strings"

	"github.com/containernetworking/cni/libcni"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/daemons/node/plan"
	"github.com/patchbay-net/patchbay/internal/mesh"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/podnet"
)

// The experiment packets has two nodes, with the numbers 0 and 1.

// wireLink is the uplink of both nodes.
const wireLink = "wire0"

// podMTU is the MTU that flannel and patchbayd node give pods on an uplink of 1500 bytes. A VXLAN
// tunnel adds 50 bytes.
const podMTU = 1450

// flannelNet is the network to which flannel delegates.
const flannelNet = `{"cniVersion":"1.0.0","name":"cbr0","plugins":[
{"type":"bridge","bridge":"cni0","mtu":%d,"isGateway":true,"isDefaultGateway":true,"ipMasq":false,"hairpinMode":true,
 "ipam":{"type":"host-local","ranges":[[{"subnet":"%s"}]],"routes":[{"dst":"10.210.0.0/16"}]}},
{"type":"portmap","capabilities":{"portMappings":true}}]}`

// flannelRules are the rules that flannel makes on a node with --ip-masq, as its manifest starts
// it. The bridge's packets see them too, because the kernel passes them to iptables
// (bridge-nf-call-iptables), as kube-proxy needs.
const flannelRules = `*nat
:FLANNEL-POSTRTG -
-A POSTROUTING -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG
-A FLANNEL-POSTRTG -m mark --mark 0x4000/0x4000 -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG -s %[1]s -d %[2]s -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG -s %[2]s -d %[1]s -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG ! -s %[2]s -d %[1]s -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG -s %[2]s ! -d 224.0.0.0/4 -m comment --comment "flanneld masq" -j MASQUERADE --random-fully
-A FLANNEL-POSTRTG ! -s %[2]s -d %[2]s -m comment --comment "flanneld masq" -j MASQUERADE --random-fully
COMMIT
*filter
:FLANNEL-FWD -
-A FORWARD -m comment --comment "flanneld forward" -j FLANNEL-FWD
-A FLANNEL-FWD -s %[2]s -m comment --comment "flanneld forward" -j ACCEPT
-A FLANNEL-FWD -d %[2]s -m comment --comment "flanneld forward" -j ACCEPT
COMMIT
`

func clusterCIDR() netip.Prefix { return netip.MustParsePrefix("10.210.0.0/16") }

// podCIDR returns the address range of a node's pods.
func podCIDR(node int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 210, byte(node), 0}), 24)
}

// wireAddr returns a node's address on the link between the nodes.
func wireAddr(node int) netip.Addr { return netip.AddrFrom4([4]byte{172, 30, 0, byte(1 + node)}) }

func prefixNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// podList returns the network of a set's pods on a node.
func podList(set string, node int) (*libcni.NetworkConfigList, error) {
	text := fmt.Appendf(nil, flannelNet, podMTU, podCIDR(node))
	if set != reference {
		network := podnet.Network{Cluster: []netip.Prefix{clusterCIDR()}, Node: []netip.Prefix{podCIDR(node)}, MTU: podMTU}
		text = network.Text()
	}
	return libcni.ConfListFromBytes(text)
}

// pod attaches a pod and starts its server.
func (w *worker) pod(req request) error {
	list, err := podList(req.Chain, req.N)
	if err != nil {
		return err
	}
	ns, err := sandbox(req.Pod)
	if err != nil {
		return err
	}
	rt := w.container(ns)
	rt.CapabilityArgs = nil
	rt.Args = [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", "ns0"}, {"K8S_POD_NAME", req.Pod}}
	if _, err := w.cni.AddNetworkList(context.Background(), list, rt); err != nil {
		return fmt.Errorf("attach %s: %w", req.Pod, err)
	}
	return startServer(req.Pod)
}

// way makes this node's route to the pods of the other node.
func (w *worker) way(req request) error {
	if err := wireUp(req.N); err != nil {
		return err
	}
	if strings.HasPrefix(w.node.Name, reference) {
		return flannelWay(req.Chain, req.N)
	}
	return w.meshWay(req.Chain, req.N)
}

// masquerade makes the rules of the node's agent. Those of patchbayd node are in its network.
func masquerade(req request) error {
	if req.Chain != reference {
		return nil
	}
	restore := exec.Command("iptables-nft-restore", "--noflush")
	restore.Stdin = strings.NewReader(fmt.Sprintf(flannelRules, podCIDR(req.N), clusterCIDR()))
	if out, err := restore.CombinedOutput(); err != nil {
		return fmt.Errorf("make flannel's rules: %w: %s", err, out)
	}
	return nil
}

func wireUp(node int) error {
	link, err := netlink.LinkByName(wireLink)
	if err != nil {
		return err
	}
	addr := &netlink.Addr{IPNet: prefixNet(netip.PrefixFrom(wireAddr(node), 24))}
	if err := netlink.AddrReplace(link, addr); err != nil {
		return err
	}
	return netlink.LinkSetUp(link)
}

// meshWay makes the routes that patchbayd node makes.
func (w *worker) meshWay(way string, node int) error {
	m, err := mesh.Open(mesh.Options{Paths: paths.Default()})
	if err != nil {
		return err
	}
	defer m.Close()
	other, transport := 1-node, mesh.Auto
	if way == vxlan {
		transport = mesh.VXLAN
	}
	self := plan.Settings{Node: fmt.Sprint("node", node), Cluster: []netip.Prefix{clusterCIDR()}}.Mesh()
	self.Underlay, self.Blocks = []netip.Addr{wireAddr(node)}, []netip.Prefix{podCIDR(node)}
	peer := mesh.Peer{
		ID: fmt.Sprint("node", other), Transport: transport,
		Underlay: []netip.Addr{wireAddr(other)}, Blocks: []netip.Prefix{podCIDR(other)},
	}
	return m.Apply(context.Background(), self, []mesh.Peer{peer})
}

// flannelWay makes the routes that flannel makes: a static route, or a VXLAN device with fixed
// entries.
func flannelWay(way string, node int) error {
	other := 1 - node
	route := &netlink.Route{Dst: prefixNet(podCIDR(other)), Gw: wireAddr(other).AsSlice()}
	if way == vxlan {
		device, err := flannelDevice(node)
		if err != nil {
			return err
		}
		route.Gw, route.LinkIndex = podCIDR(other).Addr().AsSlice(), device.Attrs().Index
		route.Flags = int(netlink.FLAG_ONLINK)
	}
	return netlink.RouteReplace(route)
}

// flannelMAC returns the Ethernet address of a node's VXLAN device.
func flannelMAC(node int) net.HardwareAddr { return net.HardwareAddr{2, 0, 0, 0, 0, byte(node)} }

func flannelDevice(node int) (netlink.Link, error) {
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU, attrs.HardwareAddr = "flannel.1", podMTU, flannelMAC(node)
	device := &netlink.Vxlan{LinkAttrs: attrs, VxlanId: 1, Port: 8472, SrcAddr: wireAddr(node).AsSlice(), Learning: false}
	if err := netlink.LinkAdd(device); err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, fmt.Errorf("make flannel.1: %w", err)
	}
	link, err := netlink.LinkByName(attrs.Name)
	if err != nil {
		return nil, err
	}
	if err := netlink.AddrReplace(link, &netlink.Addr{IPNet: prefixNet(netip.PrefixFrom(podCIDR(node).Addr(), 32))}); err != nil {
		return nil, err
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return nil, err
	}
	other := 1 - node
	for _, neigh := range []*netlink.Neigh{
		{Family: unix.AF_INET, IP: podCIDR(other).Addr().AsSlice()},
		{Family: unix.AF_BRIDGE, Flags: netlink.NTF_SELF, IP: wireAddr(other).AsSlice()},
	} {
		neigh.LinkIndex, neigh.State, neigh.HardwareAddr = link.Attrs().Index, netlink.NUD_PERMANENT, flannelMAC(other)
		if err := netlink.NeighSet(neigh); err != nil {
			return nil, fmt.Errorf("set the entry of the other node: %w", err)
		}
	}
	return link, nil
}
