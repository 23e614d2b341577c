// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/internal/test/reftest"
)

// dockerPort is the published port of a Docker container on the pods' network.
const dockerPort = 18090

// TestDockerBesidePods runs a dockerd on a node of a cluster. Containers of Docker, podman and
// `patchbay run` are on the pods' network. dockerd starts before the first pod, as after a boot, so
// it sets the policy of FORWARD to drop. No agent runs. Most parts run only if PATCHBAY_NIGHTLY is
// 1, as in `make nightly`.
func TestDockerBesidePods(t *testing.T) {
	if !ours() {
		t.Log("the template is of our build")
		return
	}
	buildAgent(t)
	onNode(t, func(t *testing.T) {
		k := newCluster(t, "2", "containerd2=n2")
		defer k.saveLogs()
		d := k.newDocker("n1")
		k.podNetwork("n1", "n2")
		k.pod("one", "n1", 0)
		k.pod("far", "n2", 0)
		k.service("far")
		k.ready(2*time.Minute, "pods", "--all")
		k.do("proxy", "nftables")
		if rules := k.node("n1", "iptables", "-S", "FORWARD"); !strings.Contains(rules, "-P FORWARD DROP") {
			t.Fatalf("FORWARD of n1 does not drop, so the test proves less than it should:\n%s", rules)
		}
		k.proveMesh("one", "far")

		d.docker("network", "create", "-d", "patchbay", "--ipam-driver", "null", "--ipv6", "-o", "cni.network=pods", "pods")
		d.run("web", "-p", fmt.Sprintf("%d:%d", dockerPort, probePort))
		d.proveReached("web")
		d.proveKept()
		if os.Getenv("PATCHBAY_NIGHTLY") == "1" {
			d.proveOnePool()
			d.proveEachLivesAlone()
			d.proveOthers()
		}

		d.docker("rm", "-f", "web")
		k.noLeaks("n1", "one")
	})
}

// docker is a dockerd with our driver on a node.
type docker struct {
	*cluster
	on, dir string
	lab     string // test/labs/docker/dockerd
}

// newDocker starts dockerd and our driver on a node. The lab's script finds the node's namespaces
// by the process that holds them.
func (k *cluster) newDocker(node string) *docker {
	k.Helper()
	d := &docker{k, node, filepath.Join(k.dir, "docker"), reftest.Lab(k, "docker/dockerd")}
	own := filepath.Join(d.dir, node)
	if err := errors.Join(os.MkdirAll(own, 0o755), os.WriteFile(own+"/holder.pid", []byte(k.pid(node+"-holder")), 0o600),
		os.Symlink(k.dir+"/log/"+node+"-dockerd.log", own+"/dockerd.log")); err != nil {
		k.Fatal(err)
	}
	d.up()
	d.docker("load", "-q", "-i", k.dir+"/probe.tar")
	d.startDriver()
	return d
}

func (d *docker) up() { d.Helper(); d.do("up", d.on, "new") }

// do runs a command of the lab of dockerds.
func (d *docker) do(args ...string) string {
	d.Helper()
	return run(d, "env", append([]string{"LAB_DIR=" + d.dir, d.lab}, args...)...)
}

// docker runs the docker client.
func (d *docker) docker(args ...string) string {
	d.Helper()
	return d.do(append([]string{"docker", d.on}, args...)...)
}

func (d *docker) startDriver() {
	d.Helper()
	log, err := os.OpenFile(d.cluster.dir+"/log/"+d.on+"-driver.log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		d.Fatal(err)
	}
	defer log.Close()
	own := filepath.Join(d.dir, d.on)
	cmd := exec.Command("nsenter", "-t", d.pid(d.on+"-holder"), "-m", "-u", "-n", "--", patchbayd(), "docker",
		"--data-root", own+"/data-new", "--docker", "unix://"+own+"/docker.sock", "--grace", "8s")
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		d.Fatal(err)
	}
	go cmd.Wait()
	d.Cleanup(func() { cmd.Process.Kill() })
	eventually(d, "the driver's socket", func() error {
		return exec.Command(d.script, "node", d.on, "test", "-S", "/run/docker/plugins/patchbay.sock").Run()
	})
}

// run starts a container on the pods' network that answers probes.
func (d *docker) run(name string, args ...string) {
	d.Helper()
	args = append([]string{"run", "-d", "--name", name, "--network", "pods", "--stop-signal", "KILL"}, args...)
	d.docker(append(args, "probe:lab")...)
}

// addrsOf returns a container's addresses as docker inspect prints them.
func (d *docker) addrsOf(name string) []string {
	d.Helper()
	addrs := strings.Fields(d.docker("inspect", "-f", "{{with .NetworkSettings.Networks.pods}}{{.IPAddress}} {{.GlobalIPv6Address}}{{end}}", name))
	if len(addrs) != 2 {
		d.Fatalf("container %s has the addresses %v, want one of each family", name, addrs)
	}
	return addrs
}

// who asks a server from a container.
func (d *docker) who(name, network, addr string) (seen string) {
	d.Helper()
	eventually(d, name+" asks "+addr, func() error {
		out, err := exec.Command("env", "LAB_DIR="+d.dir, d.lab, "docker", d.on, "exec", name, "/probe", "who", network, addr).CombinedOutput()
		if seen = strings.TrimSpace(string(out)); err != nil {
			return fmt.Errorf("%w: %s", err, seen)
		}
		return nil
	})
	return seen
}

// proveReached: a container has addresses of the node's podCIDRs. It reaches pods and a Service,
// and pods and hosts reach it. All see its own address.
func (d *docker) proveReached(name string) {
	d.Helper()
	cidrs, vips := d.podCIDRs(d.on), strings.Fields(d.kubectl("get", "service", "far", "-o", "jsonpath={.spec.clusterIPs[*]}"))
	for i, own := range d.addrsOf(name) {
		if !netip.MustParsePrefix(cidrs[i]).Contains(netip.MustParseAddr(own)) {
			d.Errorf("container %s has %s, not of the node's %s", name, own, cidrs[i])
		}
		for _, pod := range []string{"one", "far"} {
			d.seenAs(pod+" by "+name, d.who(name, "tcp", hostPort(d.addrs(pod)[i], probePort)), own)
			d.seenAs(name+" by "+pod, d.ask("", pod, "tcp", hostPort(own, probePort)), d.addrs(pod)[i])
		}
		d.seenAs("the Service of far by "+name, d.who(name, "tcp", hostPort(vips[i], 80)), own)
		n2 := d.nodeAddrs("n2")[i]
		d.seenAs(name+" by n2", d.node("n2", probeProgram(), "who", "udp", hostPort(own, probePort)), n2)
		d.seenAs("the port of "+name, d.node("n2", probeProgram(), "who", "tcp", hostPort(d.nodeAddrs(d.on)[i], dockerPort)), n2)
	}
}

// proveOnePool: pods and containers that start at the same time get different addresses, and each
// address is free again when its pod or container has ended.
func (d *docker) proveOnePool() {
	d.Helper()
	var pods, containers []string
	var wait sync.WaitGroup
	for i := range 3 {
		pods, containers = append(pods, fmt.Sprintf("p%d", i)), append(containers, fmt.Sprintf("c%d", i))
		d.pod(pods[i], d.on, 0)
		wait.Add(1)
		go func() {
			defer wait.Done()
			if out, err := exec.Command("env", "LAB_DIR="+d.dir, d.lab, "docker", d.on, "run", "-d", "--name", containers[i], "--network", "pods",
				"--stop-signal", "KILL", "probe:lab").CombinedOutput(); err != nil {
				d.Errorf("%s: %v: %s", containers[i], err, out)
			}
		}()
	}
	wait.Wait()
	d.ready(2*time.Minute, "pods", "--all")
	var all []string
	for _, p := range append(pods, "one") {
		all = append(all, d.addrs(p)...)
	}
	for _, c := range append(containers, "web") {
		all = append(all, d.addrsOf(c)...)
	}
	d.reserved(all)
	d.docker(append([]string{"rm", "-f"}, containers...)...)
	d.kubectl(append([]string{"delete", "pods"}, pods...)...)
	d.reserved(append(d.addrs("one"), d.addrsOf("web")...))
}

// reserved waits until exactly these addresses of the node are reserved, each once.
func (d *docker) reserved(want []string) {
	d.Helper()
	slices.Sort(want)
	if len(slices.Compact(slices.Clone(want))) != len(want) {
		d.Fatalf("an address was given twice: %v", want)
	}
	eventually(d, "the reserved addresses of "+d.on, func() error {
		got := d.reservations(d.on)
		slices.Sort(got)
		if !slices.Equal(got, want) {
			return fmt.Errorf("reserved are %v, want %v", got, want)
		}
		return nil
	})
}

// proveEachLivesAlone: pods keep their network while dockerd is dead, and containers while
// containerd and the kubelet are dead. Both runtimes start again.
func (d *docker) proveEachLivesAlone() {
	d.Helper()
	d.do("kill", d.on)
	d.proveMesh("one", "far")
	d.pod("late", d.on, 0)
	d.ready(time.Minute, "pod", "late")
	d.up()
	d.docker("start", "web")
	d.proveReached("web")
	d.kubectl("delete", "pod", "late")

	web := d.addrsOf("web")
	pids := []string{d.pid(d.on + "-kubelet"), d.pid(d.on + "-containerd")}
	run(d.T, "kill", append([]string{"-KILL"}, pids...)...)
	for i, addr := range web {
		d.seenAs("web by far, without containerd", d.ask("", "far", "tcp", hostPort(addr, probePort)), d.addrs("far")[i])
	}
	d.cluster.do("boot", d.on)
	d.ready(time.Minute, "pods", "--all")
	d.proveReached("web")
	d.reserved(append(d.addrs("one"), web...))
}

// proveKept checks that the commands for the whole node find no problem and remove no living
// attachment.
func (d *docker) proveKept() {
	d.Helper()
	patchbay := "/opt/cni/bin/patchbay"
	d.node(d.on, patchbay, "doctor")
	if out := d.node(d.on, patchbay, "gc", "--grace", "0", "--apply"); !strings.Contains(out, "nothing is left over") {
		d.Errorf("gc: %s", out)
	}
	d.node(d.on, patchbayd(), "docker", "gc", "--apply")
	d.node(d.on, patchbay, "check", "--all")
	if out := d.node(d.on, patchbay, "ps"); !strings.Contains(out, " default/one ") || strings.Contains(out, "(gone)") {
		d.Errorf("ps:\n%s", out)
	}
	if out := d.node(d.on, patchbay, "explain", "default/one"); !strings.Contains(out, "reserve "+d.addrs("one")[0]+" in ") {
		d.Errorf("explain:\n%s", out)
	}
	d.proveReached("web")
}

// proveOthers: containers of podman and `patchbay run` are on the network too.
func (d *docker) proveOthers() {
	d.Helper()
	far, one, cidrs := d.addrs("far"), d.addrs("one"), d.podCIDRs(d.on)
	for i := range far {
		seen := netip.MustParseAddrPort(d.node(d.on, "/opt/cni/bin/patchbay", "run", "--network", "pods", "--", probeProgram(), "who", "tcp", hostPort(far[i], probePort)))
		if !netip.MustParsePrefix(cidrs[i]).Contains(seen.Addr()) {
			d.Errorf("patchbay run: seen as %v, not of %s", seen, cidrs[i])
		}
	}
	p := newPodman(d.T, "nsenter", "-t", d.pid(d.on+"-holder"), "-m", "-u", "-n", "--")
	p.configure("/opt/cni/bin", "/etc/cni/net.d")
	p.start("pm", "--network", "pods")
	out := p.do("inspect", "-f", "{{with .NetworkSettings.Networks.pods}}{{.IPAddress}} {{.GlobalIPv6Address}}{{end}}", "pm")
	for i, own := range strings.Fields(out) {
		d.seenAs("far by podman's container", p.do("exec", "pm", "/bin/probe", "who", "tcp", hostPort(far[i], probePort)), own)
		d.seenAs("podman's container by far", d.ask("", "far", "tcp", hostPort(own, 80)), far[i])
		d.seenAs("podman's container by Docker's", d.who("web", "tcp", hostPort(own, 80)), d.addrsOf("web")[i])
	}
	d.reserved(slices.Concat(one, d.addrsOf("web"), strings.Fields(out)))
	p.do("rm", "-f", "-t", "0", "pm")
	d.reserved(slices.Concat(one, d.addrsOf("web")))
}
