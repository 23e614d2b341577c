// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/patchbay-net/patchbay/internal/test/reftest"
	"github.com/patchbay-net/patchbay/test/e2e/docker/lab"
)

// onenet is the network of all members. Its version is 1.0.0, the newest that Debian's podman and
// containerd know.
var onenet = `{"cniVersion":"1.0.0","name":"onenet","plugins":[{"type":"bridge","bridge":"cni1","isGateway":true,"ipMasq":true,"hairpinMode":true,` + ipamOf(98) + `},
	{"type":"firewall"},{"type":"portmap","capabilities":{"portMappings":true}}]}`

// member is a member of the network, started by any runtime.
type member struct {
	name  string
	path  string // its namespace
	port  string // the host's port that leads to its port 80
	addrs []netip.Addr
}

// oneNetwork: a container of Docker, a container of podman, a sandbox of containerd and a namespace
// without a runtime share one network.
func oneNetwork(l *lab.Lab) {
	l.In("sh", "-ec", "iptables -P FORWARD DROP; ip6tables -P FORWARD DROP")
	create(l, "onenet", onenet)
	l.Write("/etc/cni/one.d/onenet.conflist", onenet)
	all := []*member{dockerMember(l), podmanMember(l)}
	sandbox, endSandbox := containerdMember(l)
	bare, endBare := bareMember(l)
	all = append(all, sandbox, bare)
	onePool(l, all)
	for _, from := range all {
		for _, to := range all {
			for _, addr := range to.addrs {
				l.PingFrom(from.path, addr.String())
			}
			l.Fetch(from.path, lab.Host4, to.port)
			l.Fetch(from.path, lab.Host6, to.port)
		}
		for _, host := range []string{lab.Host4, lab.Host6} {
			l.Fetch(l.Outside(), host, from.port)
			l.Fetch(l.Here(), host, from.port)
		}
		l.PingFrom(from.path, lab.Outside4)
		l.PingFrom(from.path, lab.Outside6)
	}
	endBare()
	endSandbox()
	podman(l, "rm", "-f", "-t", "0", "p1")
	l.Remove("d1")
	l.Docker("network", "rm", "onenet")
}

// onePool checks that each member has an IPv4 and an IPv6 address that no other member has.
func onePool(l *lab.Lab, all []*member) {
	l.Helper()
	has := map[netip.Addr]string{}
	for _, m := range all {
		for _, f := range strings.Fields(l.In("nsenter", "--net="+m.path, "--", "ip", "-o", "addr", "show", "scope", "global")) {
			p, err := netip.ParsePrefix(f)
			if err != nil {
				continue
			}
			if other, twice := has[p.Addr()]; twice {
				l.Errorf("%s and %s are %s", other, m.name, p.Addr())
			}
			if !netip.MustParsePrefix("10.98.0.0/24").Contains(p.Addr()) && !netip.MustParsePrefix("fd98::/64").Contains(p.Addr()) {
				l.Errorf("%s is %s", m.name, p)
			}
			has[p.Addr()] = m.name
			m.addrs = append(m.addrs, p.Addr())
		}
		if len(m.addrs) != 2 {
			l.Fatalf("%s has %v", m.name, m.addrs)
		}
	}
	held := strings.Fields(l.Sh("cd /var/lib/cni/networks/onenet && ls | grep '[.:]' | grep -v last_"))
	if len(held) != len(has) {
		l.Errorf("the pool holds %v, members have %v", held, has)
	}
}

func dockerMember(l *lab.Lab) *member {
	l.Helper()
	l.Start("d1", "onenet", "-p", "8001:80")
	return &member{name: "docker", path: l.Of("d1"), port: "8001"}
}

// podman runs podman with a configuration and storage only for the test.
func podman(l *lab.Lab, args ...string) string {
	l.Helper()
	dir := l.Dir("podman")
	return l.In(append([]string{"env", "CONTAINERS_CONF=" + dir + "/containers.conf", "podman", "--root", dir + "/storage", "--runroot", "/run/containers/lab", "--tmpdir", "/run/containers/tmp", "--storage-driver", "vfs"}, args...)...)
}

func podmanMember(l *lab.Lab) *member {
	l.Helper()
	dir := l.Dir("podman")
	conf := fmt.Sprintf(`
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
[network]
network_backend = "cni"
cni_plugin_dirs = [%q]
network_config_dir = "/etc/cni/one.d"
`, l.Plugins)
	if err := os.WriteFile(dir+"/containers.conf", []byte(conf), 0o600); err != nil {
		l.Fatal(err)
	}
	l.In("sh", "-ec", `for m in /dev/shm /run/containers; do mkdir -p $m; mount -t tmpfs tmpfs $m; done
		cd `+dir+`; mkdir -p rootfs/bin rootfs/proc rootfs/sys rootfs/dev rootfs/etc
		cp /bin/busybox rootfs/bin/; chroot rootfs /bin/busybox --install -s /bin`)
	id := podman(l, "run", "-d", "--name", "p1", "--network", "onenet", "-p", "8002:80", "--rootfs", dir+"/rootfs", "/bin/httpd", "-f", "-p", "80")
	l.Cleanup(func() { removeCgroups("libpod_parent/libpod-" + id + "*") })
	pid := podman(l, "inspect", "p1", "--format", "{{.State.Pid}}")
	return &member{name: "podman", path: "/proc/" + pid + "/ns/net", port: "8002"}
}

func containerdMember(l *lab.Lab) (m *member, end func()) {
	l.Helper()
	pid, end := newContainerd(l).sandbox("pod1", 8003)
	return &member{name: "containerd", path: "/proc/" + pid + "/ns/net", port: "8003"}, end
}

// bareMember starts a process with `patchbay run`, in a new namespace.
func bareMember(l *lab.Lab) (m *member, end func()) {
	l.Helper()
	program, err := reftest.Program("patchbay")
	if err != nil {
		l.Fatal(err)
	}
	pidFile := l.Dir("bare") + "/pid"
	run := l.Run("env", "CNI_PATH="+l.Plugins, "NETCONFPATH=/etc/cni/one.d", program, "run", "--network", "onenet", "-p", "8004:80", "--",
		"sh", "-c", "echo $$ > "+pidFile+".new; mv "+pidFile+".new "+pidFile+"; exec busybox httpd -f -p 80")
	var pid []byte
	l.Eventually("patchbay run", func() bool {
		pid, err = os.ReadFile(pidFile)
		return err == nil
	})
	m = &member{name: "patchbay run", path: "/proc/" + strings.TrimSpace(string(pid)) + "/ns/net", port: "8004"}
	return m, func() {
		l.In("kill", strings.TrimSpace(string(pid)))
		run.Wait()
	}
}
