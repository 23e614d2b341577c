// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/netns"
	"github.com/patchbay-net/patchbay/spec"
)

// inside runs a command in a namespace and returns its status as an exit. The command dies
// with this process: its parent is the thread in the namespace, which lives until the command has
// ended.
func (a *app) inside(path string, dns spec.DNS, argv []string) error {
	if err := a.ctx.Err(); err != nil {
		return runFailure(err)
	}
	ns, err := netns.Open(path)
	if err != nil {
		return runFailure(err)
	}
	conn, err := nl.In(ns, a.paths.Proc)
	if err != nil {
		return runFailure(err)
	}
	defer conn.Close()
	if err := setUp(conn, "lo"); err != nil { // as every container expects
		return runFailure(err)
	}
	if err := conn.Do(func() error { return a.privateMounts(dns) }); err != nil {
		return runFailure(err)
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = a.stdin, a.stdout, a.stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, unix.SIGINT, unix.SIGQUIT, unix.SIGTERM, unix.SIGHUP, unix.SIGUSR1, unix.SIGUSR2)
	defer signal.Stop(signals)
	if err := conn.Do(cmd.Start); err != nil {
		return notRunnable(argv, err)
	}
	go forward(signals, cmd.Process)
	return status(cmd.Wait())
}

// status converts the outcome of a command to an exit.
func status(err error) error {
	var ended *exec.ExitError
	if !errors.As(err, &ended) {
		return err
	}
	if ws, ok := ended.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return exit(exitSignal + int(ws.Signal()))
	}
	return exit(ended.ExitCode())
}

// forward passes signals on to the command. The terminal sends its signals to both
// processes, so forward only keeps them from ending this one.
func forward(signals <-chan os.Signal, p *os.Process) {
	for s := range signals {
		if fromTerminal := (s == unix.SIGINT || s == unix.SIGQUIT) && foreground(); !fromTerminal {
			_ = p.Signal(s) // it may have ended
		}
	}
}

// foreground reports whether this process gets the terminal's signals.
func foreground() bool {
	group, err := unix.IoctlGetInt(0, unix.TIOCGPGRP)
	return err == nil && group == unix.Getpgrp()
}
