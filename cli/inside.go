// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/netns"
	"github.com/patchbay-net/patchbay/spec"
)

// inside runs a command in a network namespace and returns its exit status as an error of type
// exit. The kernel kills the command when the thread that started it ends. That thread waits for
// the command. So the command ends early only if this process dies.
func (a *app) inside(path string, dns spec.DNS, argv []string) error {
	if err := a.ctx.Err(); err != nil {
		return runFailure(err)
	}
	ns, err := netns.Open(path)
	if err != nil {
		return runFailure(err)
	}
	conn, err := nl.In(ns, a.paths.Proc)
	if err != nil {
		return runFailure(err)
	}
	defer conn.Close()
	if err := setUp(conn, "lo"); err != nil { // a container's loopback interface is up
		return runFailure(err)
	}
	if err := conn.Do(func() error { return a.privateMounts(dns) }); err != nil {
		return runFailure(err)
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = a.stdin, a.stdout, a.stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGHUP, unix.SIGUSR1, unix.SIGUSR2)
	defer signal.Stop(signals)
	if err := conn.Do(cmd.Start); err != nil {
		return notRunnable(argv, err)
	}
	go forward(signals, cmd.Process)
	return status(cmd.Wait())
}

// status turns the error of a finished command into an error of type exit.
func status(err error) error {
	var ended *exec.ExitError
	if !errors.As(err, &ended) {
		return err
	}
	if ws, ok := ended.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return exit(exitSignal + int(ws.Signal()))
	}
	return exit(ended.ExitCode())
}

// forward passes signals on to the command. The terminal sends its own signals to both processes.
// forward does not pass these on, and only keeps them from ending this process.
func forward(signals <-chan os.Signal, p *os.Process) {
	for s := range signals {
		if fromTerminal := (s == unix.SIGINT || s == unix.SIGQUIT) && foreground(); !fromTerminal {
			_ = p.Signal(s) // fails if the command has already ended
		}
	}
}

// foreground reports whether this process gets the terminal's signals.
func foreground() bool {
	group, err := unix.IoctlGetInt(0, unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}

const (
	resolvConf = "/etc/resolv.conf"

	// systemdResolvConf names the real servers on a machine where resolv.conf names
	// systemd-resolved. systemd-resolved listens on the loopback interface, which no other namespace
	// can reach.
	systemdResolvConf = "/run/systemd/resolve/resolv.conf"
)

// privateMounts gives the calling thread its own mounts: a sysfs that shows the namespace's
// interfaces, and a resolv.conf that works there. If the kernel forbids one of these mounts, the
// command runs without it. The new mount namespace itself is required, because the mounts would
// otherwise change the machine.
func (a *app) privateMounts(dns spec.DNS) error {
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fmt.Errorf("make mount namespace: %w", err)
	}
	if err := unix.Mount("", "/", "none", unix.MS_SLAVE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	scratch := a.runDir()
	if err := unix.Mount("tmpfs", scratch, "tmpfs", 0, "mode=0755"); err != nil {
		a.warn(fmt.Errorf("mount tmpfs: %w", err))
		return nil
	}
	if err := mountSysfs(filepath.Join(scratch, "cgroup")); err != nil {
		a.warn(fmt.Errorf("show the namespace in /sys: %w", err))
	}
	if err := a.mountResolvConf(scratch, dns); err != nil {
		a.warn(fmt.Errorf("replace %s: %w", resolvConf, err))
	}
	if err := unix.Unmount(scratch, unix.MNT_DETACH); err != nil {
		return fmt.Errorf("unmount tmpfs: %w", err)
	}
	return nil
}

// mountSysfs mounts the namespace's sysfs on /sys. Unlike `ip netns exec`, it keeps the control
// groups below /sys visible. For that it creates the directory keep.
func mountSysfs(keep string) error {
	const cgroup = "/sys/fs/cgroup"
	if err := os.Mkdir(keep, 0o755); err != nil {
		return err
	}
	kept := unix.Mount(cgroup, keep, "none", unix.MS_BIND|unix.MS_REC, "") == nil
	if err := unix.Mount("sysfs", "/sys", "sysfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, ""); err != nil {
		return err
	}
	if kept {
		return unix.Mount(keep, cgroup, "none", unix.MS_BIND|unix.MS_REC, "")
	}
	return nil
}

// mountResolvConf mounts another file over resolv.conf. The file names the network's name
// servers. If there are none and the machine uses a local stub resolver, the file names the
// machine's real servers.
func (a *app) mountResolvConf(scratch string, dns spec.DNS) error {
	file := filepath.Join(scratch, "resolv.conf")
	switch {
	case !dns.IsZero():
		if err := os.WriteFile(file, []byte(dns.ResolvConf()), 0o644); err != nil {
			return err
		}
	case !onlyLoopback(resolvConf):
		return nil
	case onlyLoopback(systemdResolvConf):
		a.hint("%s names no server that the namespace can reach: names will not resolve there (the network's \"dns\" would be used)", resolvConf)
		return nil
	default:
		file = systemdResolvConf
	}
	return unix.Mount(file, resolvConf, "none", unix.MS_BIND, "")
}

// onlyLoopback reports whether a resolv.conf names only servers on this machine. A file that is
// missing or names no server counts too, because resolvers then ask this machine.
func onlyLoopback(file string) bool {
	data, err := os.ReadFile(file)
	if err != nil {
		return true
	}
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if len(fields) < 2 || fields[0] != "nameserver" {
			continue
		}
		if addr, err := netip.ParseAddr(fields[1]); err == nil && !addr.IsLoopback() {
			return false
		}
	}
	return true
}
