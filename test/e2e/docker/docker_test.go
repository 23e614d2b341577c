// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/test/e2e/docker/lab"
)

func ipamOf(n int) string {
	return fmt.Sprintf(`"ipam":{"type":"host-local","ranges":[[{"subnet":"10.%d.0.0/24"}],[{"subnet":"fd%d::/64"}]],"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]}`, n, n)
}

// These are the networks of the tests.
var (
	podnet = `{"cniVersion":"1.1.0","name":"podnet","plugins":[{"type":"bridge","bridge":"cni0","isGateway":true,"ipMasq":true,"hairpinMode":true,` + ipamOf(91) + `},
		{"type":"firewall"},{"type":"tuning","sysctl":{"net.core.somaxconn":"777","net.ipv4.conf.IFNAME.arp_notify":"1"}},{"type":"portmap","capabilities":{"portMappings":true}}]}`
	ptpnet = `{"cniVersion":"1.1.0","name":"ptpnet","plugins":[{"type":"ptp","ipMasq":true,` + ipamOf(93) + `},{"type":"firewall"}]}`
	macnet = `{"cniVersion":"1.1.0","name":"macnet","plugins":[{"type":"macvlan","master":"out0",` + ipamOf(94) + `}]}`
)

// TestOld runs the scenarios with Debian's dockerd.
func TestOld(t *testing.T) { scenarios(t, "old") }

// TestNew runs the scenarios with the current dockerd.
func TestNew(t *testing.T) { scenarios(t, "new") }

// docker28 is the version of the API since which a network may have no IPv4 and an endpoint a priority of its gateway.
const docker28 = 48

// TestReleases runs the scenarios with the dockerds of other releases of Debian that PATCHBAY_DOCKER names, as `make matrix` does.
func TestReleases(t *testing.T) {
	for _, kind := range strings.Fields(os.Getenv("PATCHBAY_DOCKER")) {
		t.Run(kind, func(t *testing.T) { scenarios(t, kind) })
	}
}

// TestNFTables runs the current dockerd with its nftables backend.
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
	l.Logf("version: dockerd %s", l.Docker("version", "--format", "{{.Server.Version}}, {{range .Server.Components}}{{.Name}} {{.Version}} {{end}}"))
	list := []scenario{
		{"two containers", twoContainers}, {"ports", published}, {"connect", connect}, {"addresses", addresses},
		{"internal", internal}, {"IPv6 only", sixOnly}, {"outside", outside}, {"gateways", gateways}, {"host addresses", hostAddresses},
		{"mistakes", mistakes}, {"overlap", overlap}, {"zero pool", zeroPool}, {"whole chain", wholeChain}, {"fail closed", failClosed}, {"names", names}, {"DHCP", leased}, {"ipvlan", ipvlan}, {"beside", beside},
		{"restart", restart}, {"driver killed", driverKilled}, {"dockerd killed", dockerdKilled},
	}
	if kind == "old" || kind == "new" { // podman 5 of the others has no CNI: test/e2e/netavark
		list = append(list, scenario{"one network", oneNetwork})
	}
	each(l, list)
	l.Docker("network", "rm", "podnet", "ptpnet", "macnet")
	if left := l.Sh("ls /var/lib/patchbay/docker/networks /var/lib/patchbay/docker/pools | grep -v :"); left != "" {
		t.Errorf("networks left: %s", left)
	}
}

// networks makes the networks that the scenarios share.
func networks(l *lab.Lab) {
	l.Helper()
	create(l, "podnet", podnet)
	create(l, "ptpnet", ptpnet)
	create(l, "macnet", macnet)
}

// each runs scenarios one after the other, and checks after each that nothing is left.
func each(l *lab.Lab, list []scenario) {
	t, _ := l.TB.(*testing.T)
	for _, s := range list {
		t.Run(s.name, func(t *testing.T) {
			inner := l.With(t)
			defer inner.Tidy() // so that the next one can be judged
			s.fn(inner)
			inner.Gone(s.name)
			inner.Pools(s.name)
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
		in, out, both := strings.Cut(l.Docker("stats", "--no-stream", "--format", "{{.NetIO}}", "c1"), " / ")
		if !both || !counted.MatchString(in) || !counted.MatchString(out) {
			l.Errorf("%s: stats count %q in, %q out", network, in, out)
		}
		if l.API >= docker28 && network == "podnet" {
			tuned(l, "c1")
		}
		l.Remove("c1", "c2")
	}
}

// counted matches a positive number of bytes from `docker stats`.
var counted = regexp.MustCompile(`^[1-9][0-9.]*[kMG]?B$`)

// tuned checks the sysctls and the interface's settings that podnet's tuning plugin made in a
// namespace.
func tuned(l *lab.Lab, name string) {
	l.Helper()
	for path, want := range map[string]string{"core/somaxconn": "777", "ipv4/conf/eth0/arp_notify": "1"} {
		if got := l.Exec(name, "cat", "/proc/sys/net/"+path); got != want {
			l.Errorf("%s is %s, want %s", path, got, want)
		}
	}
}

// published: each port is open to all clients on the addresses that it is published on, and on no
// other address.
func published(l *lab.Lab) {
	l.Docker("run", "-d", "--name", "web", "--network", "podnet", "-p", "8080:80", "-p", "80", "-p", "9000-9005:80", "-p", "192.0.2.10:8081:80", "bb", "httpd", "-f", "-p", "80")
	ps := l.In(l.Patchbayd, "docker", "ps")
	ports := regexp.MustCompile(`(\S+?):(\d+)->80/tcp`).FindAllStringSubmatch(strings.ReplaceAll(ps, ",", " "), -1)
	if len(ports) != 4 {
		l.Fatalf("ps shows\n%s", ps)
	}
	ranged := 0
	for _, p := range ports {
		for _, host := range []string{lab.Host4, lab.Host6} {
			if p[1] != "*" && p[1] != host {
				l.Closed(l.Outside(), host, p[2])
				continue
			}
			l.Fetch(l.Here(), host, p[2])
			l.Fetch(l.Outside(), host, p[2])
		}
		if port, _ := strconv.Atoi(p[2]); port >= 9000 && port <= 9005 {
			ranged++
		}
	}
	if ranged != 1 {
		l.Errorf("%d ports are of the range:\n%s", ranged, ps)
	}
	if text := l.Refused("run", "--rm", "--network", "podnet", "-p", "8080:80", "bb", "true"); !strings.Contains(text, "another container's") {
		l.Errorf("a port twice: %s", text)
	}
	l.Remove("web")
	for _, p := range ports {
		l.Closed(l.Outside(), lab.Host4, p[2])
	}
}

// connect: `docker network connect` gives a running container an interface and a name, and
// `disconnect` removes both.
func connect(l *lab.Lab) {
	l.Start("c1", "podnet")
	l.Start("c2", "ptpnet")
	had := links(l, "c2")
	for range 2 {
		l.Docker("network", "connect", "podnet", "c2")
		addr := l.Inspect("c2", "podnet", "IPAddress")
		l.Ping("c2", l.Inspect("c1", "podnet", "IPAddress"))
		l.Ping("c2", l.Inspect("c1", "podnet", "GlobalIPv6Address"))
		l.Ping("c1", "c2")
		l.Ping("c2", "c1")
		if now := links(l, "c2"); len(now) != len(had)+1 {
			l.Errorf("connected: links are %v, were %v", now, had)
		}
		l.Docker("network", "disconnect", "podnet", "c2")
		if now := links(l, "c2"); !slices.Equal(now, had) {
			l.Errorf("disconnected: links are %v, were %v", now, had)
		}
		if got, err := l.TryDocker("exec", "c1", "timeout", "1", "nslookup", "c2", "127.0.0.11"); err == nil {
			l.Errorf("disconnected: c2 is known to c1: %s", got)
		}
		if got := l.Exec("c2", "ip", "addr"); strings.Contains(got, addr+"/") {
			l.Errorf("disconnected: c2 has\n%s", got)
		}
		l.Ping("c2", "10.93.0.1")
	}
	l.Remove("c1", "c2")
}

// links are the names of a container's interfaces.
func links(l *lab.Lab, name string) []string {
	l.Helper()
	return strings.Fields(l.Exec(name, "ls", "/sys/class/net"))
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
	l.Ping("c2", l.Inspect("c3", "podnet", "IPAddress")) // the same network, created twice
	l.Ping("c2", l.Inspect("c1", "fixed", "GlobalIPv6Address"))
	l.Remove("c1", "c2", "c3")
	l.Docker("network", "rm", "fixed")
}

// internal: containers of an internal network reach each other, but not the outside, and publish no
// ports.
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

// driverKilled: after the driver is killed, containers keep running, and the next driver knows
// them.
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

// dockerdKilled: without live-restore, dockerd's containers end at its next start, and the driver
// gets no call. With live-restore, they keep running, also while dockerd is away.
func dockerdKilled(l *lab.Lab) {
	l.Start("c1", "podnet", "-p", "8080:80")
	l.KillDocker()
	l.Up()
	l.RestartDriver() // sweeps
	l.Gone("killed without live-restore")
	l.Docker("start", "c1")
	pid := l.Docker("inspect", "c1", "--format", "{{.State.Pid}}")
	l.KillDocker()
	served(l)
	l.Up("--live-restore")
	if now := l.Docker("inspect", "c1", "--format", "{{.State.Running}} {{.State.Pid}}"); now != "true "+pid {
		l.Errorf("running and process: %s, was %s", now, pid)
	}
	served(l)
	l.Start("c2", "podnet")
	l.Ping("c2", l.Inspect("c1", "podnet", "IPAddress"))
	l.Ping("c2", "c1")
	l.Ping("c1", "c2")
	l.Ping("c1", lab.Outside6)
	l.Remove("c1", "c2")
	l.Closed(l.Outside(), lab.Host4, "8080")
}

// served checks that port 8080 of the host answers clients outside.
func served(l *lab.Lab) {
	l.Helper()
	l.Fetch(l.Outside(), lab.Host4, "8080")
	l.Fetch(l.Outside(), lab.Host6, "8080")
}
