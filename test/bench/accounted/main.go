// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// The same settings as cmd/patchbay.
//go:debug containermaxprocs=0
//go:debug updatemaxprocs=0

// Command accounted has the plugins of cmd/patchbay, and notes the time before each step of a call. The
// benchmark names the file of the notes in the environment.
package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/all"
)

func main() {
	var m marks
	m.note("set GOMAXPROCS")
	p := all.Find(filepath.Base(os.Args[0]))
	if p == nil {
		os.Exit(2)
	}
	runtime.GOMAXPROCS(1)
	m.note("read the call")
	s := plugin.NewSession(all.Plugins())
	s.Self = plugin.SelfPath
	s.Fault = func(step string) error { m.note(step); return nil }
	status := plugin.Run(context.Background(), p, s, plugin.Stdio{
		Getenv: os.Getenv, Stdin: &noted{os.Stdin, &m, "decode the call, open sockets, look at links"}, Stdout: &noted{os.Stdout, &m, "close files and sockets"}, Stderr: os.Stderr,
	})
	s.Close()
	m.note("exit, and the caller's read of the result")
	if err := os.WriteFile(os.Getenv("PATCHBAY_BENCH_ACCOUNT"), m.text.Bytes(), 0o600); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	os.Exit(status)
}

// marks is what was noted: a line for each step, with the time at which it began.
type marks struct{ text bytes.Buffer }

func (m *marks) note(step string) {
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err == nil {
		fmt.Fprintf(&m.text, "%d %q\n", now.Nano(), step)
	}
}

// noted notes a step after each read and write.
type noted struct {
	*os.File
	marks *marks
	step  string
}

func (n *noted) Read(b []byte) (int, error) {
	k, err := n.File.Read(b)
	if err == io.EOF {
		n.marks.note(n.step)
	}
	return k, err
}

func (n *noted) Write(b []byte) (int, error) {
	k, err := n.File.Write(b)
	n.marks.note(n.step)
	return k, err
}
