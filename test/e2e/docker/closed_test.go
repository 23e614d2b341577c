// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"os"
	"strings"

	"github.com/patchbay-net/patchbay/test/e2e/docker/lab"
)

// fails is a plugin that works for a while and then refuses the container.
const fails = `#!/bin/sh
case $CNI_COMMAND in
VERSION) echo '{"cniVersion":"1.1.0","supportedVersions":["1.1.0"]}' ;;
ADD)
	sleep 0.5
	echo '{"cniVersion":"1.1.0","code":100,"msg":"the policy of this container is not known"}'
	exit 1 ;;
esac
`

// rejectnet refuses every container: its second plugin fails in a container's namespace.
var rejectnet = `{"cniVersion":"1.1.0","name":"rejectnet","plugins":[{"type":"bridge","bridge":"cnir","isGateway":true,"ipMasq":true,` + ipamOf(85) + `},
	{"type":"fails"},{"type":"portmap","capabilities":{"portMappings":true}}]}`

// failClosed: when the chain fails, `docker run` fails and the process never starts; a
// running container gets no link that is up.
func failClosed(l *lab.Lab) {
	l.Plugin("fails", fails)
	create(l, "rejectnet", rejectnet)
	seen := l.Dir("seen")
	container := []string{"--name", "c1", "-p", "8080:80", "-v", seen + ":/seen", "bb", "sh", "-c", "ip addr >/seen/addr; touch /seen/ran"}
	l.Refused(append([]string{"run", "--network", "rejectnet"}, container...)...)
	neverRan(l, seen)
	// Here podnet has the container's gateway, so Docker makes other calls for rejectnet.
	l.Docker(append([]string{"create", "--network", "podnet"}, container...)...)
	l.Docker("network", "connect", "rejectnet", "c1")
	l.Refused("start", "c1")
	neverRan(l, seen)
	rejectedWhileRunning(l)
	l.Docker("network", "rm", "rejectnet")
}

// neverRan checks that the start of c1 failed and left nothing.
func neverRan(l *lab.Lab, seen string) {
	l.Helper()
	if ran, err := os.ReadDir(seen); err != nil || len(ran) > 0 {
		l.Errorf("the process ran: %v %v", ran, err)
	}
	if state := l.Docker("inspect", "c1", "--format", "{{.State.Running}} {{.State.Restarting}}"); state != "false false" {
		l.Errorf("running, restarting: %s", state)
	}
	if text := l.DriverLog(); !strings.Contains(text, "the policy of this container is not known") {
		l.Errorf("the driver does not log why:\n%s", text)
	}
	l.Closed(l.Outside(), lab.Host4, "8080")
	l.Remove("c1")
	l.Gone("the start failed")
}

// rejectedWhileRunning connects a running container: Docker gets an error, or the link is
// set down and remains so.
func rejectedWhileRunning(l *lab.Lab) {
	l.Helper()
	l.Start("c1", "bridge")
	if _, err := l.TryDocker("network", "connect", "rejectnet", "c1"); err == nil {
		l.Eventually("the driver lists it as failed", func() bool { return strings.Contains(l.In(l.Patchbayd, "docker", "ps"), " failed ") })
		if eth1 := l.Exec("c1", "ip", "-o", "link", "show", "eth1"); strings.Contains(eth1, ",UP") {
			l.Errorf("the link is up: %s", eth1)
		}
	}
	if out, err := l.TryDocker("exec", "c1", "ping", "-c1", "-W1", "-I", "eth1", "10.85.0.1"); err == nil {
		l.Errorf("c1 reaches the network: %s", out)
	}
	l.Remove("c1")
}
