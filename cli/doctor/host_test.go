// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"net"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/nftables"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
)

func TestForwarding(t *testing.T) {
	b := newBench(t)
	b.network("pods", `{"type":"bridge","bridge":"br0","isGateway":true,
		"ipam":{"type":"host-local","ranges":[[{"subnet":"10.88.0.0/24"}],[{"subnet":"fd88::/64"}]]}}`)
	b.network("l2", `{"type":"bridge","bridge":"br1","ipam":{"type":"host-local","subnet":"10.89.0.0/24"}}`)
	b.attach("l2", "c2")
	b.healthy("forwarding") // the host is not a gateway
	b.attach("pods", "c1")
	b.healthy("forwarding")
	b.sysctl("net/ipv4/ip_forward", "0")
	b.sysctl("net/ipv6/conf/all/forwarding", "0")
	b.finds("forwarding", "problem: IPv4 forwarding is off, so containers of pods reach nothing", "problem: IPv6 forwarding is off")
}

// A host that forwards ignores router advertisements, unless accept_ra is 2, and its default route from them ends.
func TestRouterAdvertisements(t *testing.T) {
	b := newBench(t)
	up := b.veth("up0", "")
	index := up.Attrs().Index
	b.must(netlink.RouteAdd(&netlink.Route{LinkIndex: index, Dst: &net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}, Protocol: unix.RTPROT_RA}))
	b.sysctl("net/ipv6/conf/up0/accept_ra", "1")
	b.healthy("forwarding") // the host does not forward
	b.sysctl("net/ipv6/conf/up0/accept_ra", "2")
	b.sysctl("net/ipv6/conf/all/forwarding", "1")
	b.healthy("forwarding")
	b.sysctl("net/ipv6/conf/up0/accept_ra", "1")
	b.finds("forwarding", "problem: the IPv6 default route by up0 comes from router advertisements, which a host that forwards ignores: it ends with its lifetime")
	if fix := b.check("forwarding")[0].Fix; !strings.HasPrefix(fix, "sysctl -w net.ipv6.conf.up0.accept_ra=2") {
		t.Errorf("advice: %s", fix)
	}
	b.sysctl("net/ipv6/conf/up0/accept_ra", "0") // another program handles advertisements
	b.healthy("forwarding")
}

func TestReversePaths(t *testing.T) {
	b := newBench(t)
	up, other := b.veth("up0", "192.0.2.2/24"), b.veth("up1", "198.51.100.2/24")
	b.defaultRoute(up, "192.0.2.1", 0)
	for _, name := range []string{"all", "up0", "up1"} {
		b.sysctl("net/ipv4/conf/"+name+"/rp_filter", "0")
	}
	b.sysctl("net/ipv4/conf/up0/rp_filter", "1")
	b.healthy("rp-filter") // with one default route, a strict filter is right
	rule := netlink.NewRule()
	rule.Table, rule.Priority, rule.Family = 100, 100, netlink.FAMILY_V4
	b.must(netlink.RuleAdd(rule))
	b.finds("rp-filter", "warning: the reverse path filter of up0 is strict and there are 1 policy routing rules")
	b.must(netlink.RuleDel(rule))
	b.defaultRoute(other, "198.51.100.1", 100)
	b.finds("rp-filter", "warning: the reverse path filter of up0 is strict and there are 2 uplinks")
	b.sysctl("net/ipv4/conf/all/rp_filter", "2") // the higher value counts
	b.healthy("rp-filter")
}

// chain makes a base chain at the forward hook.
func (b *bench) chain(family nftables.TableFamily, table, name string, policy nftables.ChainPolicy) {
	b.Helper()
	c := &nftables.Conn{}
	t := c.AddTable(&nftables.Table{Family: family, Name: table})
	c.AddChain(&nftables.Chain{
		Table: t, Name: name, Type: nftables.ChainTypeFilter,
		Hooknum: nftables.ChainHookForward, Priority: nftables.ChainPriorityFilter, Policy: &policy,
	})
	b.must(c.Flush())
}

func TestOtherDrops(t *testing.T) {
	b := newBench(t)
	b.chain(nftables.TableFamilyINet, "mine", "forward", nftables.ChainPolicyDrop)
	b.healthy("drop") // no attachment of ours
	b.network("pods", pods)
	b.finds("drop", "warning: the nftables chain inet mine forward drops forwarded traffic by policy")
	b.chain(nftables.TableFamilyINet, "mine", "forward", nftables.ChainPolicyAccept)
	b.healthy("drop")
	nettest.Need(b, nettest.Program("nft"))
	b.output(exec.Command("nft", "add table inet asleep { flags dormant; }; add chain inet asleep f { type filter hook forward priority 0; policy drop; }"))
	b.healthy("drop") // the kernel does not run the chain
	b.chain(nftables.TableFamilyINet, "firewalld", "filter_FORWARD", nftables.ChainPolicyAccept)
	b.finds("drop", "warning: firewalld is running, and no container is in one of its zones")
}

// iptables-nft has the policy DROP. The plugin firewall accepts its networks, and the others are
// cut off.
func TestIPTablesDrops(t *testing.T) {
	b := newBench(t)
	b.network("pods", pods)
	b.network("bare", `{"type":"bridge","bridge":"br1","ipam":{"type":"host-local","subnet":"10.89.0.0/24"}}`)
	b.run("iptables-nft", "-P", "FORWARD", "DROP")
	b.finds("drop", "problem: nothing accepts that of network bare (10.89.0.0/24)")
	b.attach("pods", "c1")
	b.finds("drop", "problem: network bare")
	b.run("iptables-nft", "-F", "FORWARD")
	b.finds("drop", "problem: network bare", "problem: network pods")
	b.fakeSysctl("net/bridge/bridge-nf-call-iptables", "1")
	b.finds("br-netfilter", "warning: frames between containers of one bridge pass the firewall (br_netfilter), and ip filter FORWARD drops: containers of bare may not reach each other")
}

func (b *bench) run(name string, args ...string) {
	b.Helper()
	nettest.Need(b, nettest.Program(name))
	if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
		b.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
}

func TestLegacyDrops(t *testing.T) {
	b := newBench(t)
	b.network("pods", pods)
	b.run("iptables-legacy", "-A", "FORWARD", "-j", "DROP")
	b.finds("drop", "problem: the FORWARD chain of iptables-legacy drops")
	b.run("iptables-legacy", "-F", "FORWARD")
	b.healthy("drop")
}

func TestBridgeNetfilter(t *testing.T) {
	b := newBench(t)
	b.fakeSysctl("net/bridge/bridge-nf-call-iptables", "0")
	b.chain(nftables.TableFamilyIPv4, "nat", "KUBE-SERVICES", nftables.ChainPolicyAccept)
	b.healthy("br-netfilter") // no bridge of ours
	b.network("pods", pods)
	b.finds("br-netfilter", "warning: kube-proxy works here but bridged traffic does not pass iptables")
	b.fakeSysctl("net/bridge/bridge-nf-call-iptables", "1")
	b.healthy("br-netfilter")
}

func TestConntrackTable(t *testing.T) {
	b := newBench(t)
	b.healthy("conntrack") // the kernel's value
	b.fakeSysctl("net/netfilter/nf_conntrack_max", "1000")
	for count, want := range map[string]string{"10": "", "800": "warning: 800 of 1000", "990": "problem: new connections are dropped"} {
		b.fakeSysctl("net/netfilter/nf_conntrack_count", count)
		if want == "" {
			b.healthy("conntrack")
		} else {
			b.finds("conntrack", want)
		}
	}
}

func TestOurTable(t *testing.T) {
	b := newBench(t)
	b.network("pods", pods)
	b.healthy("firewall")
	b.attach("pods", "c1")
	b.healthy("firewall")
	c := &nftables.Conn{}
	c.FlushTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: nft.TableName}) // rules, not elements
	b.must(c.Flush())
	b.finds("firewall", "problem: our firewall tables were changed (")
	c.FlushRuleset()
	b.must(c.Flush())
	b.finds("firewall", "problem: pods/c1: masquerade is missing from the firewall (")
}

// A rootless container cannot write sysctls.
func TestPrivileges(t *testing.T) {
	b := newBench(t)
	b.healthy("privileges")
	b.must(unix.Unshare(unix.CLONE_NEWNS))
	b.must(unix.Mount("/proc/sys", "/proc/sys", "", unix.MS_BIND, ""))
	b.must(unix.Mount("", "/proc/sys", "", unix.MS_REMOUNT|unix.MS_BIND|unix.MS_RDONLY, ""))
	b.finds("privileges", "warning: /proc/sys is read-only")
}
