// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/patchbay-net/patchbay/internal/nettest"
)

// nobody is an ordinary user.
const nobody = 65534

// asNobody runs this test program as patchbay for an ordinary user, by a path
// that needs no right to the directories it is in.
func asNobody(args ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", args...)
	cmd.Args[0] = "patchbay"
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	return cmd
}

// otherUsers is there when the tests run as root: in a user namespace with one
// user nobody else can be had, and every script runs as an ordinary user anyway.
func otherUsers() nettest.Feature {
	return nettest.Feature{Name: "users beside the one of the tests", Probe: func() error {
		return asNobody("version").Run()
	}}
}

// TestOrdinaryUser: the demo proves everything, explain explains, and what
// needs root says so.
func TestOrdinaryUser(t *testing.T) {
	nettest.Need(t, otherUsers())
	for _, test := range []struct {
		args           []string
		stdout, stderr string
		fails          bool
	}{
		{args: []string{"demo"}, stdout: "This machine's own network was not touched."},
		{args: []string{"explain", "patchbay"}, stdout: "host: ip link add pb0", stderr: "hint: as an ordinary user, on an empty host"},
		{args: []string{"run", "true"}, stderr: "hint: this needs root", fails: true},
	} {
		var stdout, stderr strings.Builder
		cmd := asNobody(test.args...)
		cmd.Env = append(os.Environ(), "NETCONFPATH=/nonexistent")
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		err := cmd.Run()
		if (err != nil) != test.fails || !strings.Contains(stdout.String(), test.stdout) || !strings.Contains(stderr.String(), test.stderr) {
			t.Errorf("patchbay %v: %v\n%s%s", test.args, err, &stdout, &stderr)
		}
	}
}
