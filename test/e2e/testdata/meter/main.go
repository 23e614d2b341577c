// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Command meter stands in for CNI plugins: it runs the real plugin of its own name from the
// directory RealDir, and adds the plugin's CPU time to the file LogFile. The time includes the
// programs that the plugin ran.
package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
)

// Where the meter finds the plugins, and where it writes.
const (
	RealDir = "/opt/cni/real"
	LogFile = "/run/meter"
)

func main() {
	os.Exit(run(filepath.Base(os.Args[0])))
}

func run(name string) int {
	os.Setenv("CNI_PATH", RealDir) // so that the plugin calls others without a meter
	cmd := exec.Command(filepath.Join(RealDir, name))
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		fmt.Fprintln(os.Stderr, "meter:", err)
		return 1
	}
	if err := record(name); err != nil {
		fmt.Fprintln(os.Stderr, "meter:", err)
		return 1
	}
	return cmd.ProcessState.ExitCode()
}

// record appends one line: the plugin, the verb and the CPU time in nanoseconds.
func record(name string) error {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_CHILDREN, &u); err != nil {
		return err
	}
	log, err := os.OpenFile(LogFile, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(log, name, os.Getenv("CNI_COMMAND"), u.Utime.Nano()+u.Stime.Nano())
	return errors.Join(err, log.Close())
}
