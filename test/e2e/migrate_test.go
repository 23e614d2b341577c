// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/internal/test/reftest"
)

// oldNetwork is the network that the nodes have before they move to ours.
type oldNetwork struct {
	name    string // of its configuration
	pool    string // directory of its reservations on a node
	bridge  bool   // its pods share a bridge: docs/migrate-kubernetes.md has a limit for these
	start   func(k *cluster, node string)
	stop    func(k *cluster, node string) // its agent
	restart func(k *cluster, node string)
}

// TestMigrateFlannel and TestMigrateKindnet do what docs/migrate-kubernetes.md says.
func TestMigrateFlannel(t *testing.T) {
	migrate(t, oldNetwork{
		name: "flannel", pool: "/var/lib/cni/networks/cbr0", bridge: true,
		start: (*cluster).flannel, stop: func(k *cluster, node string) { k.end(node + "-flannel") }, restart: (*cluster).flanneld,
	})
}

func TestMigrateKindnet(t *testing.T) {
	nothing := func(*cluster, string) {}
	migrate(t, oldNetwork{
		name: "kindnet", pool: "/run/cni-ipam-state/kindnet",
		start: (*cluster).kindnet, stop: nothing, restart: nothing,
	})
}

func migrate(t *testing.T, old oldNetwork) {
	if !ours() || os.Getenv("PATCHBAY_NIGHTLY") != "1" {
		t.Log("runs in make nightly, with our build")
		return
	}
	buildAgent(t)
	onNode(t, func(t *testing.T) {
		k := newCluster(t, "2", "containerd2=n2")
		defer k.saveLogs()
		m := &move{k, old, map[string]string{}}
		for _, node := range []string{"n1", "n2"} {
			k.importProbe(node)
			k.node(node, "sh", "-c", "cp -a "+reftest.Plugins(t)+"/. /opt/cni/bin/")
			old.start(k, node)
		}
		k.ready(2*time.Minute, "nodes", "--all")
		m.pods("n1", "a1", "b1")
		m.pods("n2", "a2", "b2")
		m.prove("the old network")
		flow, back := k.flow("a1", "a2"), k.flow("b2", "b1")

		k.agentAccount()
		for _, node := range []string{"n1", "n2"} {
			before := k.node(node, "sh", "-c", "ip -4 route; ip -6 route")
			k.startAgent(node)
			if after := k.node(node, "sh", "-c", "ip -4 route; ip -6 route"); m.routes(after) != m.routes(before) {
				t.Errorf("%s: the agent changed routes\n%s\nto\n%s", node, before, after)
			}
		}
		m.pods("n1", "c1")
		m.prove("with our agents")
		flow.quiet("the agents' start")

		m.move("n1")
		m.pods("n1", "new1")
		m.prove("n1 moved")
		if !m.isNew("new1") || m.isNew("a1") {
			t.Errorf("ours: new1 %v, a1 %v", m.isNew("new1"), m.isNew("a1"))
		}
		flow.lost("the move of n1")

		m.back("n1")
		m.pods("n1", "back1")
		m.prove("n1 went back")
		if m.isNew("back1") {
			t.Error("a pod that started after n1 went back has our network")
		}
		flow.lost("n1's way back")
		m.move("n1")
		m.move("n2")
		m.pods("n2", "new2")
		m.prove("both moved")
		flow.lost("the moves of both")
		back.lost("all moves")

		m.remove("a1", "b1", "c1", "back1", "a2", "b2")
		m.pods("n1", "last1")
		m.prove("the old pods have ended")
		m.commands("n1", "4. The clean-up")
		m.commands("n2", "4. The clean-up")
		m.prove("the clean-up")
		m.noLeaks()
		for _, node := range []string{"n1", "n2"} {
			if left := k.node(node, "sh", "-c", "iptables-save; ip6tables-save; ip -o link"); strings.Contains(left, "FLANNEL") || strings.Contains(left, "KIND-") ||
				strings.Contains(left, "CNI-DN") || strings.Contains(left, "cni0") || strings.Contains(left, "flannel") {
				t.Errorf("%s has\n%s", node, left)
			}
		}
	})
}

// move is a migration with its running pods.
type move struct {
	*cluster
	old oldNetwork
	on  map[string]string // node of each pod
}

// routes returns the routes between nodes. It leaves out the routes of links, which come and go.
func (m *move) routes(all string) string {
	var list []string
	for line := range strings.Lines(all) {
		if strings.Contains(line, " via ") {
			list = append(list, line)
		}
	}
	return strings.Join(list, "")
}

// pods starts pods, each with a host port, and fails if an address is given twice.
func (m *move) pods(node string, names ...string) {
	m.Helper()
	for _, name := range names {
		m.on[name] = node
		m.pod(name, node, 18000+len(m.on))
	}
	m.ready(2*time.Minute, append([]string{"pod"}, names...)...)
	has := map[string]string{}
	for pod := range m.on {
		for _, addr := range m.addrs(pod) {
			if other := has[addr]; other != "" {
				m.Fatalf("%s and %s both have %s", other, pod, addr)
			}
			has[addr] = pod
		}
	}
}

// isNew reports whether our plugins attached a pod.
func (m *move) isNew(pod string) bool {
	return m.node(m.on[pod], "sh", "-c", "grep -rl default/"+pod+"'\"' /run/patchbay/attachments 2>/dev/null || true") != ""
}

// prove sends requests from each pod to each other pod, and from each node to each pod.
func (m *move) prove(when string) {
	m.Helper()
	asked, ours := 0, map[string]bool{}
	for pod := range m.on {
		ours[pod] = m.isNew(pod)
	}
	for from := range m.on {
		for to := range m.on {
			for i, addr := range m.addrs(to) {
				apart := m.old.bridge && i == 1 && m.on[from] == m.on[to] && ours[from] != ours[to]
				if from == to || apart {
					continue
				}
				asked++
				m.seenAs(fmt.Sprintf("%s: %s by %s", when, to, from), m.ask(when, from, "tcp", hostPort(addr, probePort)), m.addrs(from)[i])
			}
		}
	}
	for to := range m.on {
		for _, node := range []string{"n1", "n2"} {
			for _, addr := range m.addrs(to) {
				asked++
				m.node(node, probeProgram(), "who", "udp", hostPort(addr, probePort))
			}
		}
	}
	m.Logf("%s: %d connections; ours are %v", when, asked, ours)
}

// commands runs, on a node, the commands for root in one part of the page.
func (m *move) commands(node, part string) {
	m.Helper()
	root, err := reftest.Root()
	if err != nil {
		m.Fatal(err)
	}
	page, err := os.ReadFile(root + "/docs/migrate-kubernetes.md")
	if err != nil {
		m.Fatal(err)
	}
	_, rest, found := strings.Cut(string(page), "\n## "+part+"\n")
	text, _, _ := strings.Cut(rest, "\n## ")
	ran := 0
	for line := range strings.Lines(text) {
		if command, ok := strings.CutPrefix(line, "# "); ok {
			m.node(node, "bash", "-euc", command)
			ran++
		}
	}
	if !found || ran == 0 {
		m.Fatalf("the page has no commands under %q", part)
	}
}

// standby is the end of a direct route while the tunnel carries its packets (a detour of package mesh): a
// node that has moved sends to one that has not, whose old network answers on another path. It is tried
// again after ten minutes.
const standby = "proto 113 metric 2048"

// move gives a node our network.
func (m *move) move(node string) {
	m.Helper()
	m.old.stop(m.cluster, node)
	m.commands(node, "2. Each node")
	eventually(m, node+" has our routes", func() error {
		routes := m.node(node, "sh", "-c", "ip -4 route; ip -6 route")
		if strings.Count(routes, "proto 113")-strings.Count(routes, standby) != 2 {
			return fmt.Errorf("%s", routes)
		}
		return nil
	})
	if file := m.node(node, "ls", "/etc/cni/net.d"); file != "10-pods.conflist" {
		m.Errorf("%s has the networks %s", node, file)
	}
}

// back gives a node its old network again.
func (m *move) back(node string) {
	m.Helper()
	m.commands(node, "3. Back")
	m.old.restart(m.cluster, node)
}

// remove deletes pods.
func (m *move) remove(pods ...string) {
	m.Helper()
	m.kubectl(append([]string{"delete", "pod", "--wait"}, pods...)...)
	for _, pod := range pods {
		delete(m.on, pod)
	}
}

// noLeaks fails unless the reserved addresses of each node are exactly the addresses of its pods.
func (m *move) noLeaks() {
	m.Helper()
	for _, node := range []string{"n1", "n2"} {
		want := map[string]bool{}
		for pod, on := range m.on {
			for _, addr := range m.addrs(pod) {
				want[addr] = want[addr] || on == node
			}
		}
		eventually(m, "addresses of "+node+" are its pods'", func() error {
			for _, addr := range strings.Fields(m.node(node, "ls", m.old.pool)) {
				if net.ParseIP(addr) != nil && !want[addr] {
					return fmt.Errorf("%s is reserved", addr)
				}
			}
			return nil
		})
	}
}
