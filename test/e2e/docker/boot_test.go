// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"net"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/patchbay-net/patchbay/daemons/cnm"
	"github.com/patchbay-net/patchbay/daemons/test/cnmtest"
	"github.com/patchbay-net/patchbay/test/e2e/docker/lab"
)

// running waits until Docker has started a container by itself and its network works.
func running(l *lab.Lab, name string) {
	l.Helper()
	l.Eventually(name+" runs", func() bool {
		return l.Docker("inspect", name, "--format", "{{.State.Running}} {{.State.Restarting}}") == "true false"
	})
	l.Fetch(l.Outside(), lab.Host4, "8080")
}

// patience is how long Docker waits for a missing driver at each attempt. slack is the time that a
// busy machine may add to a boot; it is shorter than one wait.
const (
	patience = 15 * time.Second
	slack    = patience * 2 / 3
)

// booting restarts dockerd and reports how long the start took.
func booting(l *lab.Lab) <-chan time.Duration {
	took := make(chan time.Duration, 1)
	go func(start time.Time) {
		if out, err := l.TryUp(l.Args...); err != nil {
			l.Errorf("dockerd does not start: %v: %s", err, out)
		}
		took <- time.Since(start)
	}(time.Now())
	return took
}

// stranger returns a stopped dockerd. Its container must restart on a network of another driver,
// and that driver is gone.
func stranger(l *lab.Lab) *lab.Lab {
	l.Helper()
	other := lab.New(l.TB, lab.Options{Name: "pbs" + l.Kind, Kind: l.Kind, Late: true})
	const path = "/run/docker/plugins/stranger.sock"
	listener, err := net.FileListener(other.Listen(path))
	if err != nil {
		l.Fatal(err)
	}
	ctx, end := context.WithCancel(l.Context())
	done := make(chan error, 1)
	go func() {
		done <- cnm.Serve(ctx, listener, &cnm.Handler{Network: &cnmtest.Driver{Mode: cnmtest.Nothing}})
	}()
	other.Docker("network", "create", "-d", "stranger", "--subnet", "10.70.0.0/24", "far")
	other.Docker("run", "-d", "--name", "c1", "--network", "far", "--restart", "always", "--stop-signal", "KILL", "bb", "sleep", "1000")
	other.KillDocker()
	end()
	if err := <-done; err != nil {
		l.Fatal(err)
	}
	other.In("rm", path)
	return other
}

// driverAbsent: dockerd boots and must restart a container while no process listens at the driver's
// socket. It gives up as soon as for any other missing driver, and logs why. Once the driver is
// back, the container starts.
func driverAbsent(l *lab.Lab) {
	l.Start("c1", "podnet", "--restart", "always", "-p", "8080:80")
	other := stranger(l)
	l.KillDocker()
	l.Gap()
	before := len(l.DockerLog())
	ours, others := booting(l), booting(other)
	took, want := <-ours, <-others
	l.Logf("dockerd answers after %v; after %v on a network of another driver", took.Round(100*time.Millisecond), want.Round(100*time.Millisecond))
	if took > want+slack {
		l.Errorf("dockerd needs %v without the driver, and %v without another", took, want)
	}
	if state := other.Docker("inspect", "c1", "--format", "{{.State.Running}}"); state != "false" {
		l.Errorf("the other driver's container runs (%s): nothing was measured", state)
	}
	l.Eventually("dockerd says why", func() bool {
		return slices.ContainsFunc(strings.Split(l.DockerLog()[before:], "\n"), func(line string) bool {
			return strings.Contains(line, "patchbay") && strings.Contains(line, "not found")
		})
	})
	if state := l.Docker("inspect", "c1", "--format", "{{.State.Status}}: {{.State.Error}}"); !strings.Contains(state, `plugin "patchbay" not found`) {
		l.Errorf("c1: %s", state)
	}
	l.StartDriver()
	starts(l, "c1", "podnet")
	running(l, "c1")
	l.Remove("c1")
}

// driverLater: when dockerd boots, the socket exists, as if systemd held it. The driver starts some
// seconds later, or cannot start.
func driverLater(l *lab.Lab) {
	_, usual := bootAt(l, l.StartDriverOn)
	running(l, "c1")
	l.Remove("c1")
	driverCannot(l, usual)
}

// bootAt boots a dockerd that must restart a container. When dockerd connects to the driver's
// socket, bootAt calls answer. It reports how long dockerd took.
func bootAt(l *lab.Lab, answer func(socket *os.File)) (*os.File, time.Duration) {
	l.Helper()
	l.Start("c1", "podnet", "--restart", "always", "-p", "8080:80")
	l.KillDocker()
	l.Gap()
	socket := l.Listen(lab.DriverSocket)
	up := booting(l)
	l.Eventually("dockerd calls", func() bool { return lab.Queued(socket) })
	answer(socket)
	took := <-up
	l.Logf("dockerd answers after %v", took.Round(100*time.Millisecond))
	return socket, took
}

// driverCannot: Docker gets an error, boots in its usual time, and shows its users the
// reason. Once the cause is removed, the container starts.
func driverCannot(l *lab.Lab, usual time.Duration) {
	l.Helper()
	var end func()
	before := len(l.DockerLog())
	socket, took := bootAt(l, func(socket *os.File) {
		l.In("chmod", "777", "/var/lib/patchbay")
		end = l.Supervise(socket)
	})
	if took > usual+slack {
		l.Errorf("dockerd needs %v, and %v with a driver", took, usual)
	}
	const why = "everybody may write to it"
	if state := l.Docker("inspect", "c1", "--format", "{{.State.Running}} {{.State.Error}}"); !strings.HasPrefix(state, "false") || !strings.Contains(state, why) {
		l.Errorf("c1: %s", state)
	}
	if text := l.DockerLog()[before:]; !strings.Contains(text, why) || !strings.Contains(text, "journalctl -u patchbay-docker") {
		l.Errorf("dockerd logs\n%s", text)
	}
	if text := l.Refused("start", "c1"); !strings.Contains(text, why) {
		l.Errorf("docker start prints %s", text)
	}
	end()
	l.In("chmod", "755", "/var/lib/patchbay")
	l.StartDriverOn(socket)
	starts(l, "c1", "podnet")
	running(l, "c1")
	l.Remove("c1")
}

// reboot: containers with a restart policy come back, and the addresses of the others are free
// again.
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
