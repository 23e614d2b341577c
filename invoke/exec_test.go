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
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

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

// If the context ends after its command, the command was not cancelled: its process group no longer
// exists.
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
