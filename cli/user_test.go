// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
)

// nobody is the user id of an ordinary user.
const nobody = 65534

// asNobody runs this test program as patchbay for an ordinary user, by a path that needs
// no permission on its directories.
func asNobody(args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Args[0] = "patchbay"
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	return cmd
}

// otherUsers needs root. A user namespace with a single user has no second user, but every script
// there runs as an ordinary user anyway.
func otherUsers() nettest.Feature {
	return nettest.Feature{Name: "users beside the one of the tests", Probe: func() error {
		return asNobody("version").Run()
	}}
}

// closed creates a node's state, readable only by root, for the time of a test.
func closed(t *testing.T) {
	t.Helper()
	p := paths.Default()
	t.Cleanup(func() {
		if err := errors.Join(os.RemoveAll(p.Run), os.RemoveAll(p.CNI)); err != nil {
			t.Error(err)
		}
	})
	for _, dir := range []string{filepath.Join(p.Run, "attachments"), filepath.Join(p.Run, "locks"), filepath.Join(p.CNI, "results")} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
}

// TestOrdinaryUser checks that demo and explain work, and that commands that need root say so.
func TestOrdinaryUser(t *testing.T) {
	nettest.Need(t, otherUsers())
	for _, test := range []userTest{
		{args: []string{"demo"}, stdout: "This machine's own network was not touched."},
		{args: []string{"explain", "patchbay"}, stdout: "host: ip link add pb0", stderr: "hint: for an ordinary user the host counts as empty"},
		{args: []string{"run", "true"}, stderr: "error: run needs root\npatchbay: hint: sudo", fails: true},
	} {
		test.hold(t)
	}
}

// TestOrdinaryUserOnANode checks commands that cannot read the state. They fail and do not report
// success.
func TestOrdinaryUserOnANode(t *testing.T) {
	nettest.Need(t, otherUsers())
	closed(t)
	for _, test := range []userTest{
		{args: []string{"repair"}, stderr: "error: repair needs root\npatchbay: hint: sudo", fails: true, silent: true},
		{args: []string{"ps"}, stdout: "NETWORK", stderr: "error: ps needs root: ", fails: true},
		{args: []string{"ps", "--json"}, stdout: "[]", stderr: "error: ps needs root: ", fails: true},
		{args: []string{"check", "--all"}, stdout: "0 of 0", stderr: "error: check --all needs root: ", fails: true},
		{args: []string{"check", "--all", "--json"}, stdout: "[]", stderr: "error: check --all needs root: ", fails: true},
		{args: []string{"doctor"}, stderr: "error: doctor needs root\npatchbay: hint: sudo; ", fails: true, silent: true, status: 3},
		{args: []string{"map"}, stderr: "error: map needs root\npatchbay: hint: sudo; ", fails: true, silent: true},
		{args: []string{"doctor", "--list"}, stdout: "permissions"},
		{args: []string{"check", "patchbay", "/proc/self/ns/net"}, stderr: "patchbay: hint: sudo; ", fails: true},
		{args: []string{"gc"}, stderr: "error: gc needs root: ", fails: true, silent: true},
	} {
		test.hold(t)
	}
}

type userTest struct {
	args           []string
	stdout, stderr string
	fails          bool
	silent         bool // nothing on standard output
	status         int  // 0: any
}

func (test userTest) hold(t *testing.T) {
	t.Helper()
	var stdout, stderr strings.Builder
	cmd := asNobody(test.args...)
	cmd.Env = append(os.Environ(), "NETCONFPATH=/nonexistent")
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if (err != nil) != test.fails || !strings.Contains(stdout.String(), test.stdout) || !strings.Contains(stderr.String(), test.stderr) {
		t.Errorf("patchbay %v: %v\n%s%s", test.args, err, &stdout, &stderr)
	}
	if got := cmd.ProcessState.ExitCode(); test.status != 0 && got != test.status {
		t.Errorf("patchbay %v: status %d", test.args, got)
	}
	if test.silent && stdout.Len() > 0 {
		t.Errorf("patchbay %v: %s", test.args, &stdout)
	}
}
