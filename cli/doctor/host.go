// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nft"
)

// privileges checks that this process has CAP_NET_ADMIN and that /proc/sys can be written. In a
// rootless container neither is true.
func privileges(_ context.Context, n *Node) (found []Finding, err error) {
	if err := n.Kernel.NFT.Status(); errors.Is(err, unix.EPERM) {
		found = append(found, problem("no permission to read the firewall (CAP_NET_ADMIN)", "run doctor as root"))
	}
	key := filepath.Join(n.Paths.Proc, "sys/net/ipv4/ip_forward")
	if err := unix.Access(key, unix.W_OK); errors.Is(err, unix.EROFS) {
		found = append(found, warning("/proc/sys is read-only, so plugins cannot set forwarding and other sysctls",
			"set them on the host, or run the runtime with a /proc/sys that can be written"))
	}
	for _, dir := range [...]string{n.Paths.Run, n.Paths.CNI} {
		if there := existing(dir); errors.Is(unix.Access(there, unix.W_OK), unix.EROFS) {
			found = append(found, problem(dir+" is on a read-only file system: a plugin that keeps state there can neither ADD nor DEL", "mount -o remount,rw what %s is on", there))
		}
	}
	return found, nil
}

// existing returns dir, or its nearest parent that exists.
func existing(dir string) string {
	for dir != filepath.Dir(dir) {
		if _, err := os.Lstat(dir); err == nil {
			break
		}
		dir = filepath.Dir(dir)
	}
	return dir
}

// forwarding checks that forwarding is on for each address family in which containers use this
// host as their gateway. Plugins switch it on, but a sysctl service or a network manager may
// switch it off again.
func forwarding(_ context.Context, n *Node) (found []Finding, err error) {
	for _, f := range [...]struct {
		key  string
		v6   bool
		name string
	}{{"net/ipv4/ip_forward", false, "IPv4"}, {"net/ipv6/conf/all/forwarding", true, "IPv6"}} {
		v, ok := n.sysctlNumber(f.key)
		users := n.routed(f.v6)
		if !ok || v != 0 || len(users) == 0 {
			continue
		}
		found = append(found, problem(
			fmt.Sprintf("%s forwarding is off, so containers of %s reach nothing beyond this host", f.name, strings.Join(users, ", ")),
			"%s; find who switches it off: grep -r forward /etc/sysctl.d /run/sysctl.d /usr/lib/sysctl.d", setBy(f.key, "1")))
	}
	more, err := n.waysForward()
	if err != nil {
		return append(found, more...), err
	}
	lost, err := n.unadvertised()
	return slices.Concat(found, more, lost), err
}

// unadvertised finds IPv6 default routes that end because the host forwards, and so ignores router advertisements.
func (n *Node) unadvertised() (found []Finding, err error) {
	if on, _ := n.sysctlNumber("net/ipv6/conf/all/forwarding"); on == 0 {
		return nil, nil
	}
	links, err := netstate.Advertised(n.Host)
	for _, name := range links {
		key := netstate.AcceptRAKey(name)
		found = append(found, problem(fmt.Sprintf("the IPv6 default route by %s comes from router advertisements, which a host that forwards ignores: it ends with its lifetime", name), "%s", setBy(key, "2")))
	}
	return found, err
}

// waysForward checks the interfaces with a default route. The kernel forwards an IPv4 packet only
// if forwarding is on for the interface through which the packet came in. If it is off, the
// kernel drops answers from outside. IPv6 has no such setting for each interface.
func (n *Node) waysForward() (found []Finding, err error) {
	users := n.routed(false)
	if len(users) == 0 {
		return nil, nil
	}
	ways, err := n.waysOut(unix.AF_INET)
	for _, name := range ways {
		key := "net/ipv4/conf/" + name + "/forwarding"
		if v, ok := n.sysctlNumber(key); !ok || v != 0 {
			continue
		}
		if all, _ := n.sysctlNumber("net/ipv4/ip_forward"); all != 0 {
			found = append(found, problem(fmt.Sprintf("IPv4 forwarding is off for packets from %s, so containers of %s get no answers from there", name, strings.Join(users, ", ")), "%s", setBy(key, "1")))
		}
	}
	return found, err
}

// routed returns the networks that have attachments in an address family and whose packets this
// host routes.
func (n *Node) routed(v6 bool) (names []string) {
	live := n.liveAddresses()
	for _, net := range n.Networks {
		gateway := slices.ContainsFunc(net.Members, func(m Member) bool {
			return m.Type == "ptp" || m.Type == "bridge" && !m.internal() && m.gateway()
		})
		if gateway && slices.ContainsFunc(live[net.Name], func(a netip.Addr) bool { return a.Is6() == v6 }) {
			names = append(names, net.Name)
		}
	}
	return names
}

// liveAddresses returns the addresses of attachments that may be alive, by network, from the
// cached results.
func (n *Node) liveAddresses() map[string][]netip.Addr {
	out := make(map[string][]netip.Addr)
	_, list, _ := n.liveAttachments() // the check attachments reports files that cannot be read
	for _, a := range list {
		if a.Result == nil {
			continue
		}
		for _, ip := range a.Result.IPs {
			out[a.Network] = append(out[a.Network], ip.Address.Addr().Unmap())
		}
	}
	return out
}

// reversePaths warns about a strict reverse path filter. With more than one default route, or
// with policy rules, a packet may come in through one interface and its answer leave through
// another. A strict filter drops such a packet.
func reversePaths(_ context.Context, n *Node) (found []Finding, err error) {
	ways, err := n.waysOut(unix.AF_UNSPEC)
	if err != nil {
		return nil, err
	}
	rules, err := n.Host.RuleList(netlink.FAMILY_V4)
	if err != nil {
		return nil, fmt.Errorf("list rules: %w", err)
	}
	why := ""
	switch {
	case len(ways) > 1:
		why = fmt.Sprintf("there are %d uplinks (%s)", len(ways), strings.Join(ways, ", "))
	case len(rules) > 3: // the rules local, main and default always exist
		why = fmt.Sprintf("there are %d policy routing rules", len(rules)-3)
	default:
		return nil, nil
	}
	for _, name := range ways {
		if n.strict(name) {
			found = append(found, warning(
				fmt.Sprintf("the reverse path filter of %s is strict and %s: answers that arrive on another interface are silently dropped", name, why),
				"%s (loose)", setBy("net/ipv4/conf/"+name+"/rp_filter", "2")))
		}
	}
	return found, nil
}

// strict reports whether the reverse path filter of an interface is strict. The kernel uses the
// higher one of two values: the interface's and that of "all". 1 is strict, 2 is loose
// (Documentation/networking/ip-sysctl.rst).
func (n *Node) strict(name string) bool {
	all, _ := n.sysctlNumber("net/ipv4/conf/all/rp_filter")
	own, _ := n.sysctlNumber("net/ipv4/conf/" + name + "/rp_filter")
	return max(all, own) == 1
}

// waysOut returns the links with a default route in any table. family selects the address
// family; AF_UNSPEC selects both.
func (n *Node) waysOut(family int) (names []string, err error) {
	routes, err := n.routes()
	if err != nil {
		return nil, err
	}
	for _, r := range routes {
		if !isDefault(r) || family != unix.AF_UNSPEC && r.Family != family {
			continue
		}
		for _, index := range outLinks(r) {
			link, err := n.Host.LinkAt(index)
			if err == nil && !slices.Contains(names, link.Attrs().Name) {
				names = append(names, link.Attrs().Name)
			}
		}
	}
	return names, nil
}

func isDefault(r netlink.Route) bool {
	if r.Dst == nil {
		return r.Type == unix.RTN_UNICAST
	}
	ones, _ := r.Dst.Mask.Size()
	return ones == 0 && r.Type == unix.RTN_UNICAST
}

func outLinks(r netlink.Route) (indexes []int) {
	for _, hop := range r.MultiPath {
		indexes = append(indexes, hop.LinkIndex)
	}
	if r.LinkIndex > 0 {
		indexes = append(indexes, r.LinkIndex)
	}
	return indexes
}

// routes returns the routes of both families in all tables except local.
func (n *Node) routes() ([]netlink.Route, error) {
	list, err := n.Host.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return nil, fmt.Errorf("list routes: %w", err)
	}
	return slices.DeleteFunc(list, func(r netlink.Route) bool { return r.Table == unix.RT_TABLE_LOCAL }), nil
}

// bridgeNetfilter warns about the module br_netfilter. With it, frames between two ports of one
// bridge pass the forward chain too. Users whose FORWARD chain drops do not expect that, but
// kube-proxy needs the module.
func bridgeNetfilter(_ context.Context, n *Node) (found []Finding, err error) {
	const key = "net/bridge/bridge-nf-call-iptables"
	on, _ := n.sysctlNumber(key)
	bridges := n.networksWith("bridge")
	names := slices.DeleteFunc(slices.Clone(bridges), func(name string) bool { return slices.Contains(n.networksWith("firewall"), name) })
	if len(bridges) == 0 {
		return nil, nil
	}
	drops, err := n.forwardDrops()
	if err != nil {
		return nil, err
	}
	if on == 1 && len(drops) > 0 && len(names) > 0 {
		found = append(found, warning(
			fmt.Sprintf("frames between containers of one bridge pass the firewall (br_netfilter), and %s drops: containers of %s may not reach each other",
				drops[0].name, strings.Join(names, ", ")),
			"%s, unless kube-proxy needs it; or the plugin firewall in the networks", setBy(key, "0")))
	}
	kube, err := n.kubeProxy()
	if err == nil && kube && on == 0 {
		found = append(found, warning(
			"kube-proxy works here but bridged traffic does not pass iptables: a pod does not reach a Service that leads to a pod on its own bridge",
			"modprobe br_netfilter, a file in /etc/modules-load.d, and %s", setBy(key, "1")))
	}
	return found, err
}

// networksWith returns the names of the networks that have a plugin of this type.
func (n *Node) networksWith(pluginType string) (names []string) {
	for _, net := range n.Networks {
		if slices.ContainsFunc(net.Members, func(m Member) bool { return m.Type == pluginType }) {
			names = append(names, net.Name)
		}
	}
	return names
}

// kubeProxy reports whether kube-proxy has written iptables rules on this host.
func (n *Node) kubeProxy() (bool, error) {
	got, err := n.Kernel.NFT.ReadPresence(nft.Ref{Family: 2, Table: "nat", Chain: "KUBE-SERVICES"}, nft.Ref{Family: 2, Table: "kube-proxy"})
	if err != nil {
		return false, err
	}
	return got[0].Found, nil
}

// conntrackTable warns before the connection table is full. A full table makes the kernel drop
// new connections.
func conntrackTable(_ context.Context, n *Node) (found []Finding, err error) {
	count, ok := n.sysctlNumber("net/netfilter/nf_conntrack_count")
	most, ok2 := n.sysctlNumber("net/netfilter/nf_conntrack_max")
	if !ok || !ok2 || most == 0 {
		return nil, nil // connection tracking is not used
	}
	what := fmt.Sprintf("%d of %d entries of the connection table are used", count, most)
	fix := setBy("net/netfilter/nf_conntrack_max", fmt.Sprint(2*most))
	switch {
	case count*100 >= most*95:
		return []Finding{problem(what+": new connections are dropped", "%s", fix)}, nil
	case count*100 >= most*75:
		return []Finding{warning(what+"; when it is full, new connections are dropped", "%s", fix)}, nil
	}
	return nil, nil
}
