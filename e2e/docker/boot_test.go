// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"strings"
	"time"

	"github.com/patchbay-net/patchbay/e2e/docker/lab"
)

// running waits until Docker has started a container by itself, and its network
// works.
func running(l *lab.Lab, name string) {
	l.Helper()
	l.Eventually(name+" runs", func() bool {
		return l.Docker("inspect", name, "--format", "{{.State.Running}} {{.State.Restarting}}") == "true false"
	})
	l.Fetch(l.Outside(), lab.Host4, "8080")
}

// absentLimit is how long dockerd may take to boot without a driver: 15 s for
// each call that it makes of one endpoint (CreateEndpoint, and the sandbox's
// clean-up), and what it takes without us.
const absentLimit = 75 * time.Second

// driverAbsent: dockerd boots with a container to restart and nobody at the
// driver's socket. It gives up by itself and says why; with the driver back the
// container starts.
func driverAbsent(l *lab.Lab) {
	l.Start("c1", "podnet", "--restart", "always", "-p", "8080:80")
	l.KillDocker()
	l.Gap()
	before := len(l.DockerLog())
	start := time.Now()
	l.Up(l.Args...)
	took := time.Since(start)
	l.Logf("dockerd answers after %v", took.Round(100*time.Millisecond))
	if took > absentLimit {
		l.Errorf("dockerd needed %v", took)
	}
	l.Eventually("dockerd says why", func() bool {
		said := l.DockerLog()[before:]
		return strings.Contains(said, "patchbay") && strings.Contains(said, "plugin not found") || strings.Contains(said, `plugin \"patchbay\" not found`)
	})
	l.Logf("c1: %s", l.Docker("inspect", "c1", "--format", "{{.State.Status}}: {{.State.Error}}"))
	l.StartDriver()
	starts(l, "c1", "podnet")
	running(l, "c1")
	l.Remove("c1")
}

// driverLater: the socket is there when dockerd boots, as systemd holds it, and
// the driver comes some seconds later.
func driverLater(l *lab.Lab) {
	l.Start("c1", "podnet", "--restart", "always", "-p", "8080:80")
	l.KillDocker()
	l.Gap()
	socket := l.Listen()
	up := make(chan time.Duration)
	go func(start time.Time) {
		_, _ = l.TryUp(l.Args...)
		up <- time.Since(start)
	}(time.Now())
	l.Eventually("dockerd calls", func() bool { return lab.Queued(socket) })
	l.StartDriverOn(socket)
	l.Logf("dockerd answers after %v", (<-up).Round(100*time.Millisecond))
	running(l, "c1")
	l.Remove("c1")
}

// reboot: what restarts comes back, of the rest the addresses are free again.
func reboot(l *lab.Lab) {
	l.Start("c1", "podnet", "--restart", "always", "-p", "8080:80")
	l.Start("c2", "podnet")
	l.Start("c3", "ptpnet", "--restart", "always")
	l.Reboot()
	running(l, "c1")
	l.Eventually("nothing is held for c2", func() bool {
		held := l.Sh("ls /var/lib/cni/networks/podnet /var/lib/cni/networks/ptpnet | grep '[.:]' | grep -v last_ | grep -vc ':$'")
		return held == "4" // two families of c1 and c3
	})
	l.Docker("start", "c2")
	l.Ping("c2", "c1")
	l.Ping("c3", lab.Outside4)
	l.Remove("c1", "c2", "c3")
}
