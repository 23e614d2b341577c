// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package invoke_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	cni "github.com/containernetworking/cni/pkg/invoke"

	"github.com/patchbay-net/patchbay/invoke"
	"github.com/patchbay-net/patchbay/spec"
)

// script writes a plugin in shell and returns its directory.
func script(t *testing.T, body string) string {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "sh-plugin"), []byte("#!/bin/sh\n"+body+"\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	return dir
}

func callIn(dir string) *spec.Call {
	return &spec.Call{Verb: spec.Add, ContainerID: "c1", NetNS: "/n", IfName: "eth0", Args: "A=1", Path: []string{dir}, Config: []byte(`{"name":"net"}`)}
}

func TestExec(t *testing.T) {
	t.Setenv("CNI_ARGS", "of the caller")
	t.Setenv("CNI_IFNAME", "of the caller")
	t.Setenv("INHERITED", "yes")
	var stderr bytes.Buffer
	e := &invoke.Exec{Stderr: &stderr, Env: []string{"MORE=1"}}
	dir := script(t, `cat; echo; env | grep -e ^CNI_ -e INHERITED -e MORE | sort; echo warning >&2`)
	call := callIn(dir)
	call.Args = ""
	out, err := e.Invoke(t.Context(), "sh-plugin", call)
	want := "{\"name\":\"net\"}\nCNI_ARGS=\nCNI_COMMAND=ADD\nCNI_CONTAINERID=c1\nCNI_IFNAME=eth0\nCNI_NETNS=/n\nCNI_PATH=" + dir + "\nINHERITED=yes\nMORE=1\n"
	if err != nil || string(out) != want {
		t.Errorf("%v:\n%s\nwant\n%s", err, out, want)
	}
	if stderr.String() != "warning\n" {
		t.Errorf("stderr is %q", stderr.String())
	}
}

// TestFailures pins libcni's error texts, which runtimes search for.
func TestFailures(t *testing.T) {
	tests := []struct{ body, msg string }{
		{`exit 3`, "netplugin failed with no error message: exit status 3"},
		{`echo oops >&2; exit 1`, `netplugin failed: "oops\n": exit status 1`},
		{`echo oops; exit 1`, `netplugin failed but error parsing its diagnostic message "oops\n": `},
		{`echo '{"code":7,"msg":"bad","details":"why"}'; exit 1`, "bad; why"},
		{`echo '{"cniVersion":"1.0.0","code":11,"msg":"later"}'; exit 1`, "later"},
		{`kill -9 $$`, "netplugin failed with no error message: signal: killed"},
	}
	for _, test := range tests {
		call := callIn(script(t, test.body))
		_, err := (&invoke.Exec{}).Invoke(t.Context(), "sh-plugin", call)
		_, theirs := (&cni.RawExec{}).ExecPlugin(t.Context(), filepath.Join(call.Path[0], "sh-plugin"), call.Config, call.Environ())
		for who, err := range map[string]error{"ours": err, "libcni": theirs} {
			if err == nil || !strings.HasPrefix(err.Error(), test.msg) {
				t.Errorf("%s: %s: %v, want %s", test.body, who, err, test.msg)
			}
		}
	}
	for _, body := range []string{`exit 3`, `echo oops >&2; exit 1`, `echo oops; exit 1`, `echo '{"code":50}'; exit 1`} {
		call := callIn(script(t, body))
		_, err := (&invoke.Exec{}).Invoke(t.Context(), "sh-plugin", call)
		if err == nil || !strings.Contains(err.Error(), "("+filepath.Join(call.Path[0], "sh-plugin")+")") {
			t.Errorf("%s: %v does not name the plugin", body, err)
		}
	}
	_, err := (&invoke.Exec{}).Invoke(t.Context(), "sh-plugin", callIn(script(t, `echo '{"code":7,"msg":"bad"}'; exit 1`)))
	if spec.ErrorCode(err) != spec.CodeInvalidConfig {
		t.Errorf("code is %d", spec.ErrorCode(err))
	}
	_, err = (&invoke.Exec{}).Invoke(t.Context(), "sh-plugin", callIn(script(t, `yes | head -c 100000 >&2; exit 1`)))
	if err == nil || len(err.Error()) > 20000 {
		t.Errorf("an error of %d bytes", len(err.Error()))
	}
}

func TestFind(t *testing.T) {
	dir := script(t, "true")
	if err := os.Mkdir(filepath.Join(dir, "directory"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "plain"), nil, 0o600); err != nil { // no execute bit
		t.Fatal(err)
	}
	if err := os.Symlink("sh-plugin", filepath.Join(dir, "link")); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"sh-plugin", "plain", "link", "directory", "missing", "../x", "", ".."} {
		for _, dirs := range [][]string{{"/nonexistent", dir}, {}, {"relative", dir}} {
			got, err := invoke.Find(name, dirs)
			want, terr := cni.FindInPath(name, dirs)
			if got != want || (err == nil) != (terr == nil) {
				t.Errorf("%q in %v: %q, %v; libcni says %q, %v", name, dirs, got, err, want, terr)
			}
			if slices.Contains([]string{"missing", "directory"}, name) && (!errors.Is(err, invoke.ErrNotFound) || err.Error() != terr.Error()) {
				t.Errorf("%q in %v: %v; libcni says %v", name, dirs, err, terr)
			}
		}
	}
}

// TestBusy runs a program while it is being written ("text file busy"). Exec tries again until
// the file is complete. If the file stays busy, the error says so.
func TestBusy(t *testing.T) {
	self, err := os.ReadFile("/bin/true")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "busy")
	if err := os.WriteFile(path, self, 0o700); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(300*time.Millisecond, func() { _ = f.Close() })
	if _, err := (&invoke.Exec{}).Invoke(t.Context(), "busy", callIn(dir)); err != nil {
		t.Errorf("written for 300 ms: %v", err)
	}
	still, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer still.Close() //nolint:errcheck // a test's
	if _, err := (&invoke.Exec{}).Invoke(t.Context(), "busy", callIn(dir)); !errors.Is(err, syscall.ETXTBSY) {
		t.Errorf("written for ever: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := (&invoke.Exec{}).Invoke(ctx, "busy", callIn(dir)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("cancelled: %v", err)
	}
}

// TestCancelKillsTheGroup checks that a cancelled call kills the plugin's child processes too.
func TestCancelKillsTheGroup(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pid")
	slow := script(t, `sleep 100 & echo $! >`+file+`; wait`)
	var data []byte
	for limit := 100 * time.Millisecond; len(data) == 0; limit *= 3 { // a busy machine starts the plugin late
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		_, err := (&invoke.Exec{}).Invoke(ctx, "sh-plugin", callIn(slow))
		cancel()
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("error is %v", err)
		}
		if data, err = os.ReadFile(file); err != nil && limit > 20*time.Second {
			t.Fatal(err)
		}
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(30 * time.Second); running(pid); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("process %d lives on", pid)
		}
	}
}

func running(pid int) bool {
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	return err == nil && !strings.Contains(string(stat), ") Z ")
}

// TestDaemonHoldsPipes leaves a daemon behind that never closes its output. The plugin has
// succeeded all the same.
func TestDaemonHoldsPipes(t *testing.T) {
	start := time.Now()
	out, err := (&invoke.Exec{}).Invoke(t.Context(), "sh-plugin", callIn(script(t, `sleep 40 & echo '{}'`)))
	if err != nil || string(out) != "{}\n" || time.Since(start) > 30*time.Second {
		t.Errorf("%q, %v after %v", out, err, time.Since(start))
	}
}

// A command that has ended, and whose context ends then, has not been cancelled: its group is gone.
func TestCancelAfterTheEnd(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	cmd := exec.CommandContext(ctx, "true")
	invoke.InGroup(cmd)
	if err := cmd.Run(); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Cancel(); !errors.Is(err, os.ErrProcessDone) {
		t.Error(err)
	}
}
