// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"bytes"
	"flag"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/test/e2e/gate"
)

// insideEnv names the test to run in this process's namespaces.
const insideEnv = "PATCHBAY_E2E_INSIDE"

// init keeps the main goroutine on the process's first thread. So no test enters another
// namespace on that thread, which /proc/self shows.
func init() { runtime.LockOSThread() }

// TestMain runs the tests if PATCHBAY_E2E is set.
func TestMain(m *testing.M) {
	gate.Enter()
	if err := prepare(); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		os.Exit(1)
	}
	if os.Getpid() == 1 {
		os.Exit(reap())
	}
	code := m.Run()
	if os.Getenv(insideEnv) == "" {
		os.RemoveAll(os.Getenv(workEnv))
	}
	os.Exit(code)
}

// prepare prepares this process. The outer process builds what all tests use. An inner process
// makes its namespaces look like a node that has just booted.
func prepare() error {
	switch {
	case os.Getenv(insideEnv) == "":
		return build()
	case os.Getpid() == 1:
		return boot()
	}
	return knowFamilies()
}

// reap is the first process of a node. It runs the test as its child, and reaps the orphans that
// it inherits (conmon, shims). Otherwise a program that waits for the end of such a process would
// wait for ever. reap returns the test's exit code.
func reap() int {
	child, err := os.StartProcess("/proc/self/exe", os.Args, &os.ProcAttr{Files: []*os.File{os.Stdin, os.Stdout, os.Stderr}})
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	for {
		var status unix.WaitStatus
		pid, err := unix.Wait4(-1, &status, 0, nil)
		switch {
		case err == unix.EINTR:
		case err != nil:
			fmt.Fprintln(os.Stderr, "e2e: wait:", err)
			return 1
		case pid == child.Pid && status.Exited():
			return status.ExitStatus()
		case pid == child.Pid:
			fmt.Fprintln(os.Stderr, "e2e: test ended by", status.Signal())
			return 1
		}
	}
}

// boot gives the new namespaces their own /proc, empty state directories and a loopback
// that is up.
func boot() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("proc", "/proc", "proc", 0, ""); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	for _, dir := range []string{"/run", "/var/lib", "/etc/cni"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "mode=755"); err != nil {
			return fmt.Errorf("mount %s: %w", dir, err)
		}
	}
	for _, dir := range []string{"/run/netns", "/var/lib/cni"} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		return fmt.Errorf("set lo up: %w: %s", err, out)
	}
	return nil
}

// onNode runs body as the test t on a new node. For that it starts this test binary again, in new
// network, mount and PID namespaces. When the first process there ends, the kernel kills all
// others.
func onNode(t *testing.T, body func(t *testing.T)) {
	t.Helper()
	if os.Getenv(insideEnv) == t.Name() {
		body(t)
		return
	}
	cmd := exec.Command("/proc/self/exe", "-test.run="+pattern(t.Name()), "-test.v", "-test.timeout="+flag.Lookup("test.timeout").Value.String())
	cmd.Env = append(os.Environ(), insideEnv+"="+t.Name())
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWPID,
		Pdeathsig:  syscall.SIGKILL,
	}
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	defer sweepCgroups(cgroups())
	start := time.Now()
	err := cmd.Run()
	t.Logf("on a node of its own, %.1f s:\n%s", time.Since(start).Seconds(), indent(out.String()))
	if err != nil {
		t.Fatalf("%s: %v", t.Name(), err)
	}
	if strings.Contains(out.String(), "--- SKIP") || !strings.Contains(out.String(), "--- PASS: "+t.Name()) {
		t.Fatalf("%s did not run", t.Name())
	}
}

// cgroups lists the control groups that podman, Docker and containerd make, which outlive the
// namespaces.
func cgroups() map[string]bool {
	found := map[string]bool{}
	for _, pattern := range []string{"k8s.io", "k8s.io/*", "libpod_parent", "libpod_parent/*", "docker", "docker/*"} {
		for _, top := range []string{"/sys/fs/cgroup/", "/sys/fs/cgroup/*/"} {
			dirs, _ := filepath.Glob(top + pattern)
			for _, dir := range dirs {
				found[dir] = true
			}
		}
	}
	return found
}

// sweepCgroups removes the control groups that did not exist before, the deepest first. One with
// a process in it stays.
func sweepCgroups(before map[string]bool) {
	dirs := slices.Sorted(maps.Keys(cgroups()))
	for _, dir := range slices.Backward(dirs) {
		if !before[dir] {
			os.Remove(dir)
		}
	}
}

// pattern returns the -run pattern for a test in the inner process. It includes the subtests that
// this process was asked for.
func pattern(name string) string {
	asked := flag.Lookup("test.run").Value.String()
	_, sub, found := strings.Cut(asked, "/")
	if !found || strings.Contains(asked, "|") {
		return "^" + name + "$"
	}
	return "^" + name + "$/" + sub
}

// indent indents the inner test's output, so that its "--- FAIL" lines do not look like the outer
// test's.
func indent(s string) string {
	return "    | " + strings.ReplaceAll(strings.TrimSpace(s), "\n", "\n    | ")
}

// run runs a command that must succeed and returns its trimmed output.
func run(t testing.TB, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(name, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", filepath.Base(name), strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// patience is how long a test waits for something that must happen; the machine may be
// busy.
const patience = 3 * time.Minute

// eventually calls probe every 50 ms until it succeeds. After patience, the test ends with
// probe's last error.
func eventually(t testing.TB, what string, probe func() error) {
	t.Helper()
	var err error
	for end := time.Now().Add(patience); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if err = probe(); err == nil {
			return
		}
	}
	t.Fatalf("%s: not within %v: %v", what, patience, err)
}
