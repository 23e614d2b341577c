// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/test/reftest"
)

// probeImage is package probe as a container image, serving on probePort.
const (
	probeImage = "docker.io/library/probe:lab"
	probePort  = 8080
)

// cluster is a control plane and nodes of real kubelets and containerds.
type cluster struct {
	*testing.T
	script string // test/labs/kube/kube
	dir    string // LAB_DIR

	changes      int      // of the masquerade's ConfigMap
	agentFlags   []string // further flags of the agents
	agentProgram string   // of another build; "": patchbayd()
}

// newCluster starts one, without a network; how are the arguments of `kube up`, none for two
// nodes.
func newCluster(t *testing.T, how ...string) *cluster {
	t.Helper()
	k := &cluster{T: t, script: reftest.Lab(t, "kube/kube"), dir: filepath.Join(os.Getenv(workEnv), "k")}
	t.Setenv("LAB_DIR", k.dir)
	t.Cleanup(func() { run(t, k.script, "down") })
	k.do(append([]string{"up"}, how...)...)
	run(t, reftest.Lab(t, "image"), k.dir+"/probe.tar", probeImage,
		fmt.Sprintf(`["/probe","serve",":%d"]`, probePort), "probe="+probeProgram())
	return k
}

// do runs a command of the lab.
func (k *cluster) do(args ...string) string { k.Helper(); return run(k, k.script, args...) }

// kubectl runs kubectl as cluster admin.
func (k *cluster) kubectl(args ...string) string {
	k.Helper()
	return k.do(append([]string{"kubectl"}, args...)...)
}

// node runs a command on a node.
func (k *cluster) node(name string, args ...string) string {
	k.Helper()
	return k.do(append([]string{"node", name}, args...)...)
}

// apply sends an object to the API server.
func (k *cluster) apply(o object) {
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

// install puts the plugin directory on a node. Then it writes a network with the node's own pod
// CIDRs, by a rename, because containerd's watcher needs one. If our plugins are tested, one node
// gets its network from containerd, by the template of install --kubernetes.
func (k *cluster) install(node string) {
	k.Helper()
	k.importProbe(node)
	if ours() && node == "n1" {
		k.installTemplate(node)
		return
	}
	k.node(node, "sh", "-c", "cp -a "+plugins()+"/. /opt/cni/bin/")
	n := newNetwork(k, "bridge", "1.0.0")
	n.name, n.subnets = "pods", k.podCIDRs(node)
	n.parse(k)
	file := filepath.Join(k.dir, node+".conflist")
	if err := os.WriteFile(file, n.list.Bytes, 0o644); err != nil {
		k.Fatal(err)
	}
	k.node(node, "sh", "-c", "cp "+file+" /etc/cni/net.d/.new && mv /etc/cni/net.d/.new /etc/cni/net.d/10-pods.conflist")
}

// installTemplate lets containerd make a node's network when it knows the node's pod CIDRs.
func (k *cluster) installTemplate(node string) {
	k.Helper()
	args := []string{patchbay(), "install", "--kubernetes", "--cluster-cidr=fd00:244::/56"}
	if len(k.nodeAddrs(node)) == 2 {
		args = append(args, "--cluster-cidr=10.244.0.0/16")
	}
	k.node(node, append(args, "/opt/cni/bin")...)
}

// nodeAddrs returns a node's addresses, one of each family that the cluster has.
func (k *cluster) nodeAddrs(node string) []string {
	k.Helper()
	raw, err := os.ReadFile(filepath.Join(k.dir, "nodes", node, "addresses"))
	if err != nil {
		k.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(raw)), ",")
}

// importProbe gives a node the image of the probe.
func (k *cluster) importProbe(node string) {
	k.Helper()
	k.node(node, "ctr", "-a", "/run/containerd/containerd.sock", "-n", "k8s.io", "images", "import", k.dir+"/probe.tar")
}

// podCIDRs returns a node's podCIDRs. The controller manager assigns them some time after the
// node registered.
func (k *cluster) podCIDRs(node string) (cidrs []string) {
	k.Helper()
	eventually(k, "pod CIDRs of "+node, func() error {
		cidrs = strings.Fields(k.kubectl("get", "node", node, "-o", "jsonpath={.spec.podCIDRs[*]}"))
		if len(cidrs) != 2 {
			return fmt.Errorf("has %v", cidrs)
		}
		return nil
	})
	return cidrs
}

// pod starts a pod with a bandwidth limit that answers probes. If hostPort is not 0, the pod has
// this host port.
func (k *cluster) pod(name, node string, hostPort int) {
	k.Helper()
	k.podWith(name, node, hostPort, nil)
}

// podWith starts a pod as pod does, with further fields of its spec.
func (k *cluster) podWith(name, node string, hostPort int, further object) {
	k.Helper()
	port := object{"containerPort": probePort}
	if hostPort != 0 {
		port["hostPort"] = hostPort
	}
	spec := object{
		"nodeName": node, "terminationGracePeriodSeconds": 1, "automountServiceAccountToken": false,
		"containers": []object{{"name": "probe", "image": probeImage, "imagePullPolicy": "Never", "ports": []object{port}}},
	}
	maps.Copy(spec, further)
	k.apply(object{
		"apiVersion": "v1", "kind": "Pod",
		"metadata": object{"name": name, "labels": object{"app": name}, "annotations": object{"kubernetes.io/ingress-bandwidth": "100M", "kubernetes.io/egress-bandwidth": "100M"}},
		"spec":     spec,
	})
}

// ready waits until pods or nodes are ready.
func (k *cluster) ready(limit time.Duration, what ...string) {
	k.Helper()
	k.kubectl(append([]string{"wait", "--for=condition=Ready", "--timeout=" + limit.String()}, what...)...)
}

// addrs are a pod's addresses in the API server.
func (k *cluster) addrs(pod string) []string {
	k.Helper()
	addrs := strings.Fields(k.kubectl("get", "pod", pod, "-o", "jsonpath={.status.podIPs[*].ip}"))
	if len(addrs) != len(k.nodeAddrs("n1")) {
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

// pid is the process id that the lab recorded for a program.
func (k *cluster) pid(name string) string {
	k.Helper()
	raw, err := os.ReadFile(filepath.Join(k.dir, "run", name+".pid"))
	if err != nil {
		k.Fatal(err)
	}
	return strings.TrimSpace(string(raw))
}

// reboot does to a node what a power cycle does. Its programs are killed, and its links, its
// firewall and /run are gone. Its disk stays, and it has a new boot id. Then containerd and the
// kubelet start again.
func (k *cluster) reboot(node string) {
	k.Helper()
	k.powerOff(node, k.pid(node+"-holder"))
	k.wipe(node)
	k.do("boot", node)
}

// wipe removes what a node's kernel and its memory held, once its power is off.
func (k *cluster) wipe(node string) {
	k.Helper()
	k.node(node, "sh", "-c", `
		for l in $(ls /sys/class/net); do [ $l = eth0 ] || [ $l = lo ] || ip link del $l; done 2>/dev/null
		nft flush ruleset
		umount -l /run && mount -t tmpfs tmpfs /run
		mkdir -p /run/lock /run/netns
		cat /proc/sys/kernel/random/uuid >/run/boot_id
		mount --bind /run/boot_id /proc/sys/kernel/random/boot_id`)
}

// powerOff kills everything in a node's mount namespace at once, except the process that holds
// the namespace. It also kills the containers, which those processes started in other namespaces,
// and removes their control groups: a kubelet that finds those of dead containers asks for each
// container for three seconds before it registers its node.
func (k *cluster) powerOff(node, holder string) {
	k.Helper()
	groups := map[string]bool{}
	eventually(k, node+" is off", func() error {
		pids, err := processesOf(holder)
		for _, pid := range pids {
			for _, dir := range containerGroups(pid) {
				groups[dir] = true
			}
			if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
				return err
			}
		}
		if len(pids) > 0 {
			return fmt.Errorf("killed %d processes, looking for more", len(pids))
		}
		for dir := range groups {
			if gone := os.Remove(dir); !errors.Is(gone, os.ErrNotExist) {
				err = errors.Join(err, gone)
			}
		}
		return err
	})
}

// containerGroups lists the directories of the control groups of a container's process.
func containerGroups(pid int) (dirs []string) {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid)) // the process may have ended
	for line := range strings.Lines(string(text)) {
		if f := strings.SplitN(strings.TrimSpace(line), ":", 3); len(f) == 3 && strings.HasPrefix(f[2], "/k8s.io/") {
			found, _ := filepath.Glob("/sys/fs/cgroup/*" + f[2])
			dirs = append(dirs, found...)
		}
	}
	return dirs
}

// processesOf lists the processes in the mount namespace of holder and their descendants,
// without holder itself and dead processes.
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
	_, parent := processState(proc)
	pid, _ = strconv.Atoi(parent)
	return pid
}

// processState reads the state and the parent of a process. If there is no such process, both are
// empty.
func processState(proc string) (state, parent string) {
	raw, _ := os.ReadFile(proc + "/stat") // pid (name) state ppid
	rest := raw[strings.LastIndexByte(string(raw), ')')+1:]
	if fields := strings.Fields(string(rest)); len(fields) > 1 {
		return fields[0], fields[1]
	}
	return "", ""
}

// saveLogs copies the logs of a failed cluster to a place where they can be read.
func (k *cluster) saveLogs() {
	if !k.Failed() {
		return
	}
	to, err := os.MkdirTemp("", "patchbay-e2e-logs-")
	if err == nil {
		err = os.CopyFS(to, os.DirFS(filepath.Join(k.dir, "log")))
	}
	holders, _ := filepath.Glob(filepath.Join(k.dir, "run", "*-holder.pid")) // the pattern is valid
	for _, file := range holders {
		err = errors.Join(err, k.saveState(strings.TrimSuffix(filepath.Base(file), "-holder.pid"), to))
	}
	k.Logf("logs of the cluster are in %s (%v)", to, err)
}

// saveState writes what a node has of its pods' network.
func (k *cluster) saveState(node, to string) error {
	out, failed := exec.Command(k.script, "node", node, "sh", "-c", `exec 2>&1
		`+patchbay()+` gc
		`+patchbay()+` ps
		ls -l --full-time /run/netns /run/patchbay/attachments/* /var/lib/cni/networks/*
		grep -r . /var/lib/cni/networks
		mount | grep netns
		ctr -n k8s.io sandboxes ls
		ctr -n k8s.io tasks ls`).CombinedOutput()
	return errors.Join(failed, os.WriteFile(filepath.Join(to, node+"-state"), out, 0o644))
}
