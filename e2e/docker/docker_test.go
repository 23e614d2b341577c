// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/e2e/docker/lab"
)

func ipamOf(n int) string {
	return fmt.Sprintf(`"ipam":{"type":"host-local","ranges":[[{"subnet":"10.%d.0.0/24"}],[{"subnet":"fd%d::/64"}]],"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]}`, n, n)
}

// The networks of the tests.
var (
	podnet = `{"cniVersion":"1.1.0","name":"podnet","plugins":[{"type":"bridge","bridge":"cni0","isGateway":true,"ipMasq":true,"hairpinMode":true,` + ipamOf(91) + `},
		{"type":"firewall"},{"type":"tuning","sysctl":{"net.core.somaxconn":"777"}},{"type":"portmap","capabilities":{"portMappings":true}}]}`
	ptpnet = `{"cniVersion":"1.1.0","name":"ptpnet","plugins":[{"type":"ptp","ipMasq":true,` + ipamOf(93) + `},{"type":"firewall"}]}`
	macnet = `{"cniVersion":"1.1.0","name":"macnet","plugins":[{"type":"macvlan","master":"out0",` + ipamOf(94) + `}]}`
)

// TestOld is Debian's dockerd.
func TestOld(t *testing.T) { scenarios(t, "old") }

// TestNew is the current dockerd.
func TestNew(t *testing.T) { scenarios(t, "new") }

// TestNFTables is the current dockerd with its nftables backend.
func TestNFTables(t *testing.T) {
	t.Parallel()
	l := lab.New(t, lab.Options{Name: "pbnft", Kind: "new", Args: []string{"--firewall-backend", "nftables"}})
	networks(l)
	each(l, []scenario{{"two containers", twoContainers}, {"ports", published}, {"outside", outside}, {"host addresses", hostAddresses}, {"beside", beside}, {"one network", oneNetwork}})
}

// scenario is a part of the test on one lab.
type scenario struct {
	name string
	fn   func(*lab.Lab)
}

func scenarios(t *testing.T, kind string) {
	t.Parallel()
	l := lab.New(t, lab.Options{Name: "pb" + kind, Kind: kind})
	networks(l)
	each(l, []scenario{
		{"two containers", twoContainers}, {"ports", published}, {"connect", connect}, {"addresses", addresses},
		{"internal", internal}, {"IPv6 only", sixOnly}, {"outside", outside}, {"gateways", gateways}, {"host addresses", hostAddresses},
		{"mistakes", mistakes}, {"overlap", overlap}, {"zero pool", zeroPool}, {"whole chain", wholeChain}, {"names", names}, {"DHCP", leased}, {"ipvlan", ipvlan}, {"beside", beside}, {"one network", oneNetwork},
		{"restart", restart}, {"driver killed", driverKilled}, {"dockerd killed", dockerdKilled},
	})
	l.Docker("network", "rm", "podnet", "ptpnet", "macnet")
	if left := l.Sh("ls /var/lib/patchbay/docker/networks /var/lib/patchbay/docker/pools | grep -v :"); left != "" {
		t.Errorf("networks left: %s", left)
	}
}

// networks makes those that the scenarios share.
func networks(l *lab.Lab) {
	l.Helper()
	create(l, "podnet", podnet)
	create(l, "ptpnet", ptpnet)
	create(l, "macnet", macnet)
}

// each runs scenarios one after the other. After each nothing is left.
func each(l *lab.Lab, list []scenario) {
	t, _ := l.TB.(*testing.T)
	for _, s := range list {
		t.Run(s.name, func(t *testing.T) {
			inner := l.With(t)
			defer inner.Tidy() // so that the next one can be judged
			s.fn(inner)
			inner.Gone(s.name)
		})
	}
}

func twoContainers(l *lab.Lab) {
	for _, network := range []string{"podnet", "ptpnet", "macnet"} {
		l.Start("c1", network)
		l.Start("c2", network)
		v4, v6, mac := l.Inspect("c1", network, "IPAddress"), l.Inspect("c1", network, "GlobalIPv6Address"), l.Inspect("c1", network, "MacAddress")
		links := l.Docker("exec", "c1", "ip", "addr")
		for _, want := range []string{v4 + "/", v6 + "/", mac} {
			if want == "/" || want == "" || !strings.Contains(links, want) {
				l.Errorf("%s: inspect shows %q, the container has\n%s", network, want, links)
			}
		}
		for _, to := range []string{"c1", v4, v6} {
			l.Ping("c2", to)
		}
		if io := l.Docker("stats", "--no-stream", "--format", "{{.NetIO}}", "c1"); strings.HasPrefix(io, "0B") || strings.HasPrefix(io, "--") {
			l.Errorf("%s: stats count %s", network, io)
		}
		if got := l.Docker("exec", "c1", "cat", "/proc/sys/net/core/somaxconn"); l.Kind == "new" && network == "podnet" && got != "777" {
			l.Errorf("somaxconn is %s", got)
		}
		l.Remove("c1", "c2")
	}
}

func published(l *lab.Lab) {
	l.Docker("run", "-d", "--name", "web", "--network", "podnet", "-p", "8080:80", "-p", "80", "-p", "9000-9005:80", "-p", "192.0.2.10:8081:80", "bb", "httpd", "-f", "-p", "80")
	ps := l.In(l.Patchbayd, "docker", "ps")
	ports := regexp.MustCompile(`:(\d+)->80/tcp`).FindAllStringSubmatch(ps, -1)
	if len(ports) != 4 {
		l.Fatalf("ps shows\n%s", ps)
	}
	for _, p := range ports {
		l.Fetch(l.Here(), lab.Host4, p[1])
	}
	if said := l.Refused("run", "--rm", "--network", "podnet", "-p", "8080:80", "bb", "true"); !strings.Contains(said, "another container's") {
		l.Errorf("a port twice: %s", said)
	}
	l.Remove("web")
}

func connect(l *lab.Lab) {
	l.Start("c1", "podnet")
	l.Start("c2", "ptpnet")
	l.Docker("network", "connect", "podnet", "c2")
	l.Ping("c2", l.Inspect("c1", "podnet", "IPAddress"))
	l.Docker("network", "disconnect", "podnet", "c2")
	l.Ping("c2", "10.93.0.1")
	l.Docker("network", "connect", "podnet", "c2")
	l.Ping("c1", "c2")
	l.Remove("c1", "c2")
}

func addresses(l *lab.Lab) {
	l.Docker("network", "create", "-d", "patchbay", "--ipv6", "-o", "cni.network=podnet",
		"--ipam-driver", "patchbay", "--ipam-opt", "cni.network=podnet", "--subnet", "10.91.0.0/24", "--subnet", "fd91::/64", "fixed")
	l.Start("c1", "fixed", "--ip", "10.91.0.77", "--mac-address", "02:42:0a:5b:00:4d")
	l.Start("c2", "fixed")
	l.Start("c3", "podnet", "--mac-address", "02:42:0a:5b:00:4e")
	for _, want := range [][3]string{{"c1", "IPAddress", "10.91.0.77"}, {"c1", "MacAddress", "02:42:0a:5b:00:4d"}} {
		if got := l.Inspect(want[0], "fixed", want[1]); got != want[2] {
			l.Errorf("%s is %s", want[1], got)
		}
	}
	if got := l.Inspect("c3", "podnet", "MacAddress"); got != "02:42:0a:5b:00:4e" {
		l.Errorf("MAC is %s", got)
	}
	l.Ping("c2", "c1")
	l.Ping("c2", l.Inspect("c3", "podnet", "IPAddress")) // the same network, made twice
	l.Ping("c2", l.Inspect("c1", "fixed", "GlobalIPv6Address"))
	l.Remove("c1", "c2", "c3")
	l.Docker("network", "rm", "fixed")
}

// internal: no way out and no ports, but containers reach each other.
func internal(l *lab.Lab) {
	l.Docker("network", "create", "--internal", "-d", "patchbay", "--ipam-driver", "null", "-o", "cni.network=podnet", "inside")
	l.Start("c1", "inside", "-p", "8080:80")
	l.Start("c2", "inside")
	if routes := l.Exec("c1", "sh", "-c", "ip route; ip -6 route"); strings.Contains(routes, "default") {
		l.Errorf("routes: %s", routes)
	}
	l.Ping("c2", "c1")
	l.Ping("c2", l.Inspect("c1", "inside", "GlobalIPv6Address"))
	l.Closed(l.Outside(), lab.Host4, "8080")
	l.Remove("c1", "c2")
	l.Docker("network", "rm", "inside")
}

func restart(l *lab.Lab) {
	l.Start("c1", "podnet")
	l.Start("c2", "podnet")
	l.Docker("restart", "-t", "0", "c1")
	l.Ping("c2", "c1")
	l.Docker("stop", "-t", "0", "c1")
	l.Docker("start", "c1")
	l.Ping("c2", "c1")
	l.Remove("c1", "c2")
}

// driverKilled: containers go on, and the next driver knows them.
func driverKilled(l *lab.Lab) {
	l.Start("c1", "podnet")
	l.Start("c2", "podnet")
	l.KillDriver()
	l.Ping("c2", "c1")
	l.StartDriver()
	l.Start("c3", "podnet")
	l.Ping("c3", "c1")
	l.Remove("c1", "c2", "c3")
}

// dockerdKilled: without live-restore its containers end with the next start and
// the driver is told nothing; with it they go on.
func dockerdKilled(l *lab.Lab) {
	l.Start("c1", "podnet", "-p", "8080:80")
	l.KillDocker()
	l.Up()
	l.RestartDriver() // sweeps
	l.Gone("killed without live-restore")
	l.Docker("start", "c1")
	l.KillDocker()
	l.Up("--live-restore")
	l.Start("c2", "podnet")
	l.Ping("c2", l.Inspect("c1", "podnet", "IPAddress"))
	l.Remove("c1", "c2")
}
