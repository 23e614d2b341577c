// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/reftest"
)

// sharedEnv names the directory that has kubelab, if it is not the one beside
// the repository.
const sharedEnv = "PATCHBAY_SHARED"

// probeImage is package probe as a container image, serving on probePort.
const (
	probeImage = "docker.io/library/probe:lab"
	probePort  = 8080
)

// kubelab is a cluster of real kubelets and containerds (shared/kubelab).
type kubelab struct {
	*testing.T
	script string
	dir    string // KUBELAB_DIR: programs and images by links, state of its own
}

// kubelabScript finds kubelab.
func kubelabScript(t *testing.T) string {
	t.Helper()
	shared := os.Getenv(sharedEnv)
	if shared == "" {
		root, err := reftest.Root()
		if err != nil {
			t.Fatal(err)
		}
		shared = filepath.Join(root, "../shared")
	}
	script := filepath.Join(shared, "kubelab/kubelab")
	if !exists(script) {
		t.Fatalf("no %s: set %s to the directory that holds kubelab", script, sharedEnv)
	}
	return script
}

// buildKubelab compiles the Kubernetes programs unless an earlier run did: 5
// minutes on two cores. It returns where they are.
func buildKubelab(t *testing.T) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(cache, "kubelab")
	if !exists(dir+"/bin/kubelet") || !exists(dir+"/bin/kubectl") || !exists(dir+"/img/busybox.tar") {
		start := time.Now()
		run(t, "env", "KUBELAB_DIR="+dir, kubelabScript(t), "build")
		t.Logf("kubelab build: %.0f s", time.Since(start).Seconds())
	}
	return dir
}

// newKubelab starts a control plane and two nodes, without a network.
func newKubelab(t *testing.T, built string) *kubelab {
	t.Helper()
	k := &kubelab{t, kubelabScript(t), filepath.Join(os.Getenv(workEnv), "k")}
	for _, dir := range []string{"bin", "img"} {
		if err := errors.Join(os.MkdirAll(k.dir, 0o755), os.Symlink(filepath.Join(built, dir), filepath.Join(k.dir, dir))); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("KUBELAB_DIR", k.dir)
	k.script = kubelabScript(t)
	t.Cleanup(func() { run(t, k.script, "down") })
	k.do("up", "2")
	run(t, "python3", filepath.Join(filepath.Dir(k.script), "mkimage.py"), k.dir+"/probe.tar", probeImage,
		fmt.Sprintf(`["/probe","serve",":%d"]`, probePort), "null", "probe="+probeProgram())
	return k
}

// do runs a command of kubelab.
func (k *kubelab) do(args ...string) string { k.Helper(); return run(k, k.script, args...) }

// kubectl runs kubectl as cluster admin.
func (k *kubelab) kubectl(args ...string) string {
	k.Helper()
	return k.do(append([]string{"kubectl"}, args...)...)
}

// node runs a command on a node.
func (k *kubelab) node(name string, args ...string) string {
	k.Helper()
	return k.do(append([]string{"node", name}, args...)...)
}

// apply gives the API server an object.
func (k *kubelab) apply(o object) {
	k.Helper()
	raw, err := json.Marshal(o)
	if err != nil {
		k.Fatal(err)
	}
	file := filepath.Join(k.dir, "apply.json")
	if err := os.WriteFile(file, raw, 0o600); err != nil {
		k.Fatal(err)
	}
	k.kubectl("apply", "-f", file)
}

// install puts the plugin directory on a node and then, by a rename as
// containerd's watcher needs, a network with the node's own pod CIDRs. Beside
// ours one of the nodes has the whole chain as one plugin.
func (k *kubelab) install(node string) {
	k.Helper()
	k.node(node, "sh", "-c", "cp -a "+plugins()+"/. /opt/cni/bin/ && ctr -a /run/containerd/containerd.sock -n k8s.io images import "+k.dir+"/probe.tar")
	n := newNetwork(k, "bridge", "1.0.0")
	n.name, n.subnets = "pods", k.podCIDRs(node)
	if ours() && node == "n2" {
		n.form = "patchbay"
	}
	n.parse(k)
	file := filepath.Join(k.dir, node+".conflist")
	if err := os.WriteFile(file, n.list.Bytes, 0o644); err != nil {
		k.Fatal(err)
	}
	k.node(node, "sh", "-c", "cp "+file+" /etc/cni/net.d/.new && mv /etc/cni/net.d/.new /etc/cni/net.d/10-pods.conflist")
}

// podCIDRs are a node's, which the controller manager gives it a while after it
// registered.
func (k *kubelab) podCIDRs(node string) (cidrs []string) {
	k.Helper()
	eventually(k, "pod CIDRs of "+node, 30*time.Second, func() error {
		cidrs = strings.Fields(k.kubectl("get", "node", node, "-o", "jsonpath={.spec.podCIDRs[*]}"))
		if len(cidrs) != 2 {
			return fmt.Errorf("has %v", cidrs)
		}
		return nil
	})
	return cidrs
}

// pod starts a pod that answers probes, shaped, with a host port unless it is 0.
func (k *kubelab) pod(name, node string, hostPort int) {
	k.Helper()
	port := object{"containerPort": probePort}
	if hostPort != 0 {
		port["hostPort"] = hostPort
	}
	k.apply(object{
		"apiVersion": "v1", "kind": "Pod",
		"metadata": object{"name": name, "annotations": object{"kubernetes.io/ingress-bandwidth": "100M", "kubernetes.io/egress-bandwidth": "100M"}},
		"spec": object{
			"nodeName": node, "terminationGracePeriodSeconds": 1, "automountServiceAccountToken": false,
			"containers": []object{{"name": "probe", "image": probeImage, "imagePullPolicy": "Never", "ports": []object{port}}},
		},
	})
}

// ready waits until pods or nodes are.
func (k *kubelab) ready(limit time.Duration, what ...string) {
	k.Helper()
	k.kubectl(append([]string{"wait", "--for=condition=Ready", "--timeout=" + limit.String()}, what...)...)
}

// addrs are a pod's addresses as the API server knows them.
func (k *kubelab) addrs(pod string) []string {
	k.Helper()
	addrs := strings.Fields(k.kubectl("get", "pod", pod, "-o", "jsonpath={.status.podIPs[*].ip}"))
	if len(addrs) != 2 {
		k.Fatalf("pod %s has the addresses %v, want one of each family", pod, addrs)
	}
	return addrs
}

// hostPort joins an address and a port.
func hostPort(addr string, port int) string {
	if strings.Contains(addr, ":") {
		addr = "[" + addr + "]"
	}
	return addr + ":" + strconv.Itoa(port)
}

// pid is the process id that kubelab recorded for a program.
func (k *kubelab) pid(name string) string {
	k.Helper()
	raw, err := os.ReadFile(filepath.Join(k.dir, "run", name+".pid"))
	if err != nil {
		k.Fatal(err)
	}
	return strings.TrimSpace(string(raw))
}

// reboot does to a node what a power cycle does: its programs die unasked, its
// links, firewall and /run are gone, its disk stays, it has a new boot id. Then
// containerd and the kubelet start again.
func (k *kubelab) reboot(node string) {
	k.Helper()
	holder := k.pid(node + "-holder")
	k.powerOff(node, holder)
	k.node(node, "sh", "-c", `
		for l in $(ls /sys/class/net); do [ $l = eth0 ] || [ $l = lo ] || ip link del $l; done 2>/dev/null
		nft flush ruleset
		umount -l /run && mount -t tmpfs tmpfs /run
		mkdir -p /run/lock /run/netns
		cat /proc/sys/kernel/random/uuid >/run/boot_id
		mount --bind /run/boot_id /proc/sys/kernel/random/boot_id`)
	k.start(node+"-containerd", holder, "containerd", "-c", k.dir+"/nodes/"+node+"/containerd.toml")
	eventually(k, "containerd of "+node+" answers", 20*time.Second, func() error {
		return exec.Command(k.script, "node", node, "ctr", "-a", "/run/containerd/containerd.sock", "version").Run()
	})
	ip := "10.99.0.2" + node[1:]
	k.start(node+"-kubelet", holder, k.dir+"/bin/kubelet", "--config", k.dir+"/nodes/"+node+"/kubelet.yaml",
		"--kubeconfig", k.dir+"/cfg/"+node+".kubeconfig", "--hostname-override", node,
		"--node-ip", ip+",fd00:99::2"+node[1:], "--root-dir", k.dir+"/nodes/"+node+"/kubelet", "--v=2")
}

// powerOff kills at once everything in a node's mount namespace but the process
// that holds it, and what those started elsewhere: containers.
func (k *kubelab) powerOff(node, holder string) {
	k.Helper()
	eventually(k, node+" is off", 10*time.Second, func() error {
		pids, err := processesOf(holder)
		for _, pid := range pids {
			if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
				return err
			}
		}
		if len(pids) > 0 {
			return fmt.Errorf("killed %d processes, looking for more", len(pids))
		}
		return err
	})
}

// processesOf lists the processes in the mount namespace of holder and their
// descendants, without holder itself and what is dead already.
func processesOf(holder string) (pids []int, err error) {
	mnt, err := os.Readlink("/proc/" + holder + "/ns/mnt")
	if err != nil {
		return nil, err
	}
	children, roots := map[int][]int{}, []int{}
	all, err := filepath.Glob("/proc/[0-9]*/ns/mnt")
	for _, link := range all {
		proc := filepath.Dir(filepath.Dir(link))
		pid, _ := strconv.Atoi(filepath.Base(proc))
		ns, err := os.Readlink(link)
		if err != nil || filepath.Base(proc) == holder { // a zombie has no namespace
			continue
		}
		children[parentOf(proc)] = append(children[parentOf(proc)], pid)
		if ns == mnt {
			roots = append(roots, pid)
		}
	}
	seen := map[int]bool{}
	for len(roots) > 0 {
		pid := roots[0]
		if roots = roots[1:]; !seen[pid] {
			seen[pid] = true
			pids, roots = append(pids, pid), append(roots, children[pid]...)
		}
	}
	return pids, err
}

// parentOf reads the parent's process id, 0 when the process is gone.
func parentOf(proc string) (pid int) {
	raw, _ := os.ReadFile(proc + "/stat") // pid (name) state ppid
	if i := strings.LastIndex(string(raw), ") "); i >= 0 {
		fmt.Sscanf(string(raw[i+2:]), "%1s %d", new(string), &pid)
	}
	return pid
}

// start starts a node's program the way kubelab does, so that `kubelab down`
// ends it.
func (k *kubelab) start(name, holder string, args ...string) {
	k.Helper()
	log, err := os.OpenFile(filepath.Join(k.dir, "log", name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		k.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command("nsenter", append([]string{"-t", holder, "-m", "-u", "-n", "--"}, args...)...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		k.Fatal(err)
	}
	go cmd.Wait()
	if err := os.WriteFile(filepath.Join(k.dir, "run", name+".pid"), []byte(strconv.Itoa(cmd.Process.Pid)), 0o644); err != nil {
		k.Fatal(err)
	}
}

// saveLogs keeps the logs of a failed cluster where they can be read.
func (k *kubelab) saveLogs() {
	if !k.Failed() {
		return
	}
	to, err := os.MkdirTemp("", "patchbay-kubelab-logs-")
	if err == nil {
		err = os.CopyFS(to, os.DirFS(filepath.Join(k.dir, "log")))
	}
	k.Logf("logs of the cluster are in %s (%v)", to, err)
}
