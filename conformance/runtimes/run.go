// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package runtimes

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"github.com/patchbay-net/patchbay/conformance"
)

// Find returns the path of a command, as a shell finds it.
func Find(name string) (string, error) {
	path, err := exec.LookPath(name)
	if err != nil {
		return "", err
	}
	return filepath.Abs(path)
}

// environ has the variables of the command.
func (s *stage) environ(op *operation) []string {
	c := s.container(op.second)
	env := []string{
		"NETCONFPATH=" + s.in("net.d"), "CNI_PATH=" + s.in("bin"), "CACHE_DIR=" + s.in("cache"),
		"NETWORK=" + s.name, "NETNS=" + c.netns, "CONTAINERID=" + c.id, "CNI_IFNAME=" + c.ifName,
	}
	if !slices.Contains(s.Without, "args") {
		env = append(env, "CNI_ARGS="+askedArgs)
	}
	if !slices.Contains(s.Without, "capabilities") {
		env = append(env, "CAP_ARGS="+askedCapabilities)
	}
	if op.do == "gc" {
		valid, _ := json.Marshal([]map[string]string{{"containerID": c.id, "ifname": c.ifName}}) // texts
		env = append(env, "VALID_ATTACHMENTS="+string(valid))
	}
	return env
}

// changes are the variables of an operation that differ from those that prepare exported.
func (s *stage) changes(op *operation) []string {
	exported := s.environ(&operation{})
	return slices.DeleteFunc(s.environ(op), func(kv string) bool { return slices.Contains(exported, kv) })
}

// settleTime is how long a recorder may need to end after it was released or killed.
const settleTime = 2 * time.Second

// run runs the command in a process group of its own, and ends what is left of it.
func (s *stage) run(d *done) {
	limit := cmp.Or(s.Limit, 30*time.Second)
	if s.hangs && len(d.orders) > 0 {
		limit += s.Timeout
	}
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	args := append(slices.Clone(s.Command[1:]), d.do)
	cmd := exec.CommandContext(ctx, s.Command[0], args...)
	cmd.Env = append(os.Environ(), s.environ(&d.operation)...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = settleTime
	begun := time.Now()
	note := &conformance.Call{Program: s.Command[0], Args: args, Env: s.changes(&d.operation)}
	s.steps = append(s.steps, conformance.Step{Call: note})
	if err := cmd.Start(); err != nil {
		d.exit = -1
		stderr.WriteString(err.Error())
	} else {
		if d.kills != "" {
			s.killAt(ctx, d.kills, cmd.Process.Pid)
		}
		_ = cmd.Wait() // the state says how it ended
		d.exit = cmd.ProcessState.ExitCode()
	}
	d.late = errors.Is(ctx.Err(), context.DeadlineExceeded)
	s.release()
	d.stdout, d.stderr = stdout.String(), stderr.String()
	note.Stdout, note.Stderr, note.Exit = cut(d.stdout, 4000), cut(d.stderr, 4000), d.exit
	note.Milliseconds, note.Killed = float64(time.Since(begun).Microseconds())/1000, d.kills != ""
}

// killAt kills the runtime, with its process group, as soon as a call runs.
func (s *stage) killAt(ctx context.Context, name string, pid int) {
	for ; ctx.Err() == nil; time.Sleep(5 * time.Millisecond) {
		calls, _, err := readCalls(s.in(callsFile), s.offset)
		if err != nil {
			return // operate reads again, and reports it
		}
		if slices.ContainsFunc(calls, func(c *call) bool { return c.String() == name && c.input != nil }) {
			_ = syscall.Kill(-pid, syscall.SIGKILL) // what has ended is dead, too
			s.release()
			return
		}
	}
}

// release ends the recorders that hang, also those that the runtime put into a process group of their own.
func (s *stage) release() {
	_ = os.WriteFile(s.in(releaseFile), nil, 0o644) // otherwise they end later
	defer os.Remove(s.in(releaseFile))
	for end := time.Now().Add(settleTime); time.Now().Before(end) && s.running(); time.Sleep(5 * time.Millisecond) {
	}
}

// running reports whether a recorder has not ended.
func (s *stage) running() bool {
	calls, _, err := readCalls(s.in(callsFile), s.offset)
	return err == nil && slices.ContainsFunc(calls, func(c *call) bool {
		_, dead := os.Readlink(fmt.Sprintf("/proc/%d/exe", c.PID)) // also of a process that has ended and whose parent has not waited for it
		return !c.ended && dead == nil
	})
}
