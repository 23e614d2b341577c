// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package withplugin

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/patchbay-net/patchbay/daemons/test/dhcptest"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/internal/test/reftest"
	"github.com/patchbay-net/patchbay/invoke"
	"github.com/patchbay-net/patchbay/spec"
)

// programs are patchbay and patchbayd in one directory, and a container.
type programs struct {
	*node
	dir string
}

func newPrograms(t *testing.T) *programs {
	nettest.Need(t, nettest.Program("go"))
	p := &programs{dir: t.TempDir()}
	for _, name := range []string{"patchbay", "patchbayd"} {
		p.copy(t, name)
	}
	for _, name := range []string{"dhcp", "bridge"} {
		if err := os.Symlink("patchbay", filepath.Join(p.dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	lan(t)
	p.node = newNode(t)
	dhcptest.Plug(t, "br0", p.ns)
	return p
}

// copy puts one of our programs into the directory.
func (p *programs) copy(t *testing.T, name string) {
	t.Helper()
	built, err := reftest.Program(name)
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(built)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(p.dir, name), program, 0o755); err != nil {
		t.Fatal(err)
	}
}

// start starts a keeper and waits until it logs that it listens.
func (p *programs) start(cmd *exec.Cmd) *dhcptest.Log {
	p.Helper()
	log := new(dhcptest.Log)
	cmd.Stderr = log
	if err := cmd.Start(); err != nil {
		p.Fatal(err)
	}
	p.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if p.Failed() {
			p.Logf("%v said:\n%s", cmd.Args, log)
		}
	})
	dhcptest.Eventually(p, "the keeper listens", func() bool { return strings.Contains(log.String(), "listening on") })
	return log
}

func (p *programs) call(ipam string) *spec.Call {
	return &spec.Call{ContainerID: "c1", NetNS: p.ns, IfName: "eth0", Path: []string{p.dir}, Config: []byte(p.conf(ipam, ""))}
}

func (p *programs) invoke(verb spec.Verb, c *spec.Call) {
	p.Helper()
	call := *c
	call.Verb = verb
	if _, err := (&invoke.Exec{}).Invoke(p.Context(), "dhcp", &call); err != nil {
		p.Fatalf("%s: %v", verb, err)
	}
}

// Units for the reference run `dhcp daemon`. With our program this is our keeper.
func TestDaemon(t *testing.T) {
	p := newPrograms(t)
	cmd := exec.Command(filepath.Join(p.dir, "dhcp"), "daemon", "-socketpath", "/run/d.sock", "-pidfile=/run/d.pid", "-timeout", "5s",
		"-resendmax", "30s", "-resendtimeout", "60s", "-hostprefix", "", "-broadcast")
	p.start(cmd)
	pid, err := os.ReadFile("/run/d.pid")
	if err != nil || string(pid) != strconv.Itoa(cmd.Process.Pid) {
		t.Errorf("pidfile: %q, %v", pid, err)
	}
	life(t, "dhcp daemon", p.call(`"daemonSocketPath":"/run/d.sock"`))
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	for _, path := range []string{"/run/d.pid", "/run/d.sock"} {
		if _, err := os.Stat(path); err == nil {
			t.Errorf("%s is still there", path)
		}
	}
}

// A keeper that ends leaves the leases of both families to the next one. A killed keeper also
// leaves its socket.
func TestKilled(t *testing.T) {
	p := newPrograms(t)
	keeper := func() *exec.Cmd {
		return exec.Command(filepath.Join(p.dir, "patchbayd"), "dhcp", "--socketpath", "/run/d.sock")
	}
	call := p.call(`"daemonSocketPath":"/run/d.sock","dhcpv6":true`)
	for _, how := range []os.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		first := keeper()
		p.start(first)
		if out, err := keeper().CombinedOutput(); err == nil || !strings.Contains(string(out), "another keeper has it") {
			t.Errorf("a second keeper: %v: %s", err, out)
		}
		p.invoke(spec.Add, call)
		threads(t, first.Process.Pid)
		if err := first.Process.Signal(how); err != nil {
			t.Fatal(err)
		}
		_ = first.Wait()
		next := keeper()
		log := p.start(next)
		if !strings.Contains(log.String(), "keeping 1 leases") {
			t.Errorf("%v: the second keeper: %s", how, log)
		}
		p.invoke(spec.Check, call)
		p.invoke(spec.Del, call)
		for _, family := range []string{"DHCPv4", "DHCPv6"} {
			if !strings.Contains(log.String(), "releasing "+family+" lease") {
				t.Errorf("%v: the second keeper: %s", how, log)
			}
		}
		if err := next.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		_ = next.Wait()
	}
}

// threads checks that every thread of a process is in the network namespace of the test.
func threads(t *testing.T, pid int) {
	t.Helper()
	own, err := os.Readlink("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	tasks, err := filepath.Glob("/proc/" + strconv.Itoa(pid) + "/task/*/ns/net")
	if err != nil || len(tasks) == 0 {
		t.Fatalf("%v, %v", tasks, err)
	}
	for _, task := range tasks {
		if ns, err := os.Readlink(task); err == nil && ns != own {
			t.Errorf("%s is in %s", task, ns)
		}
	}
}

// The keeper uses the socket that systemd passes, and does not change or remove it.
func TestSocketActivation(t *testing.T) {
	p := newPrograms(t)
	l, err := net.Listen("unix", "/run/a.sock")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() //nolint:errcheck // the test ends
	f, err := l.(*net.UnixListener).File()
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // as above
	cmd := exec.Command("sh", "-c", `LISTEN_PID=$$ LISTEN_FDS=1 exec "$0" dhcp --socketpath /nonexistent/x`, filepath.Join(p.dir, "patchbayd"))
	cmd.ExtraFiles = []*os.File{f}
	p.start(cmd)
	life(t, "socket activation", p.call(`"daemonSocketPath":"/run/a.sock"`))
	if err := cmd.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat("/run/a.sock"); err != nil {
		t.Error("systemd's socket is gone")
	}
}

// With startKeeper the plugin starts a keeper. That keeper shares neither descriptors nor session
// with the plugin.
func TestStartKeeper(t *testing.T) {
	p := newPrograms(t)
	t.Cleanup(func() { p.killKeeper("/run/s.sock") })
	for range 2 {
		life(t, "startKeeper", p.call(`"daemonSocketPath":"/run/s.sock","startKeeper":true`))
	}
}

// killKeeper checks how the keeper of a socket was started and that it is the only one, and ends it.
func (p *programs) killKeeper(socket string) {
	lines, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		p.Fatal(err)
	}
	found := 0
	for _, path := range lines {
		line, err := os.ReadFile(path)
		if err != nil || !slices.Contains(strings.Split(string(line), "\x00"), socket) {
			continue
		}
		proc := filepath.Dir(path)
		if exe, err := os.Readlink(proc + "/exe"); err != nil || exe != filepath.Join(p.dir, "patchbayd") {
			continue
		}
		found++
		p.looksDetached(proc)
		pid, err := strconv.Atoi(filepath.Base(proc))
		if err != nil {
			p.Fatal(err)
		}
		if keeper, err := os.FindProcess(pid); err == nil {
			_ = keeper.Signal(os.Interrupt)
			dhcptest.Eventually(p, "it removes its socket", func() bool { _, err := os.Stat(socket); return err != nil })
		}
	}
	if found != 1 {
		p.Errorf("%d keepers at %s", found, socket)
	}
}

func (p *programs) looksDetached(proc string) {
	stat, err := os.ReadFile(proc + "/stat")
	if err != nil {
		p.Fatal(err)
	}
	f := strings.Fields(string(stat)) // the fields are: pid (comm) state ppid pgrp session
	if f[5] != f[0] {
		p.Errorf("no session of its own: %s", stat)
	}
	fds, err := filepath.Glob(proc + "/fd/*")
	if err != nil {
		p.Fatal(err)
	}
	// These descriptors are the keeper's own: the socket, the log, the poller of Go's runtime, and
	// the CPU limit that Go's runtime reads.
	own := func(to string) bool {
		return to == "/dev/null" || strings.HasSuffix(to, "/keeper.log") || strings.HasPrefix(to, "socket:") ||
			strings.HasPrefix(to, "anon_inode:") || strings.HasPrefix(to, "pipe:") || strings.HasPrefix(to, "/sys/fs/cgroup/")
	}
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err == nil && !own(to) {
			p.Errorf("%s is %s", fd, to)
		}
	}
	if cwd, err := os.Readlink(proc + "/cwd"); err != nil || cwd != "/" {
		p.Errorf("its directory is %s, %v", cwd, err)
	}
}
