// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Command kubescale measures one agent of a Kubernetes node beside 200 Nodes and 20,000 Pods, which
// exist only as objects of a real API server. It measures the agent's memory and CPU, the bytes
// that it receives for a change of a Node, and the time from the creation of a Node to its route in
// the kernel. It prints a table, and writes the table to docs/bench/kube.md.
//
//	kubescale [-nodes N] [-pods N] [-out FILE] [-policies N,...] [-policies-out FILE]
//
// With -policies it measures the agent beside these numbers of network policies instead: the time
// from a change in the API to the first packet with the new verdict, memory, bytes and processor time.
// It writes a table and a picture to docs/bench/kube-policies.md and kube-policies.svg.
//
// It needs root, and the API server of test/labs/kube, which scripts/setup builds. Everything runs
// in private network, mount and process namespaces.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/test/reftest"
)

// stageEnv is the environment variable with the stage of this process: outside, the first process
// in the namespaces, or in the control plane's network namespace.
const (
	stageEnv = "PATCHBAY_KUBESCALE"
	dirEnv   = "LAB_DIR"
)

type options struct {
	nodes, pods int
	out         string
	policies    string // numbers of policies, separated by commas; if not empty, they are measured
	policiesOut string // file of their table, without its extension
	changes     int    // of each kind
}

func main() {
	var o options
	flag.IntVar(&o.nodes, "nodes", 200, "Nodes, the agent's own among them")
	flag.IntVar(&o.pods, "pods", 20000, "Pods")
	flag.StringVar(&o.out, "out", "docs/bench/kube.md", "file of the table; empty: print only")
	flag.StringVar(&o.policies, "policies", "", "numbers of network policies, such as 0,1000,5000: measure these")
	flag.StringVar(&o.policiesOut, "policies-out", "docs/bench/kube-policies", "file of their table and picture, without .md and .svg; empty: print only")
	flag.IntVar(&o.changes, "changes", 100, "changes of each kind, beside each number of policies")
	flag.Parse()
	run := map[string]func(options) error{"": outside, "lab": inLab, "measure": measure}[os.Getenv(stageEnv)]
	if err := run(o); err != nil {
		fmt.Fprintln(os.Stderr, "kubescale: error:", err)
		os.Exit(1)
	}
}

// outside builds the programs, and starts this program again in new namespaces. When the first
// process there ends, the kernel kills the others.
func outside(options) (err error) {
	if os.Geteuid() != 0 {
		return errors.New("needs root: it makes namespaces")
	}
	cache, err := os.UserCacheDir()
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp(filepath.Join(cache, "patchbay"), "kubescale-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	root, err := reftest.Root()
	if err != nil {
		return err
	}
	build := exec.Command(filepath.Join(root, "scripts/build"), dir, "patchbay", "patchbayd")
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		return fmt.Errorf("build: %w", err)
	}
	cmd := again("lab", dirEnv+"="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags: unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL,
	}
	return cmd.Run()
}

// again returns a command that runs this program in another stage.
func again(stage string, env ...string) *exec.Cmd {
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(append(os.Environ(), stageEnv+"="+stage), env...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	return cmd
}

// inLab starts the API server, and this program in the same network namespace.
func inLab(options) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	for _, m := range []struct{ kind, dir string }{{"proc", "/proc"}, {"tmpfs", "/run"}, {"tmpfs", "/var/lib"}} {
		if err := unix.Mount(m.kind, m.dir, m.kind, 0, ""); err != nil {
			return fmt.Errorf("mount %s: %w", m.dir, err)
		}
	}
	root, err := reftest.Root()
	if err != nil {
		return err
	}
	lab := filepath.Join(root, "test/labs/kube/kube")
	if out, err := exec.Command(lab, "up", "0", "alone").CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", lab, err, strings.TrimSpace(string(out)))
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := again("measure")
	cmd.Path, cmd.Args = "", append([]string{"nsenter", "--net=/run/netns/kl-cp", "--", self}, os.Args[1:]...)
	if cmd.Path, err = exec.LookPath("nsenter"); err != nil {
		return err
	}
	err = cmd.Run()
	if out, downErr := exec.Command(lab, "down").CombinedOutput(); downErr != nil {
		err = errors.Join(err, fmt.Errorf("%s: %w: %s", lab, downErr, out))
	}
	return err
}
