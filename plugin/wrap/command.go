// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package wrap

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"syscall"

	"github.com/patchbay-net/patchbay/invoke"
	"github.com/patchbay-net/patchbay/spec"
)

// These limits say how many bytes of a command's output are kept. The rest is read and
// discarded, so that the command does not block.
const (
	mostPatch  = 1 << 20  // standard output that is a patch
	mostLog    = 64 << 10 // standard error
	mostQuoted = 1 << 10  // standard output or error in an error text
)

// limited keeps the first bytes that are written to it.
type limited struct {
	data []byte
	most int
	cut  bool
}

// Write never fails.
func (l *limited) Write(p []byte) (int, error) {
	room := l.most - len(l.data)
	l.cut = l.cut || len(p) > room
	l.data = append(l.data, p[:min(len(p), room)]...)
	return len(p), nil
}

// run runs the command to its end and returns its output. The command has its own process group;
// at the timeout, run kills the group. A DEL may follow a killed ADD, and the command must not
// work after that DEL. So the command must not outlive this process. The kernel kills the command
// when the thread that started it ends, and run keeps this thread until then. If env sets a
// variable twice, the last value counts.
func (c *Command) run(ctx context.Context, env []string, stdin []byte) (stdout, stderr []byte, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.timeout, fmt.Errorf("it took longer than %v: %w", c.timeout, context.DeadlineExceeded))
	defer cancel()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.CommandContext(ctx, c.Argv[0], c.Argv[1:]...)
	cmd.Env = env
	cmd.Stdin = bytes.NewReader(stdin)
	out, log := &limited{most: mostPatch}, &limited{most: mostLog}
	cmd.Stdout, cmd.Stderr = out, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	invoke.InGroup(cmd)
	err = cmd.Run()
	switch {
	case err != nil && ctx.Err() != nil:
		err = context.Cause(ctx)
	case errors.Is(err, exec.ErrWaitDelay):
		err = nil // the command succeeded, but left a process behind that still has the pipes
	case err != nil:
		err = c.failure(err, out.data, log.data)
	case c.Output != "" && out.cut:
		err = fmt.Errorf("its output is longer than %d bytes", mostPatch)
	}
	return out.data, log.data, err
}

// failure returns the error of a command that failed. Like a plugin, a command may print an
// error object and so choose the code.
func (c *Command) failure(err error, stdout, stderr []byte) error {
	if e, ok := spec.ParseError(stdout); ok {
		return e
	}
	said := stderr
	if len(bytes.TrimSpace(said)) == 0 {
		said = stdout
	}
	if said = bytes.TrimSpace(said); len(said) == 0 {
		return err
	}
	return fmt.Errorf("%w: %s", err, said[:min(len(said), mostQuoted)])
}
