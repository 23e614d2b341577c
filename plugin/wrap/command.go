// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package wrap

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"github.com/patchbay-net/patchbay/spec"
)

// The limits, in bytes, of the output that is kept. The rest is read and discarded, so that
// the command does not block.
const (
	mostPatch  = 1 << 20  // of standard output that is a patch
	mostLog    = 64 << 10 // of standard error
	mostQuoted = 1 << 10  // of either, in an error
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

// drained is how long the pipes are read after the command ended, if it left a process
// behind.
const drained = time.Second

// run runs the command to its end and returns its output. The command is in a process group
// of its own, which is killed at the timeout. It does not outlive this process either: its
// work must not come after the DEL that follows a killed ADD. The kernel kills it when the
// starting thread ends, so that thread is kept.
func (c *Command) run(ctx context.Context, call *spec.Call, stdin []byte) (stdout, stderr []byte, err error) {
	ctx, cancel := context.WithTimeoutCause(ctx, c.timeout, fmt.Errorf("it took longer than %v: %w", c.timeout, context.DeadlineExceeded))
	defer cancel()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.CommandContext(ctx, c.Argv[0], c.Argv[1:]...)
	cmd.Env = append(os.Environ(), call.Environ()...) // the last of equal names wins
	cmd.Stdin = bytes.NewReader(stdin)
	out, log := &limited{most: mostPatch}, &limited{most: mostLog}
	cmd.Stdout, cmd.Stderr = out, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = drained
	err = cmd.Run()
	switch {
	case err != nil && ctx.Err() != nil:
		err = context.Cause(ctx)
	case errors.Is(err, exec.ErrWaitDelay):
		err = nil // it succeeded, and a process that it left behind has the pipes
	case err != nil:
		err = c.failure(err, out.data, log.data)
	case c.Output != "" && out.cut:
		err = fmt.Errorf("its output is longer than %d bytes", mostPatch)
	}
	return out.data, log.data, err
}

// failure is the command's error. A command may print an error object, as a plugin does,
// and so choose the code.
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
