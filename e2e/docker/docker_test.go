// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"
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

func scenarios(t *testing.T, kind string) {
	l := newLab(t, kind)
	for name, text := range map[string]string{"podnet": podnet, "ptpnet": ptpnet, "macnet": macnet} {
		l.conf(name, text)
		l.docker("network", "create", "-d", "patchbay", "--ipam-driver", "null", "-o", "cni.network="+name, name)
	}
	for _, s := range []struct {
		name string
		fn   func(*lab)
	}{
		{"two containers", twoContainers}, {"ports", published}, {"connect", connect}, {"addresses", addresses},
		{"internal", internal}, {"restart", restart}, {"driver killed", driverKilled}, {"dockerd killed", dockerdKilled},
	} {
		t.Run(s.name, func(t *testing.T) {
			inner := *l
			inner.T = t
			s.fn(&inner)
			inner.gone(s.name)
			l.driver = inner.driver
		})
	}
	l.docker("network", "rm", "podnet", "ptpnet", "macnet")
	if left := l.in("sh", "-c", "ls /var/lib/patchbay/docker/networks /var/lib/patchbay/docker/pools | grep -v :; true"); left != "" {
		t.Errorf("networks left: %s", left)
	}
}

// start runs a container that sleeps.
func (l *lab) start(name, network string, more ...string) {
	l.Helper()
	l.docker(append(append([]string{"run", "-d", "--name", name, "--network", network}, more...), "bb", "sleep", "1000")...)
}

func (l *lab) rm(names ...string) {
	l.Helper()
	l.docker(append([]string{"rm", "-f"}, names...)...)
}

// ping is one echo between containers, by name or address.
func (l *lab) ping(from, to string) {
	l.Helper()
	if out := l.docker("exec", from, "sh", "-c", "ping -c1 -w3 "+to+" || true"); !strings.Contains(out, " 1 packets received") {
		l.Errorf("%s does not reach %s: %s", from, to, out)
	}
}

func (l *lab) inspect(name, network, field string) string {
	l.Helper()
	return l.docker("inspect", name, "--format", fmt.Sprintf("{{(index .NetworkSettings.Networks %q).%s}}", network, field))
}

func twoContainers(l *lab) {
	for _, network := range []string{"podnet", "ptpnet", "macnet"} {
		l.start("c1", network)
		l.start("c2", network)
		v4, v6, mac := l.inspect("c1", network, "IPAddress"), l.inspect("c1", network, "GlobalIPv6Address"), l.inspect("c1", network, "MacAddress")
		links := l.docker("exec", "c1", "ip", "addr")
		for _, want := range []string{v4 + "/", v6 + "/", mac} {
			if want == "/" || want == "" || !strings.Contains(links, want) {
				l.Errorf("%s: inspect shows %q, the container has\n%s", network, want, links)
			}
		}
		for _, to := range []string{"c1", v4, v6} {
			l.ping("c2", to)
		}
		if io := l.docker("stats", "--no-stream", "--format", "{{.NetIO}}", "c1"); strings.HasPrefix(io, "0B") || strings.HasPrefix(io, "--") {
			l.Errorf("%s: stats count %s", network, io)
		}
		if got := l.docker("exec", "c1", "cat", "/proc/sys/net/core/somaxconn"); l.kind == "new" && network == "podnet" && got != "777" {
			l.Errorf("somaxconn is %s", got)
		}
		l.rm("c1", "c2")
	}
}

// fetch asks a published port for a page.
func (l *lab) fetch(port string) {
	l.Helper()
	out := ""
	for range 20 {
		out = l.in("sh", "-c", `(printf 'GET /ok HTTP/1.0\r\n\r\n'; sleep 0.3) | busybox nc -w 3 192.0.2.10 `+port+" || true")
		if strings.Contains(out, "HTTP/1") {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	l.Errorf("port %s: %q", port, out)
}

func published(l *lab) {
	l.docker("run", "-d", "--name", "web", "--network", "podnet", "-p", "8080:80", "-p", "80", "-p", "9000-9005:80", "-p", "192.0.2.10:8081:80", "bb", "httpd", "-f", "-p", "80")
	ps := l.in(l.patchbayd, "docker", "ps")
	ports := regexp.MustCompile(`:(\d+)->80/tcp`).FindAllStringSubmatch(ps, -1)
	if len(ports) != 4 {
		l.Fatalf("ps shows\n%s", ps)
	}
	for _, p := range ports {
		l.fetch(p[1])
	}
	if said := l.refused("run", "--rm", "--network", "podnet", "-p", "8080:80", "bb", "true"); !strings.Contains(said, "another container's") {
		l.Errorf("a port twice: %s", said)
	}
	l.rm("web")
}

func connect(l *lab) {
	l.start("c1", "podnet")
	l.start("c2", "ptpnet")
	l.docker("network", "connect", "podnet", "c2")
	l.ping("c2", l.inspect("c1", "podnet", "IPAddress"))
	l.docker("network", "disconnect", "podnet", "c2")
	l.ping("c2", "10.93.0.1")
	l.docker("network", "connect", "podnet", "c2")
	l.ping("c1", "c2")
	l.rm("c1", "c2")
}

func addresses(l *lab) {
	l.docker("network", "create", "-d", "patchbay", "--ipv6", "-o", "cni.network=podnet",
		"--ipam-driver", "patchbay", "--ipam-opt", "cni.network=podnet", "--subnet", "10.91.0.0/24", "--subnet", "fd91::/64", "fixed")
	l.start("c1", "fixed", "--ip", "10.91.0.77", "--mac-address", "02:42:0a:5b:00:4d")
	l.start("c2", "fixed")
	l.start("c3", "podnet", "--mac-address", "02:42:0a:5b:00:4e")
	for _, want := range [][3]string{{"c1", "IPAddress", "10.91.0.77"}, {"c1", "MacAddress", "02:42:0a:5b:00:4d"}} {
		if got := l.inspect(want[0], "fixed", want[1]); got != want[2] {
			l.Errorf("%s is %s", want[1], got)
		}
	}
	if got := l.inspect("c3", "podnet", "MacAddress"); got != "02:42:0a:5b:00:4e" {
		l.Errorf("MAC is %s", got)
	}
	l.ping("c2", "c1")
	l.ping("c2", l.inspect("c3", "podnet", "IPAddress")) // the same network, made twice
	l.ping("c2", l.inspect("c1", "fixed", "GlobalIPv6Address"))
	l.rm("c1", "c2", "c3")
	l.docker("network", "rm", "fixed")
}

func internal(l *lab) {
	l.docker("network", "create", "--internal", "-d", "patchbay", "--ipam-driver", "null", "-o", "cni.network=podnet", "inside")
	l.start("c1", "inside")
	if routes := l.docker("exec", "c1", "ip", "route"); strings.Contains(routes, "default") {
		l.Errorf("routes: %s", routes)
	}
	l.rm("c1")
	l.docker("network", "rm", "inside")
}

func restart(l *lab) {
	l.start("c1", "podnet")
	l.start("c2", "podnet")
	l.docker("restart", "-t", "0", "c1")
	l.ping("c2", "c1")
	l.docker("stop", "-t", "0", "c1")
	l.docker("start", "c1")
	l.ping("c2", "c1")
	l.rm("c1", "c2")
}

// driverKilled: containers go on, and the next driver knows them.
func driverKilled(l *lab) {
	l.start("c1", "podnet")
	l.start("c2", "podnet")
	l.killDriver()
	l.ping("c2", "c1")
	l.startDriver()
	l.start("c3", "podnet")
	l.ping("c3", "c1")
	l.rm("c1", "c2", "c3")
}

// dockerdKilled: without live-restore its containers end with the next start and
// the driver is told nothing; with it they go on.
func dockerdKilled(l *lab) {
	l.start("c1", "podnet", "-p", "8080:80")
	run(l.T, l.script, "kill", l.name)
	l.up()
	l.killDriver()
	l.startDriver() // sweeps
	l.gone("killed without live-restore")
	l.docker("start", "c1")
	run(l.T, l.script, "kill", l.name)
	l.up("--live-restore")
	l.start("c2", "podnet")
	l.ping("c2", l.inspect("c1", "podnet", "IPAddress"))
	l.rm("c1", "c2")
}
