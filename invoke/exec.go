// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package invoke calls one plugin. Invoker is the interface. Exec in this package starts the
// program that it finds in CNI_PATH; plugin.Builtin calls a Go function in this process. A
// test checks that both return the same bytes.
package invoke

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/patchbay-net/patchbay/spec"
)

// Exec starts plugins as programs. Its zero value is ready to use. If a plugin succeeds, Exec
// copies the plugin's standard error to Stderr.
type Exec struct {
	Stderr io.Writer // nil means os.Stderr
	Base   []string  // environment of each plugin, a list of K=V; nil means that of this process
	Env    []string  // K=V entries added to each plugin's environment

	// Saw, if set, gets what each program printed and how it ended, before Exec judges that. One Exec may run
	// several programs at once.
	Saw func(path string, stdout, stderr []byte, err error)
}

// If a program is being replaced ("text file busy"), Exec tries to start it busyTries times
// and waits busyWait between two tries.
const (
	busyTries = 6
	busyWait  = 200 * time.Millisecond
)

// Invoke finds the program in call.Path and runs it to its end. If ctx is cancelled, Invoke
// kills the program and all processes that it started (its process group).
func (e *Exec) Invoke(ctx context.Context, pluginType string, call *spec.Call) ([]byte, error) {
	path, err := Find(pluginType, call.Path)
	if err != nil {
		return nil, err
	}
	return e.Run(ctx, path, call)
}

// Run works like Invoke for a program whose path is known.
func (e *Exec) Run(ctx context.Context, path string, call *spec.Call) ([]byte, error) {
	for try := 1; ; try++ {
		var stdout, stderr limited
		cmd := e.command(ctx, path, call)
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		err := cmd.Run()
		if e.Saw != nil {
			e.Saw(path, stdout.data, stderr.data, err)
		}
		if err == nil || errors.Is(err, exec.ErrWaitDelay) { // ErrWaitDelay: the plugin succeeded, but a child holds its pipes open
			if len(stderr.data) > 0 {
				_, _ = e.stderr().Write(stderr.data) // the plugin succeeded, even if this write fails
			}
			if stdout.cut {
				return nil, fmt.Errorf("output of %s is longer than %d bytes", path, mostOutput)
			}
			return stdout.data, nil
		}
		if !errors.Is(err, syscall.ETXTBSY) || try == busyTries {
			return nil, failure(ctx, path, err, stdout.data, stderr.data)
		}
		select {
		case <-time.After(busyWait):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
}

// command builds a new Cmd, because a Cmd that failed to start cannot be started again.
func (e *Exec) command(ctx context.Context, path string, call *spec.Call) *exec.Cmd {
	cmd := exec.CommandContext(ctx, path)
	cmd.Env = environ(foreign(e.base()), e.Env, call.Environ())
	cmd.Stdin = bytes.NewReader(call.Config)
	InGroup(cmd)
	return cmd
}

// InGroup gives a command, before its start, a process group of its own. When the command's context ends, the
// whole group is killed. A process that outlives the command may keep its pipes open; callers wait for it for
// at most a second (exec.ErrWaitDelay).
func InGroup(cmd *exec.Cmd) {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Setpgid = true
	cmd.Cancel = func() error {
		err := syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		if errors.Is(err, syscall.ESRCH) {
			return os.ErrProcessDone // the command ended by itself, and its success counts
		}
		return err
	}
	cmd.WaitDelay = time.Second
}

// mostOutput is how many bytes of a plugin's output Exec keeps. A result with thousands of routes has fewer.
const mostOutput = 16 << 20

// limited keeps the first mostOutput bytes that are written to it.
type limited struct {
	data []byte
	cut  bool
}

// Write never fails, so that the plugin does not block.
func (l *limited) Write(p []byte) (int, error) {
	room := mostOutput - len(l.data)
	l.cut = l.cut || len(p) > room
	l.data = append(l.data, p[:min(len(p), room)]...)
	return len(p), nil
}

func (e *Exec) base() []string {
	if e.Base == nil {
		return os.Environ()
	}
	return e.Base
}

func (e *Exec) stderr() io.Writer {
	if e.Stderr == nil {
		return os.Stderr
	}
	return e.Stderr
}

// foreign removes from an environment the variables that Call.Environ leaves out if they are empty. A plugin
// must not inherit the values of another call.
func foreign(env []string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(kv string) bool {
		switch key, _, _ := strings.Cut(kv, "="); key {
		case "CNI_NETNS_OVERRIDE", "TRACEPARENT", "TRACESTATE", "BAGGAGE":
			return true
		}
		return false
	})
}

// environ merges lists of K=V. If a key is set twice, the later value wins.
func environ(lists ...[]string) []string {
	index := map[string]int{}
	var out []string
	for _, list := range lists {
		for _, kv := range list {
			key, _, _ := strings.Cut(kv, "=")
			if i, ok := index[key]; ok {
				out[i] = kv
				continue
			}
			index[key] = len(out)
			out = append(out, kv)
		}
	}
	return out
}

// failure returns the error object that a failed plugin printed. If the plugin printed none, the
// error names the program. failure uses libcni's texts, because runtimes and people search for
// them.
func failure(ctx context.Context, path string, err error, stdout, stderr []byte) error {
	if ctx.Err() != nil {
		return fmt.Errorf("call %s: %w", path, ctx.Err())
	}
	switch {
	case len(stdout) == 0 && len(stderr) == 0:
		return fmt.Errorf("netplugin failed with no error message: %w (%s)", err, path)
	case len(stdout) == 0:
		return fmt.Errorf("netplugin failed: %q: %w (%s)", clip(stderr), err, path)
	}
	if e, ok := spec.ParseError(stdout); ok {
		if e.Msg == "" {
			e.Msg = fmt.Sprintf("netplugin failed with code %d and no error message (%s)", e.Code, path)
		}
		return e
	}
	return fmt.Errorf("netplugin failed but error parsing its diagnostic message %q: %w (%s)", clip(stdout), err, path)
}

// clip shortens output, so that a faulty plugin cannot make an error arbitrarily long.
func clip(b []byte) []byte {
	const most = 4096
	return b[:min(len(b), most)]
}

// Invoker calls the plugin with the given type and returns its standard output. If the plugin
// reports an error, Invoke returns a *spec.Error with the plugin's code.
type Invoker interface {
	Invoke(ctx context.Context, pluginType string, call *spec.Call) ([]byte, error)
}

// ErrNotFound means that no directory of the path holds the plugin.
var ErrNotFound = errors.New("plugin not found")

// Find returns the first regular file named pluginType in dirs. Like libcni, it ignores the
// execute bit and follows symbolic links.
func Find(pluginType string, dirs []string) (string, error) {
	if err := spec.ValidatePluginType(pluginType); err != nil {
		return "", err
	}
	if len(dirs) == 0 {
		return "", notFound("no paths provided")
	}
	for _, dir := range dirs {
		full := filepath.Join(dir, pluginType)
		if fi, err := os.Stat(full); err == nil && fi.Mode().IsRegular() {
			return full, nil
		}
	}
	return "", notFound(fmt.Sprintf("failed to find plugin %q in path [%s]", pluginType, strings.Join(dirs, " ")))
}

// notFoundError matches ErrNotFound. It has libcni's text, because runtimes search for that text.
type notFoundError struct{ msg string }

func notFound(msg string) error          { return &notFoundError{msg} }
func (e *notFoundError) Error() string   { return e.msg }
func (e *notFoundError) Is(t error) bool { return t == ErrNotFound }

// Within calls a plugin and ends the call after limit. Its error names the limit. With Within, a GC
// can call the other plugins even if one plugin hangs.
func Within(ctx context.Context, limit time.Duration, in Invoker, pluginType string, call *spec.Call) ([]byte, error) {
	bounded, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	out, err := in.Invoke(bounded, pluginType, call)
	if err != nil && bounded.Err() != nil && ctx.Err() == nil {
		err = fmt.Errorf("%s did not end within %v: %w", call.Verb, limit, err)
	}
	return out, err
}
