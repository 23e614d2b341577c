// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// DriverSocket is where Docker looks for the driver, inside the lab.
const DriverSocket = "/run/docker/plugins/patchbay.sock"

// StartDriver starts patchbayd in the dockerd's namespaces and waits for its
// socket.
func (l *Lab) StartDriver() {
	l.Helper()
	l.driver = l.DriverCommand()
	must(l, l.driver.Start())
	l.Eventually("the driver's socket", func() bool { return l.ok("test", "-S", DriverSocket) })
}

// DriverCommand is `patchbayd docker` inside the lab; nsenter becomes it.
func (l *Lab) DriverCommand(more ...string) *exec.Cmd {
	l.Helper()
	if l.log == nil {
		var err error
		l.log, err = os.Create(filepath.Join(l.dir, "driver.log"))
		must(l, err)
	}
	args := append([]string{"docker", "--plugins", l.Plugins, "--data-root", l.DataRoot(), "--grace", "1s"}, more...)
	cmd := l.Inside(append([]string{l.Patchbayd}, args...)...)
	cmd.Stderr = l.log
	return cmd
}

// Inside is a command in the dockerd's namespaces whose process is the command's
// own, so that it can be killed.
func (l *Lab) Inside(argv ...string) *exec.Cmd {
	l.Helper()
	cmd := exec.Command("nsenter", append([]string{"-t", l.holder(), "-m", "-n", "--"}, argv...)...)
	cmd.Env = l.env
	return cmd
}

// holder is the process that keeps the lab's namespaces.
func (l *Lab) holder() string {
	l.Helper()
	pid, err := os.ReadFile(filepath.Join(l.dir, l.name, "holder.pid"))
	must(l, err)
	return strings.TrimSpace(string(pid))
}

// DataRoot is the dockerd's.
func (l *Lab) DataRoot() string { return filepath.Join(l.dir, l.name, "data-"+l.Kind) }

// DockerLog is what dockerd has written.
func (l *Lab) DockerLog() string {
	l.Helper()
	text, err := os.ReadFile(filepath.Join(l.dir, l.name, "dockerd.log"))
	must(l, err)
	return string(text)
}

// SetDriver makes a process that the test has started the driver.
func (l *Lab) SetDriver(cmd *exec.Cmd) { l.driver = cmd }

// KillDriver is kill -9; its socket stays, as one of systemd's would.
func (l *Lab) KillDriver() {
	l.Helper()
	must(l, l.driver.Process.Kill())
	_ = l.driver.Wait()
	l.driver = nil
}

// RestartDriver kills the driver and starts another, whose first act is a sweep.
func (l *Lab) RestartDriver() {
	l.Helper()
	l.KillDriver()
	l.StartDriver()
}

// end stops the driver and shows what it wrote, if the test failed.
func (l *Lab) end() {
	if l.driver != nil {
		_ = l.driver.Process.Signal(unix.SIGTERM)
		_ = l.driver.Wait()
	}
	if l.Failed() && l.log != nil {
		text, _ := os.ReadFile(l.log.Name())
		l.Logf("driver:\n%s", text)
	}
}

// How often a condition is looked at, and for how long. The machine may be busy.
const (
	pollEvery = 50 * time.Millisecond
	pollTime  = 30 * time.Second
)

// Eventually waits until a condition holds, or ends the test.
func (l *Lab) Eventually(what string, holds func() bool) {
	l.Helper()
	for end := time.Now().Add(pollTime); time.Now().Before(end); time.Sleep(pollEvery) {
		if holds() {
			return
		}
	}
	l.Fatalf("not within %v: %s", pollTime, what)
}
