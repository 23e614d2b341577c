// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/test/nettest/leak"
)

// podman runs podman with its own storage, configuration and networks, and with the plugin
// directory under test.
type podman struct {
	*testing.T
	dir string
	at  []string // a command that runs it elsewhere; empty: here
}

// newPodman writes podman's configuration. Its limits are low enough to need no CAP_SYS_RESOURCE.
// crun would refuse hybrid cgroups.
func newPodman(t *testing.T, at ...string) *podman {
	t.Helper()
	p := &podman{t, t.TempDir(), at}
	p.configure(plugins(), p.dir+"/net.d")
	t.Setenv("CONTAINERS_CONF", p.dir+"/containers.conf")
	p.rootfs()
	t.Cleanup(func() { p.do("rm", "-f", "-t", "0", "-a") })
	return p
}

// configure names the directories of plugins and of networks.
func (p *podman) configure(plugins, networks string) {
	p.Helper()
	p.write("containers.conf", fmt.Sprintf(`
[containers]
default_ulimits = ["nofile=1024:1024", "nproc=1024:1024"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
[network]
network_backend = "cni"
cni_plugin_dirs = [%q]
network_config_dir = %q
`, plugins, networks))
}

// rootfs makes a root file system instead of an image: a static busybox with
// links for its applets, and our probe.
func (p *podman) rootfs() {
	p.Helper()
	bin := p.dir + "/rootfs/bin"
	for _, dir := range []string{bin, p.dir + "/rootfs/proc", p.dir + "/rootfs/sys", p.dir + "/rootfs/dev", p.dir + "/rootfs/etc"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			p.Fatal(err)
		}
	}
	run(p, "cp", run(p, "sh", "-c", "command -v busybox"), bin+"/busybox")
	run(p, "chroot", p.dir+"/rootfs", "/bin/busybox", "--install", "-s", "/bin")
	run(p, "cp", probeProgram(), bin+"/probe")
}

func (p *podman) write(name, text string) {
	p.Helper()
	if err := os.WriteFile(filepath.Join(p.dir, name), []byte(text), 0o600); err != nil {
		p.Fatal(err)
	}
}

// do runs podman and returns its output.
func (p *podman) do(args ...string) string {
	p.Helper()
	argv := slices.Concat(p.at, []string{"podman", "--root", p.dir + "/storage", "--runroot", "/run/containers/e2e", "--storage-driver", "vfs"}, args)
	return run(p, argv[0], argv[1:]...)
}

// start starts a container that answers probes on port 80.
func (p *podman) start(name string, args ...string) {
	p.Helper()
	args = append([]string{"run", "-d", "--name", name}, args...)
	p.do(append(args, "--rootfs", p.dir+"/rootfs", "/bin/probe", "serve", ":80")...)
}

// addr returns a container's address in a network, as podman reports it.
func (p *podman) addr(name, network string) netip.Addr {
	p.Helper()
	var inspected []struct {
		NetworkSettings struct {
			Networks map[string]struct{ IPAddress string }
		}
	}
	if err := json.Unmarshal([]byte(p.do("inspect", name)), &inspected); err != nil {
		p.Fatal(err)
	}
	return addrOf(p.T, inspected[0].NetworkSettings.Networks[network].IPAddress)
}

// who asks a server from inside a container which address it sees.
func (p *podman) who(from string, addr netip.Addr, port uint16) netip.Addr {
	p.Helper()
	target := netip.AddrPortFrom(addr, port).String()
	return netip.MustParseAddrPort(p.do("exec", from, "/bin/probe", "who", "tcp", target)).Addr()
}

// TestPodman runs containers with Debian's podman on its CNI backend: on a named network, with a
// published port, on two networks, through a restart, and to their removal.
func TestPodman(t *testing.T) {
	onNode(t, func(t *testing.T) {
		newOutside(t)
		serve(t, outside, 80)
		p := newPodman(t)
		p.do("network", "create", "--subnet", "10.70.0.0/24", "n1")
		p.do("network", "create", "--subnet", "10.71.0.0/24", "n2")
		p.warm()
		before := leak.Must(t)

		p.start("web", "--network", "n1", "-p", "18080:80", "-p", "18080:80/udp")
		p.start("both", "--network", "n1,n2")
		p.start("far", "--network", "n2", "-p", "18081:80", "-p", "18081:80/udp")
		p.proveTraffic()
		p.restart("web")
		p.proveTraffic()

		p.do("rm", "-f", "-t", "0", "far")
		refused(t, outside, node4, 18081)
		p.do("rm", "-f", "-t", "0", "web", "both")
		if ours() {
			p.otherForm()
		}
		leak.NoLeaks(t, before)
		p.do("network", "rm", "n1", "n2")
		if left := run(t, "find", "/var/lib/cni/results", "/run/netns", "-type", "f", "!", "-name", outside); ours() && left != "" {
			t.Errorf("left behind:\n%s", left)
		}
	})
}

// otherForm runs a container on a network of ours, whose plugins are in one of type patchbay, and on
// the same network with separate plugins. podman publishes its port and gives it its address in both,
// and detaches it from the one when the file has the other.
func (p *podman) otherForm() {
	p.Helper()
	p.Setenv("NETCONFPATH", p.dir+"/net.d")
	file := strings.TrimSpace(run(p, patchbay(), "network", "create", "--subnet", "10.72.0.0/24", "n3"))
	one, err := os.ReadFile(file)
	if err != nil {
		p.Fatal(err)
	}
	separate := run(p, patchbay(), "convert", "--separate", file)
	for _, form := range []struct{ driver, next string }{{"patchbay", separate}, {"bridge", string(one)}} {
		p.seesDriver(form.driver)
		p.start("form", "--network", "n3", "--ip", "10.72.0.7", "-p", "18082:80", "-p", "18082:80/udp")
		if got := p.addr("form", "n3"); got != netip.MustParseAddr("10.72.0.7") {
			p.Errorf("%s: the address is %s", form.driver, got)
		}
		reaches(p.T, outside, node4, 18082, outside4)
		p.write("net.d/"+filepath.Base(file), form.next)
		p.do("rm", "-f", "-t", "0", "form")
		refused(p.T, outside, node4, 18082)
	}
	run(p, patchbay(), "network", "rm", "n3")
}

// seesDriver checks what podman takes for the driver of our network: the first plugin of its list.
func (p *podman) seesDriver(want string) {
	p.Helper()
	if got := p.do("network", "ls", "--noheading", "--filter", "name=n3", "--format", "{{.Driver}}"); strings.TrimSpace(got) != want {
		p.Errorf("podman sees the driver %q, want %q", got, want)
	}
}

// warm does for podman what the function warm does for libcni.
func (p *podman) warm() {
	p.Helper()
	if ours() {
		return
	}
	p.start("warm", "--network", "n1,n2", "-p", "18999:80")
	p.do("rm", "-f", "-t", "0", "warm")
}

// restart stops and starts a container. podman detaches and attaches it.
func (p *podman) restart(name string) {
	p.Helper()
	p.do("restart", "-t", "0", name)
	eventually(p, name+" answers after its restart", func() error {
		_, err := who("", p.addr(name, "n1"), 80)
		return err
	})
}

// proveTraffic sends traffic between the containers of both networks, to the outside world,
// and from there to the published ports.
func (p *podman) proveTraffic() {
	p.Helper()
	web, both1 := p.addr("web", "n1"), p.addr("both", "n1")
	far, both2 := p.addr("far", "n2"), p.addr("both", "n2")
	for _, c := range []struct {
		from string
		to   netip.Addr
		seen netip.Addr
	}{
		{"web", both1, web}, {"both", web, both1}, // n1
		{"far", both2, far}, {"both", far, both2}, // n2
		{"web", outside4, node4}, {"far", outside4, node4}, {"both", outside4, node4},
	} {
		if seen := p.who(c.from, c.to, 80); seen != c.seen {
			p.Errorf("from %s to %v: seen as %v, want %v", c.from, c.to, seen, c.seen)
		}
	}
	reaches(p.T, outside, node4, 18080, outside4)
	reaches(p.T, outside, node4, 18081, outside4)
	reaches(p.T, "", node4, 18080, noAddr)
	reaches(p.T, "", loopback4, 18080, noAddr)
	p.who("web", node4, 18080) // hairpin
	p.who("far", node4, 18080) // from the other network
}
