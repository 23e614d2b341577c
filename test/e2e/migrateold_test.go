// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"

	"github.com/patchbay-net/patchbay/internal/test/reftest"
)

// flannel sets up flannel's network on a node as flannel's manifest does.
func (k *cluster) flannel(node string) {
	k.Helper()
	k.node(node, "sh", "-c", fmt.Sprintf(`
		cp %s/flannel /opt/cni/bin/
		mkdir -p /etc/kube-flannel
		echo '{"EnableIPv4": true, "Network": "10.244.0.0/16", "EnableIPv6": true, "IPv6Network": "fd00:244::/56", "Backend": {"Type": "vxlan"}}' >/etc/kube-flannel/net-conf.json`,
		k.pinned("flannelplugin")))
	k.podCIDRs(node)
	k.flanneld(node)
	k.node(node, "sh", "-c", `echo '{"name": "cbr0", "cniVersion": "0.3.1", "plugins": [
		{"type": "flannel", "delegate": {"hairpinMode": true, "isDefaultGateway": true}},
		{"type": "portmap", "capabilities": {"portMappings": true}}]}' >/etc/cni/net.d/.new && mv /etc/cni/net.d/.new /etc/cni/net.d/10-flannel.conflist`)
}

// flanneld starts flannel's agent.
func (k *cluster) flanneld(node string) {
	k.Helper()
	log, err := os.OpenFile(k.dir+"/log/"+node+"-flannel.log", os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		k.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command("nsenter", "-t", k.pid(node+"-holder"), "-m", "-u", "-n", "--", k.pinned("flannel")+"/flannel",
		"--kube-subnet-mgr", "--kubeconfig-file", k.dir+"/cfg/admin.kubeconfig", "--ip-masq", "--iface=eth0")
	cmd.Env, cmd.Stdout, cmd.Stderr = append(os.Environ(), "NODE_NAME="+node), log, log
	if err := cmd.Start(); err != nil {
		k.Fatal(err)
	}
	go cmd.Wait()
	if err := os.WriteFile(k.dir+"/run/"+node+"-flannel.pid", []byte(strconv.Itoa(cmd.Process.Pid)), 0o600); err != nil {
		k.Fatal(err)
	}
	eventually(k, "flanneld of "+node, func() error {
		_, err := os.Stat("/proc/" + k.pid(node+"-holder") + "/root/run/flannel/subnet.env")
		return err
	})
}

// end stops a program that the test started for a node.
func (k *cluster) end(name string) {
	k.Helper()
	run(k.T, "kill", k.pid(name))
	if err := os.Remove(k.dir + "/run/" + name + ".pid"); err != nil {
		k.Fatal(err)
	}
}

// pinned is the directory of a lab's programs.
func (k *cluster) pinned(name string) string {
	k.Helper()
	root, err := reftest.Root()
	if err != nil {
		k.Fatal(err)
	}
	dir := run(k.T, root+"/scripts/pinned", "-n", root+"/test/labs/"+name)
	if _, err := os.Stat(dir); err != nil {
		k.Fatalf("%s is not compiled: run scripts/setup nightly: %v", name, err)
	}
	return dir
}

// kindnet makes on a node what kind's kindnetd makes: the network's file, routes to the other
// nodes, and a chain for packets that leave the cluster. The test cannot run kindnetd, because no
// Go module contains it.
func (k *cluster) kindnet(node string) {
	k.Helper()
	cidrs := k.podCIDRs(node)
	k.do("routes", node)
	k.node(node, "bash", "-euc", fmt.Sprintf(`
		for t in "iptables 10.244.0.0/16" "ip6tables fd00:244::/56"; do
			set -- $t
			$1 -t nat -N KIND-MASQ-AGENT
			$1 -t nat -A POSTROUTING -m addrtype ! --dst-type LOCAL -j KIND-MASQ-AGENT
			$1 -t nat -A KIND-MASQ-AGENT -d $2 -j RETURN
			$1 -t nat -A KIND-MASQ-AGENT -j MASQUERADE
		done
		echo '{"cniVersion": "0.3.1", "name": "kindnet", "plugins": [
			{"type": "ptp", "ipMasq": false, "mtu": 1500, "ipam": {"type": "host-local", "dataDir": "/run/cni-ipam-state",
				"routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}], "ranges": [[{"subnet": "%s"}], [{"subnet": "%s"}]]}},
			{"type": "portmap", "capabilities": {"portMappings": true}}]}' >/etc/cni/net.d/.new
		mv /etc/cni/net.d/.new /etc/cni/net.d/10-kindnet.conflist`, cidrs[0], cidrs[1]))
}
