// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/handover"
)

// residentPID is this node's process that runs the plugins' calls, or 0.
var residentPID int

// startResident starts that process, and waits until it listens. It ends with the node.
func startResident(plugins string) error {
	cmd := exec.Command(filepath.Join(plugins, "patchbay"), handover.Argument)
	log, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	lines := bufio.NewScanner(log)
	if !lines.Scan() || !strings.Contains(lines.Text(), "listening") {
		return errors.New(lines.Text())
	}
	residentPID = cmd.Process.Pid
	go func() {
		for lines.Scan() {
			println(lines.Text())
		}
	}()
	return nil
}

// residentCPU returns the CPU time of that process (clock_getcpuclockid(3)).
func residentCPU() time.Duration {
	if residentPID == 0 {
		return 0
	}
	var t unix.Timespec
	if err := unix.ClockGettime(int32(^residentPID<<3|2), &t); err != nil {
		return 0
	}
	return time.Duration(t.Nano())
}
