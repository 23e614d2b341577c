// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package command

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// beside starts what the plugin needs, such as its daemon, and returns when that has printed a line. It is the first process
// of a PID namespace, so whatever it started ends with it, also if this process is killed.
func beside(command string) (stop func(), err error) {
	if command == "" {
		return func() {}, nil
	}
	runtime.LockOSThread() // until this process ends: Pdeathsig is about this thread, and the suite throws threads away
	cmd := exec.Command("sh", "-c", command)
	cmd.Stderr = os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, fmt.Errorf("start the command beside the plugin: %w", err)
	}
	stop = func() {
		_ = cmd.Process.Kill() // fails if it has ended
		_ = cmd.Wait()         // it was killed
	}
	lines := bufio.NewReader(out)
	if _, err := lines.ReadString('\n'); err != nil {
		stop()
		return nil, &failure{
			error: fmt.Errorf("the command beside the plugin ended before it had printed a line: %v", cmd.ProcessState), code: exitUntold,
			hint: "it prints a line when the plugin can be called, and then stays",
		}
	}
	go io.Copy(io.Discard, lines) //nolint:errcheck // else it would block when the pipe is full
	return stop, nil
}
