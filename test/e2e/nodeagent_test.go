// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/daemons/test/chart"
)

// patchbayd is the program of the agent.
func patchbayd() string { return os.Getenv(workEnv) + "/patchbayd" }

// buildAgent builds it before the test has a node of its own.
func buildAgent(t *testing.T) {
	t.Helper()
	if os.Getenv(insideEnv) != "" {
		return
	}
	if err := goBuild(patchbayd(), "../../daemons/cmd/patchbayd"); err != nil {
		t.Fatal(err)
	}
}

// TestNodeAgent has a cluster of two segments with only the network of `patchbayd node`. n1 and n3
// reach each other directly. n2 is behind a router and runs containerd 2.
func TestNodeAgent(t *testing.T) {
	if !ours() {
		t.Log("the agent is of our build")
		return
	}
	buildAgent(t)
	onNode(t, func(t *testing.T) {
		k := newCluster(t, "3", "routed", "containerd2=n2")
		defer k.saveLogs()
		k.agentAccount()
		for _, node := range []string{"n1", "n2", "n3"} {
			k.importProbe(node)
			k.startAgent(node)
		}
		k.ready(2*time.Minute, "nodes", "--all")
		k.pod("one", "n1", 0)
		k.pod("far", "n2", 0)
		k.pod("three", "n3", 0)
		k.ready(2*time.Minute, "pods", "--all")
		k.proveMesh("one", "far", "three")
		k.proveWays()
		k.proveHostToPod()

		before := k.agentState("n1")
		ends := []func(){k.startStream("one", "far"), k.startStream("far", "one"), k.startStream("three", "one")}
		k.stopAgent("n1", "KILL")
		k.pod("late", "n1", 0)
		k.ready(time.Minute, "pod", "late")
		k.proveMesh("late", "far")
		late := k.attached("n1", "late")
		k.kubectl("delete", "pod", "late")
		k.gone("n1", late)
		k.startAgent("n1")
		if after := k.agentState("n1"); after != before {
			t.Errorf("the agent started again and changed\n%s\nto\n%s", before, after)
		}
		for _, node := range []string{"n2", "n3", "n1"} {
			k.stopAgent(node, "KILL")
			k.startAgent(node)
		}
		for _, end := range ends {
			end()
		}
		k.proveMesh("one", "far", "three")
		k.proveExpired("n1", "one", "three")
		k.proveRenumbered("n3", "three", "fresh", "one", "far")
		k.proveClean("fresh")
	})
}

// agentAccount makes the agent's ServiceAccount with the rights that the chart gives it, and its kubeconfig.
func (k *cluster) agentAccount() {
	k.Helper()
	objects := strings.Split(chart.Render(k, func(v map[string]any) {
		v["services"], v["loadBalancers"] = slices.Contains(k.agentFlags, withServices), slices.Contains(k.agentFlags, withLoadBalancers)
	}), "\n---\n")
	objects = slices.DeleteFunc(objects, func(o string) bool { return strings.Contains(o, "kind: DaemonSet") })
	k.applyText(strings.Join(objects, "\n---\n"))
	admin, err := os.ReadFile(k.dir + "/cfg/admin.kubeconfig")
	if err != nil {
		k.Fatal(err)
	}
	token := strings.TrimSpace(k.kubectl("create", "token", "patchbay", "-n", "kube-system", "--duration=8h"))
	var lines []string
	for _, line := range strings.Split(string(admin), "\n") {
		if strings.HasPrefix(line, "users:") {
			line = fmt.Sprintf("users: [{name: u, user: {token: %q}}]", token)
		}
		lines = append(lines, line)
	}
	if err := os.WriteFile(k.dir+"/cfg/agent.kubeconfig", []byte(strings.Join(lines, "\n")), 0o600); err != nil {
		k.Fatal(err)
	}
}

// startAgent starts a node's agent and waits until it is ready.
func (k *cluster) startAgent(node string) {
	k.Helper()
	log, err := os.OpenFile(k.dir+"/log/"+node+"-agent.log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		k.Fatal(err)
	}
	defer log.Close()
	args := []string{"-t", k.pid(node + "-holder"), "-m", "-u", "-n", "--", cmp.Or(k.agentProgram, patchbayd()), "node",
		"--kubeconfig", k.dir + "/cfg/agent.kubeconfig", "--program", patchbay(),
		"--cluster-cidr=10.244.0.0/16", "--cluster-cidr=fd00:244::/56"}
	cmd := exec.Command("nsenter", append(args, k.agentFlags...)...)
	cmd.Env, cmd.Stdout, cmd.Stderr = append(os.Environ(), "NODE_NAME="+node), log, log
	if err := cmd.Start(); err != nil {
		k.Fatal(err)
	}
	go cmd.Wait()
	if err := os.WriteFile(k.dir+"/run/"+node+"-agent.pid", []byte(strconv.Itoa(cmd.Process.Pid)), 0o600); err != nil {
		k.Fatal(err)
	}
	eventually(k, "the agent of "+node+" is ready", func() error { return ready("kl-" + node) })
}

// ready asks the agent in a namespace, by a connection that this thread makes.
func ready(ns string) error {
	return within(ns, func() error {
		d := net.Dialer{Timeout: time.Second, FallbackDelay: -1}
		c, err := d.Dial("tcp", "127.0.0.1:9472")
		if err != nil {
			return err
		}
		defer c.Close()
		if err := c.SetDeadline(time.Now().Add(time.Second)); err != nil {
			return err
		}
		if _, err := io.WriteString(c, "GET /readyz HTTP/1.0\r\n\r\n"); err != nil {
			return err
		}
		if answer, err := io.ReadAll(c); err != nil || !strings.Contains(string(answer), "200 OK") {
			return fmt.Errorf("%s (%w)", answer, err)
		}
		return nil
	})
}

// stopAgent ends a node's agent with a signal.
func (k *cluster) stopAgent(node, signal string) {
	k.Helper()
	pid := k.pid(node + "-agent")
	run(k.T, "kill", "-"+signal, pid)
	eventually(k, "the agent of "+node+" ends", func() error {
		if _, err := os.Stat("/proc/" + pid); err == nil {
			return errors.New("it runs")
		}
		return nil
	})
	if err := os.Remove(k.dir + "/run/" + node + "-agent.pid"); err != nil {
		k.Fatal(err)
	}
}

// proveMesh checks that pods reach each other and see each other's addresses.
func (k *cluster) proveMesh(pods ...string) {
	k.Helper()
	for _, from := range pods {
		for _, to := range pods {
			if from == to {
				continue
			}
			for i, addr := range k.addrs(to) {
				k.seenAs(to+" by "+from, k.ask("across nodes", from, "tcp", hostPort(addr, probePort)), k.addrs(from)[i])
			}
		}
	}
}

// proveWays checks that nodes on one segment have plain routes, and that a tunnel leads to the
// others.
func (k *cluster) proveWays() {
	k.Helper()
	for node, want := range map[string]string{"n1": "1 plain, 1 tunnelled", "n2": "0 plain, 2 tunnelled", "n3": "1 plain, 1 tunnelled"} {
		for _, family := range []string{"-4", "-6"} {
			routes := k.node(node, "ip", family, "route", "show", "proto", "113")
			tunnelled := strings.Count(routes, " dev patchbay-pods")
			plain := strings.Count(routes, " dev eth0")
			if got := fmt.Sprintf("%d plain, %d tunnelled", plain, tunnelled); got != want {
				k.Errorf("%s: %s, want %s:\n%s", node, got, want, routes)
			}
		}
	}
}

// proveHostToPod checks that a node reaches pods of other nodes. Behind a tunnel, the pods see an
// address of the node's podCIDR. So their answers take the tunnel, too.
func (k *cluster) proveHostToPod() {
	k.Helper()
	n1 := k.podCIDRs("n1")
	for i, far := range k.addrs("far") {
		own, _, _ := strings.Cut(n1[i], "/")
		k.seenAs("pod far by n1", k.node("n1", probeProgram(), "who", "tcp", hostPort(far, probePort)), own)
		k.seenAs("pod three by n1", k.node("n1", probeProgram(), "who", "tcp", hostPort(k.addrs("three")[i], probePort)), k.nodeAddrs("n1")[i])
	}
}

// agentState returns the objects that the agent made on a node.
func (k *cluster) agentState(node string) string {
	k.Helper()
	return k.node(node, "sh", "-c", `
		ip -4 route show proto 113; ip -6 route show proto 113
		ip -o link show dev patchbay-pods; bridge fdb show dev patchbay-pods; ip neigh show dev patchbay-pods nud permanent
		stat -c '%n %i %y' /etc/cni/net.d /etc/cni/net.d/* /var/lib/patchbay/node/nodes.json`)
}

// proveClean checks that a Node that is deleted loses its routes at once. While there are pods,
// clean keeps the network's file. After that it removes everything. last is the last pod of n3.
func (k *cluster) proveClean(last string) {
	k.Helper()
	k.kubectl("delete", "pod", last)
	k.stopAgent("n3", "TERM")
	eventually(k, "clean of n3", func() error {
		k.node("n3", patchbayd(), "node", "clean")
		if left := k.node("n3", "sh", "-c", `
			ip -4 route show proto 113; ip -6 route show proto 113
			ls /sys/class/net | grep patchbay
			ls /etc/cni/net.d; ls /run/patchbay/mesh; ls /var/lib/patchbay`); left != "" {
			return fmt.Errorf("left: %s", left)
		}
		return nil
	})
	k.kubectl("delete", "node", "n3")
	eventually(k, "n1 has no route to n3", func() error {
		if routes := k.node("n1", "ip", "route", "show", "proto", "113"); strings.Contains(routes, "dev eth0") {
			return errors.New(routes)
		}
		return nil
	})
	k.stopAgent("n1", "TERM")
	if out := k.node("n1", patchbayd(), "node", "clean"); !strings.Contains(out, "10-pods.conflist stays") {
		k.Errorf("clean with a pod: %s", out)
	}
	k.node("n1", probeProgram(), "who", "tcp", hostPort(k.addrs("one")[0], probePort))
}
