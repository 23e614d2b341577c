// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// wire passes the agent's connections on to the API server and counts their bytes.
type wire struct {
	l     net.Listener
	to    string
	bytes atomic.Int64
}

func newWire(to string) (*wire, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	w := &wire{l: l, to: to}
	go w.serve()
	return w, nil
}

func (w *wire) serve() {
	for {
		c, err := w.l.Accept()
		if err != nil {
			return
		}
		go w.join(c)
	}
}

func (w *wire) join(c net.Conn) {
	defer c.Close()
	up, err := net.Dial("tcp", w.to)
	if err != nil {
		return
	}
	defer up.Close()
	go io.Copy(up, io.TeeReader(c, w))
	io.Copy(c, io.TeeReader(up, w))
}

// Write implements io.Writer.
func (w *wire) Write(p []byte) (int, error) {
	w.bytes.Add(int64(len(p)))
	return len(p), nil
}

// agent is a running `patchbayd node` of Node n1.
type agent struct {
	cmd *exec.Cmd
	log bytes.Buffer
}

// startAgent runs the program until it is ready.
func startAgent(dir, kubeconfig string) (*agent, time.Duration, error) {
	a := &agent{cmd: exec.Command(filepath.Join(dir, "patchbayd"), "node", "--node-name", "n1", "--kubeconfig", kubeconfig,
		"--cni-bin-dir", filepath.Join(dir, "bin"), "--cni-conf-dir", filepath.Join(dir, "net.d"),
		"--cluster-cidr", "10.244.0.0/16", "--cluster-cidr", "fd00:244::/48")}
	a.cmd.Stderr = &a.log
	began := time.Now()
	if err := a.cmd.Start(); err != nil {
		return nil, 0, err
	}
	for time.Since(began) < time.Minute {
		if resp, err := http.Get("http://127.0.0.1:9472/readyz"); err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return a, time.Since(began), nil
			}
		}
		time.Sleep(time.Millisecond)
	}
	a.stop()
	return nil, 0, fmt.Errorf("the agent is not ready:\n%s", &a.log)
}

func (a *agent) stop() {
	a.cmd.Process.Kill()
	a.cmd.Wait()
}

// stopped calls f while the agent does not run (SIGSTOP).
func (a *agent) stopped(f func() error) error {
	if err := a.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	err := f()
	return errors.Join(err, a.cmd.Process.Signal(syscall.SIGCONT))
}

// memory returns a value of /proc/PID/status in MB.
func (a *agent) memory(field string) (float64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", a.cmd.Process.Pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == field+":" {
			kb, err := strconv.ParseFloat(f[1], 64)
			return kb / 1024, err
		}
	}
	return 0, errors.New("no " + field)
}

// cpu returns the CPU time that the agent has used. The kernel counts it in nanoseconds.
func (a *agent) cpu() (time.Duration, error) {
	var sum time.Duration
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", a.cmd.Process.Pid))
	for _, task := range tasks {
		data, err := os.ReadFile(task)
		if err != nil {
			return 0, err
		}
		ns, err := strconv.ParseInt(strings.Fields(string(data))[0], 10, 64)
		if err != nil {
			return 0, err
		}
		sum += time.Duration(ns)
	}
	return sum, err
}
