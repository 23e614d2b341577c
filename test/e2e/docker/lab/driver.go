// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/clock"
)

// DriverSocket is the path at which Docker looks for the driver, inside the lab.
const DriverSocket = "/run/docker/plugins/patchbay.sock"

// grace is the driver's grace time. On a busy machine, seconds may pass from Join to the sandbox.
const grace = "8s"

// StartDriver starts patchbayd in the dockerd's namespaces and waits for its socket.
func (l *Lab) StartDriver() {
	l.Helper()
	l.driver = l.DriverCommand()
	must(l, l.driver.Start())
	l.Eventually("the driver's socket", func() bool { return l.ok("test", "-S", DriverSocket) })
}

// DriverCommand returns the command `patchbayd docker`, which nsenter executes inside the lab.
// Plugins in Dir("plugins") come first.
func (l *Lab) DriverCommand(more ...string) *exec.Cmd {
	l.Helper()
	if l.log == nil {
		var err error
		l.log, err = os.Create(filepath.Join(l.dir, "driver.log"))
		must(l, err)
	}
	args := append([]string{"docker", "--plugins", l.Dir("plugins") + ":" + l.Plugins, "--data-root", l.DataRoot(), "--grace", grace,
		"--docker", l.host()}, more...)
	cmd := l.Inside(append([]string{l.Patchbayd}, args...)...)
	cmd.Stderr = l.log
	return cmd
}

// Plugin makes a CNI plugin for the driver from a script. In the script, PLUGINS is replaced by the
// directory of our plugins, and HERE by a directory of the lab.
func (l *Lab) Plugin(name, script string) {
	l.Helper()
	script = strings.NewReplacer("PLUGINS", l.Plugins, "HERE", l.Dir("here")).Replace(script)
	must(l, os.WriteFile(filepath.Join(l.Dir("plugins"), name), []byte(script), 0o755))
}

// DriverLog returns the driver's log.
func (l *Lab) DriverLog() string {
	l.Helper()
	text, err := os.ReadFile(l.log.Name())
	must(l, err)
	return string(text)
}

// Inside returns a command in dockerd's namespaces. The started process is the command itself, not
// a wrapper, so a test can kill it.
func (l *Lab) Inside(argv ...string) *exec.Cmd {
	l.Helper()
	cmd := exec.Command("nsenter", append([]string{"-t", l.holder(), "-m", "-n", "--"}, argv...)...)
	cmd.Env = l.env
	return cmd
}

// holder returns the id of the process that keeps the lab's namespaces.
func (l *Lab) holder() string {
	l.Helper()
	pid, err := os.ReadFile(filepath.Join(l.dir, l.name, "holder.pid"))
	must(l, err)
	return strings.TrimSpace(string(pid))
}

// DataRoot returns dockerd's data root.
func (l *Lab) DataRoot() string { return filepath.Join(l.dir, l.name, "data-"+l.Kind) }

// DockerLog returns dockerd's log.
func (l *Lab) DockerLog() string {
	l.Helper()
	text, err := os.ReadFile(filepath.Join(l.dir, l.name, "dockerd.log"))
	must(l, err)
	return string(text)
}

// KillDriver kills the driver with SIGKILL. The driver's socket remains, as a socket of systemd
// would.
func (l *Lab) KillDriver() {
	l.Helper()
	must(l, l.driver.Process.Kill())
	_ = l.driver.Wait()
	l.driver = nil
}

// RestartDriver kills the driver and starts it again. At its start, the driver removes what dead
// containers left.
func (l *Lab) RestartDriver() {
	l.Helper()
	l.KillDriver()
	l.StartDriver()
}

// end stops the driver and shows its log if the test failed.
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

// These are the interval and the limit of polling. The limit is long, because the machine may be
// busy.
const (
	pollEvery = 50 * time.Millisecond
	pollTime  = 3 * time.Minute
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

// Listen makes the driver's socket inside the lab before a driver starts, as systemd does.
func (l *Lab) Listen(at string) *os.File {
	l.Helper()
	dir, err := os.Open("/proc/" + l.holder() + "/root" + filepath.Dir(at))
	must(l, err)
	defer dir.Close()
	path := fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), filepath.Base(at))
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		l.Fatal(err)
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
	must(l, err)
	defer listener.Close()
	listener.SetUnlinkOnClose(false)
	file, err := listener.File()
	must(l, err)
	l.Cleanup(func() { file.Close() })
	return file
}

// Queued reports whether a connection waits at a socket that Listen made.
func Queued(socket *os.File) bool {
	fds := []unix.PollFd{{Fd: int32(socket.Fd()), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n == 1
}

// StartDriverOn passes a socket that Listen made to a new driver, as systemd does.
func (l *Lab) StartDriverOn(socket *os.File) {
	l.Helper()
	l.driver = l.activated(socket)
	must(l, l.driver.Start())
}

// activated returns the command of a driver that gets a socket from Listen.
func (l *Lab) activated(socket *os.File) *exec.Cmd {
	l.Helper()
	cmd := l.DriverCommand()
	script := `LISTEN_FDS=1 LISTEN_PID=$$ exec "$0" "$@"`
	cmd.Path, cmd.Args = "/bin/sh", append([]string{"sh", "-c", script}, cmd.Args...)
	cmd.ExtraFiles = []*os.File{socket}
	return cmd
}

// Supervise starts the driver with a socket from Listen, and starts it again one second after each
// exit, as its unit does (Restart=always). end stops the driver and the restarts.
func (l *Lab) Supervise(socket *os.File) (end func()) {
	l.Helper()
	unit := l.activated(socket)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			cmd := exec.CommandContext(ctx, unit.Path, unit.Args[1:]...)
			cmd.Env, cmd.Stderr, cmd.ExtraFiles = unit.Env, unit.Stderr, unit.ExtraFiles
			_ = cmd.Run()
			_ = clock.Sleep(ctx, time.Second)
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

// Gap removes the driver and its socket for a while.
func (l *Lab) Gap() {
	l.Helper()
	l.KillDriver()
	l.In("rm", "-f", DriverSocket)
}
