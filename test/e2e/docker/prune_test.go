// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"strings"

	"github.com/patchbay-net/patchbay/test/e2e/docker/lab"
)

// prunenet is a CNI network from which several Docker networks are made.
var prunenet = `{"cniVersion":"1.1.0","name":"prunenet","plugins":[{"type":"bridge","bridge":"cnik","isGateway":true,"ipMasq":true,"hairpinMode":true,` + ipamOf(80) + `},
	{"type":"firewall"},{"type":"portmap","capabilities":{"portMappings":true}}]}`

// pruned: `docker prune` leaves nothing of networks and stopped containers, even after dockerd was
// killed. A running container on the same bridge keeps its network, and pruned networks can be
// created again.
func pruned(l *lab.Lab) {
	l.Conf("prunenet", prunenet)
	pruneNetworks(l)
	l.Start("ends", "same", "-p", "8081:80", "--ip", "10.80.0.77")
	l.Ping("runs", "10.80.0.77")
	l.KillDocker()
	l.Up()
	l.Docker("system", "prune", "-f")
	prunedAll(l)
	pruneNetworks(l)
	l.Docker("container", "prune", "-f")
	prunedServes(l)
	l.Remove("runs")
	l.Docker("network", "prune", "-f")
	prunedAll(l)
}

// pruneNetworks puts a running container, a stopped container and a container that never started on
// three networks. The networks of the last two are pruned and created again.
func pruneNetworks(l *lab.Lab) {
	l.Helper()
	plain := []string{"network", "create", "-d", "patchbay", "--ipam-driver", "null", "-o", "cni.network=prunenet"}
	same := ourIPAM("prunenet", "--ipv6", "--subnet", "10.80.0.0/24", "--subnet", "fd80::/64", "same")
	l.Docker(append(plain, "plain")...)
	l.Docker(append(plain, "never")...)
	l.Docker(same...)
	l.Start("runs", "plain", "-p", "8080:80")
	l.Start("ends", "same", "-p", "8081:80", "--ip", "10.80.0.77")
	l.Docker("create", "--name", "created", "--network", "never", "-p", "8082:80", "bb", "httpd", "-f", "-p", "80")
	l.Docker("kill", "ends")
	l.Docker("network", "prune", "-f")
	prunedServes(l)
	l.Closed(l.Outside(), lab.Host4, "8081")
	if left := l.Docker("network", "ls", "--filter", "driver=patchbay", "--format", "{{.Name}}"); left != "plain" {
		l.Errorf("networks left: %s", left)
	}
	l.Remove("ends", "created")
	l.Docker(append(plain, "never")...)
	l.Docker(same...)
}

// prunedServes checks that the running container has lost nothing.
func prunedServes(l *lab.Lab) {
	l.Helper()
	served(l)
	l.Ping("runs", lab.Outside4)
	l.Ping("runs", lab.Outside6)
}

// prunedAll checks that only the user's files are left.
func prunedAll(l *lab.Lab) {
	l.Helper()
	l.Gone("pruned")
	if left := l.Sh("cd /var/lib/patchbay/docker; find networks pools leases endpoints -type f"); left != "" {
		l.Errorf("the driver still has: %s", left)
	}
	if ps := l.In(l.Plugins+"/patchbay", "ps"); strings.Contains(ps, "prunenet") {
		l.Errorf("patchbay ps: %s", ps)
	}
	l.In("env", "CNI_PATH="+l.Dir("plugins")+":"+l.Plugins, l.Plugins+"/patchbay", "doctor")
	if conf := l.In("cat", "/etc/cni/net.d/prunenet.conflist"); conf != prunenet {
		l.Errorf("the configuration is %s", conf)
	}
}
