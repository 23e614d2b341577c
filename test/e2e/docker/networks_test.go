// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/test/e2e/docker/lab"
)

// create makes a Docker network from a CNI configuration and removes it at the end of the test.
func create(l *lab.Lab, name, text string) {
	l.Helper()
	l.Conf(name, text)
	l.Docker("network", "create", "-d", "patchbay", "--ipam-driver", "null", "-o", "cni.network="+name, name)
}

// sixOnly: Docker 28 and later accept a network without IPv4. Older releases refuse --ipv6 with the
// IPAM driver null, so the test gives them a configuration without IPv4. These releases add
// docker_gwbridge for the missing IPv4 gateway, and resolve no name.
func sixOnly(l *lab.Lab) {
	text := `{"cniVersion":"1.1.0","name":"sixnet","plugins":[{"type":"bridge","bridge":"cni6","isGateway":true,"ipMasq":true,
		"ipam":{"type":"host-local","ranges":[[{"subnet":"fd66::/64"}]],"routes":[{"dst":"::/0"}]}},
		{"type":"firewall"},{"type":"portmap","capabilities":{"portMappings":true}}]}`
	if l.API >= docker28 {
		l.Conf("sixnet", text)
		l.Post("/networks/create", map[string]any{"Name": "sixnet", "Driver": "patchbay", "IPAM": map[string]string{"Driver": "null"},
			"Options": map[string]string{"cni.network": "sixnet"}, "EnableIPv4": false, "EnableIPv6": true})
	} else {
		create(l, "sixnet", text)
	}
	l.Start("c1", "sixnet", "-p", "8080:80")
	l.Start("c2", "sixnet")
	if v4 := l.Inspect("c1", "sixnet", "IPAddress"); v4 != "" && v4 != "invalid IP" {
		l.Errorf("IPv4 address %s", v4)
	}
	if got := l.Exec("c1", "ip", "-4", "-o", "addr", "show", "eth0"); got != "" {
		l.Errorf("IPv4 addresses: %s", got)
	}
	l.Ping("c2", l.Inspect("c1", "sixnet", "GlobalIPv6Address"))
	if l.API >= docker28 {
		l.Ping("c2", "c1")
		l.Ping("c2", lab.Outside6)
	}
	l.Fetch(l.Outside(), lab.Host6, "8080")
	l.Remove("c1", "c2")
	l.Docker("network", "rm", "sixnet")
	if l.API < docker28 {
		l.Docker("network", "rm", "docker_gwbridge")
	}
}

// outside: containers reach the outside over IPv4 and IPv6.
func outside(l *lab.Lab) {
	for _, network := range []string{"podnet", "ptpnet"} {
		l.Start("c1", network)
		l.Ping("c1", lab.Outside4)
		l.Ping("c1", lab.Outside6)
		l.Remove("c1")
	}
}

// defaultVia returns a container's default gateway of one family ("-4", "-6"). If the container has
// none or several, it returns the invalid address.
func defaultVia(l *lab.Lab, name, family string) (via netip.Addr) {
	l.Helper()
	for _, line := range strings.Split(l.Exec(name, "ip", family, "route"), "\n") {
		rest, ok := strings.CutPrefix(line, "default via ")
		if !ok {
			continue
		}
		if via.IsValid() {
			return netip.Addr{}
		}
		text, _, _ := strings.Cut(rest, " ")
		via, _ = netip.ParseAddr(text)
	}
	return via
}

// gateways: of a container's two networks, priority or else the name decides which has the default
// routes. The published ports move with the default routes.
func gateways(l *lab.Lab) {
	l.Docker("create", "--name", "c1", "--network", "podnet", "-p", "8080:80", "bb", "httpd", "-f", "-p", "80")
	first, second := gateway{"podnet", 91}, gateway{"ptpnet", 93}
	connect := func(network string) { l.Docker("network", "connect", network, "c1") }
	if l.API >= docker28 {
		connect = func(network string) {
			l.Post("/networks/"+network+"/connect", map[string]any{"Container": "c1", "EndpointConfig": map[string]int{"GwPriority": 10}})
		}
		first, second = second, first
	}
	connect("ptpnet")
	l.Docker("start", "c1")
	first.serves(l, "started")
	l.Docker("network", "disconnect", first.network, "c1")
	second.serves(l, "disconnected")
	connect(first.network)
	first.serves(l, "connected")
	l.Docker("network", "disconnect", second.network, "c1")
	first.serves(l, "the other disconnected")
	l.Remove("c1")
}

// gateway is the network that has a container's default routes. number is the argument of ipamOf
// for it.
type gateway struct {
	network string
	number  int
}

// serves checks that c1 is reached, and reaches the outside, only through this network.
func (g gateway) serves(l *lab.Lab, when string) {
	l.Helper()
	for family, subnet := range map[string]string{"-4": fmt.Sprintf("10.%d.0.0/24", g.number), "-6": fmt.Sprintf("fd%d::/64", g.number)} {
		if via := defaultVia(l, "c1", family); !netip.MustParsePrefix(subnet).Contains(via) {
			l.Errorf("%s: the default route %s is by %s, not %s", when, family, via, g.network)
		}
	}
	if ps := l.In(l.Patchbayd, "docker", "ps"); strings.Count(ps, ":8080->80/tcp") != 1 {
		l.Errorf("%s: ports\n%s", when, ps)
	}
	served(l)
	l.Ping("c1", lab.Outside4)
	l.Ping("c1", lab.Outside6)
}

// hostAddresses: a port that is published on one address of the host is open on no other address.
func hostAddresses(l *lab.Lab) {
	l.Start("c1", "podnet", "-p", "127.0.0.1:8081:80", "-p", lab.Host4+":8082:80", "-p", "["+lab.Host6+"]:8083:80", "-p", "8084:80")
	out := l.Outside()
	l.Fetch(l.Here(), "127.0.0.1", "8081")
	l.Closed(out, lab.Host4, "8081")
	l.Fetch(out, lab.Host4, "8082")
	l.Fetch(l.Here(), lab.Host4, "8082")
	l.Closed(out, lab.Host6, "8082")
	l.Fetch(out, lab.Host6, "8083")
	l.Closed(out, lab.Host4, "8083")
	for _, host := range []string{lab.Host4, lab.Host6} {
		l.Fetch(out, host, "8084")
		l.Fetch(l.Here(), host, "8084")
		l.Fetch(l.Of("c1"), host, "8084") // hairpin
	}
	l.Fetch(l.Here(), "127.0.0.1", "8084")
	l.Remove("c1")
	l.Closed(out, lab.Host4, "8084")
}

// ipvlan: networks of ipvlan, if the kernel supports them.
func ipvlan(l *lab.Lab) {
	kind := nettest.LinkKind("ipvlan")
	nettest.Need(l, nettest.Feature{Name: kind.Name, Probe: func() error { return l.Do(kind.Probe) }})
	create(l, "ipnet", `{"cniVersion":"1.1.0","name":"ipnet","plugins":[{"type":"ipvlan","master":"out0",`+ipamOf(97)+`}]}`)
	l.Start("c1", "ipnet")
	l.Start("c2", "ipnet")
	l.Ping("c2", "c1")
	l.Ping("c2", l.Inspect("c1", "ipnet", "GlobalIPv6Address"))
	l.Remove("c1", "c2")
	l.Docker("network", "rm", "ipnet")
}

// wholeChain: a network whose chain is packed into one plugin (`type: patchbay`).
func wholeChain(l *lab.Lab) {
	create(l, "whole", `{"cniVersion":"1.1.0","name":"whole","plugins":[{"type":"patchbay","capabilities":{"portMappings":true},"plugins":[
		{"type":"bridge","bridge":"cniw","isGateway":true,"ipMasq":true,`+ipamOf(96)+`},
		{"type":"firewall"},{"type":"portmap","capabilities":{"portMappings":true}}]}]}`)
	l.Start("c1", "whole", "-p", "8080:80")
	l.Start("c2", "whole")
	l.Ping("c2", "c1")
	l.Ping("c2", l.Inspect("c1", "whole", "GlobalIPv6Address"))
	l.Ping("c2", lab.Outside4)
	l.Fetch(l.Outside(), lab.Host4, "8080")
	l.Remove("c1", "c2")
	l.Docker("network", "rm", "whole")
}

// names: Docker's DNS server resolves containers' names and aliases, and their addresses back to
// names.
func names(l *lab.Lab) {
	l.Start("c1", "podnet", "--network-alias", "web")
	l.Start("c2", "podnet")
	v4, v6 := l.Inspect("c1", "podnet", "IPAddress"), l.Inspect("c1", "podnet", "GlobalIPv6Address")
	for _, name := range []string{"c1", "web"} {
		got := l.Exec("c2", "nslookup", name, "127.0.0.11")
		if !strings.Contains(got, v4) || !strings.Contains(got, netip.MustParseAddr(v6).String()) {
			l.Errorf("%s is %s, %s: %s", name, v4, v6, got)
		}
		l.Ping("c2", name)
	}
	if got := l.Exec("c2", "nslookup", v4, "127.0.0.11"); !strings.Contains(got, "c1.podnet") {
		l.Errorf("PTR of %s: %s", v4, got)
	}
	l.Remove("c1", "c2")
}

// leased: containers on a bridge and on a macvlan get addresses from a DHCP server outside, and
// patchbayd dhcp keeps their leases.
func leased(l *lab.Lab) {
	server := l.Dnsmasq("--dhcp-range=192.0.2.100,192.0.2.150,255.255.255.0,2m", "--dhcp-option=option:router,"+lab.Outside4)
	keeper := l.Keeper()
	defer keeper.Stop()
	defer server.Stop()
	for _, first := range []string{`"type":"bridge","bridge":"out0"`, `"type":"macvlan","master":"out0"`} {
		create(l, "dhcpnet", fmt.Sprintf(`{"cniVersion":"1.1.0","name":"dhcpnet","plugins":[{%s,"ipam":{"type":"dhcp"}}]}`, first))
		l.Start("c1", "dhcpnet")
		l.Start("c2", "dhcpnet")
		v4 := l.Inspect("c1", "dhcpnet", "IPAddress")
		if !netip.MustParsePrefix("192.0.2.0/24").Contains(netip.MustParseAddr(v4)) || !strings.Contains(l.Exec("c1", "ip", "addr"), v4+"/24") {
			l.Errorf("inspect shows %s", v4)
		}
		l.Ping("c1", lab.Outside4)
		l.Ping("c2", "c1")
		l.Docker("restart", "-t", "0", "c1")
		l.Ping("c2", "c1")
		l.Remove("c1", "c2")
		leases := l.Dir("dnsmasq") + "/leases"
		l.Eventually("the server has its addresses back", func() bool { return !strings.Contains(l.In("cat", leases), "192.0.2.") })
		l.Docker("network", "rm", "dhcpnet")
	}
}

// beside: our networks work although Docker's firewall, or another program, sets the policy of
// FORWARD to drop.
func beside(l *lab.Lab) {
	l.In("sh", "-ec", "iptables -P FORWARD DROP; ip6tables -P FORWARD DROP")
	l.Start("docker0", "bridge")
	l.Start("c1", "podnet", "-p", "8080:80")
	l.Start("c2", "ptpnet", "-p", "8081:80")
	l.Start("c3", "podnet")
	out := l.Outside()
	for _, port := range []string{"8080", "8081"} {
		for _, host := range []string{lab.Host4, lab.Host6} {
			l.Fetch(out, host, port)
			l.Fetch(l.Here(), host, port)
			l.Fetch(l.Of("c3"), host, port)
		}
		l.Fetch(l.Of("docker0"), lab.Host4, port)
	}
	for _, to := range []string{lab.Outside4, lab.Outside6, "c1", l.Inspect("c1", "podnet", "GlobalIPv6Address")} {
		l.Ping("c3", to)
	}
	l.Ping("c2", lab.Outside4)
	l.Remove("c1", "c2", "c3", "docker0")
}
