// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/daemons/dist/systemd"
)

// host is a dockerd with our driver and our agent.
type host struct {
	*world
	name, kind    string
	addr          string
	pid           string // of the process that holds its namespaces
	driver, agent *exec.Cmd
	dead          bool
}

// env returns the environment of the lab's script. The client must be that of the daemon, because a
// newer client refuses some flags for an old daemon.
func (h *host) env() []string {
	out := []string{"LAB_DIR=" + h.dir}
	if h.kind == "old" {
		out = append(out, "PATH=/usr/bin:"+os.Getenv("PATH"))
	}
	return out
}

func (h *host) up() {
	_, err := try(h.env(), h.script, "up", h.name, h.kind)
	text, err2 := os.ReadFile(filepath.Join(h.dir, h.name, "holder.pid"))
	h.pid = strings.TrimSpace(string(text))
	if err := errors.Join(err, err2); err != nil {
		h.Error(err)
	}
}

// join connects the host to the switch, which is its uplink.
func (h *host) join() {
	h.Helper()
	h.plug(h.pid, h.name, h.addr)
	h.in("sh", "-c", "ip addr flush dev out0; ip route replace default via 192.0.2.1 dev up0; chmod 755 /var/lib/patchbay /run/patchbay /var/lib/cni /run/cni /etc/cni")
}

// in runs a command on the host.
func (h *host) in(argv ...string) string {
	h.Helper()
	return run(h.T, h.env(), append([]string{h.script, "in", h.name}, argv...)...)
}

func (h *host) docker(args ...string) string {
	h.Helper()
	return run(h.T, h.env(), append([]string{h.script, "docker", h.name}, args...)...)
}

// begin starts patchbayd on the host. nsenter executes it, so the process is patchbayd itself.
func (h *host) begin(what string, args ...string) *exec.Cmd {
	h.Helper()
	argv := append([]string{"nsenter", "-t", h.pid, "-m", "-n", "--"}, h.confined(what)...)
	argv = append(argv, h.patchbayd, what, "--data-root", filepath.Join(h.dir, h.name, "data-"+h.kind))
	return h.command(h.name+"-"+what+".log", append(argv, args...)...)
}

// confined returns the flags of setpriv(1) that drop the privileges that patchbayd's systemd unit
// drops.
func (h *host) confined(what string) []string {
	h.Helper()
	unit, err := systemd.Units.ReadFile("patchbay-" + what + ".service")
	must(h, err)
	_, rest, found := strings.Cut(string(unit), "\nCapabilityBoundingSet=")
	if !found {
		return nil
	}
	left, _, _ := strings.Cut(rest, "\n")
	left = strings.NewReplacer("CAP_", "+", " ", ",").Replace(left)
	return []string{"setpriv", "--no-new-privs", "--bounding-set=-all," + strings.ToLower(left), "--"}
}

func (h *host) startDriver() {
	h.Helper()
	h.driver = h.begin("docker", "--plugins", h.plugins, "--grace", "1s")
	h.until("the driver is there", func() bool {
		_, err := try(h.env(), h.script, "in", h.name, "test", "-S", "/run/docker/plugins/patchbay.sock")
		return err == nil
	})
}

// ttl is how long a dead host still counts as alive (the agents' --ttl).
const ttl = 3 * time.Second

func (h *host) startAgent() {
	h.Helper()
	h.agent = h.begin("hosts", "--store", h.etcd.store(), "--name", h.name, "--ttl", ttl.String(), "--dns")
}

// cli runs a command of patchbayd hosts.
func (h *host) cli(args ...string) string {
	h.Helper()
	return h.in(append([]string{h.patchbayd, "hosts", "--store", h.etcd.store()}, args...)...)
}

// listing is the part of the output of `patchbayd hosts ls` that the tests read.
type listing struct {
	Nodes []struct {
		Name    string
		Present bool
	}
	Blocks    []struct{ Network, Prefix, NodeName string }
	Endpoints []struct {
		Network string
		Names   []string
	}
	Wrong []string
}

func (h *host) ls() (l listing) {
	h.Helper()
	must(h, json.Unmarshal([]byte(h.cli("ls", "--json")), &l))
	return l
}

// die ends everything on the host at once, as a loss of power would.
func (h *host) die() {
	h.Helper()
	h.dead = true
	for _, cmd := range []*exec.Cmd{h.agent, h.driver} {
		if cmd != nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	}
	if h.pid == "" {
		return
	}
	home, err := os.Readlink("/proc/" + h.pid + "/ns/mnt")
	must(h, err)
	for range 2 { // again for processes that were starting at the first look
		for _, p := range inside(home) {
			_ = unix.Kill(p, unix.SIGKILL)
		}
	}
	h.until("all processes of "+h.name+" are gone", func() bool { return len(inside(home)) == 0 })
}

// inside returns the processes in a mount namespace, and their children. The children must be
// added, because processes of containers have other mount namespaces.
func inside(home string) (pids []int) {
	all, _ := filepath.Glob("/proc/[0-9]*")
	there := map[string]bool{}
	parent := map[string]string{}
	for _, dir := range all {
		p := filepath.Base(dir)
		if at, err := os.Readlink(dir + "/ns/mnt"); err == nil && at == home {
			there[p] = true
		}
		stat, _ := os.ReadFile(dir + "/stat")
		if _, rest, ok := strings.Cut(string(stat), ") "); ok && len(strings.Fields(rest)) > 1 {
			parent[p] = strings.Fields(rest)[1]
		}
	}
	for p, of := range parent {
		if n, err := strconv.Atoi(p); err == nil && (there[p] || there[of]) {
			pids = append(pids, n)
		}
	}
	return pids
}

func (h *host) killAgent() {
	h.Helper()
	must(h, h.agent.Process.Kill())
	_ = h.agent.Wait()
}

// down stops the host at the end of the test.
func (h *host) down() {
	if !h.dead {
		h.die()
	}
}

// network waits for a CNI network, and then creates a Docker network from it.
func (h *host) network(name string) {
	h.Helper()
	h.configured(name)
	h.docker("network", "create", "-d", "patchbay", "--ipam-driver", "null", "-o", "cni.network="+name, name)
}

// gateway returns the host's address on a network, at which the resolver answers.
func (h *host) gateway(network string) string {
	h.Helper()
	for _, b := range h.ls().Blocks {
		if b.Network == network && b.NodeName == h.name && strings.Contains(b.Prefix, ".") {
			return strings.TrimSuffix(strings.Split(b.Prefix, "/")[0], "0") + "1"
		}
	}
	h.Fatalf("%s has no block of %s", h.name, network)
	return ""
}

// start runs a container that sleeps. Docker's DNS server resolves the names that it knows, and our
// resolver all others.
func (h *host) start(name, network string, more ...string) {
	h.Helper()
	h.docker(append(append([]string{"run", "-d", "--name", name, "--network", network, "--dns", h.gateway(network)}, more...), "bb", "sleep", "1000")...)
}

func (h *host) address(name, network string) string {
	h.Helper()
	return h.docker("inspect", name, "--format", fmt.Sprintf("{{(index .NetworkSettings.Networks %q).IPAddress}}", network))
}

// pings reports whether one echo request is answered.
func (h *host) pings(from, to string) bool {
	out, err := try(h.env(), h.script, "docker", h.name, "exec", from, "sh", "-c", "ping -c1 -w5 "+to+" || true")
	return err == nil && strings.Contains(out, " 1 packets received")
}

func (h *host) reaches(from, to string) {
	h.Helper()
	h.until(from+" reaches "+to, func() bool { return h.pings(from, to) })
}

// until waits for a condition that must come true.
func (w *world) until(what string, ok func() bool) {
	w.Helper()
	began := time.Now()
	for !ok() {
		if time.Since(began) > 3*time.Minute {
			w.Fatalf("not in 3 min: %s", what)
		}
		time.Sleep(100 * time.Millisecond)
	}
}
