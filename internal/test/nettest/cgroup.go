// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nettest

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Cgroup is a memory cgroup of a test, which has the memory that processes use from their move on, and what the kernel
// keeps for them.
type Cgroup struct {
	dir string
	v2  bool
}

// MemoryCgroup makes an empty memory cgroup, and removes it when the test has ended its processes.
func MemoryCgroup(t testing.TB) Cgroup {
	t.Helper()
	var g Cgroup
	Need(t, Feature{"a memory cgroup", func() (err error) { g, err = newCgroup(); return err }})
	t.Cleanup(func() {
		if err := os.Remove(g.dir); err != nil {
			t.Error(err)
		}
	})
	return g
}

func newCgroup() (Cgroup, error) {
	g, err := memoryRoot()
	if err != nil {
		return g, err
	}
	if g.v2 {
		if err := os.WriteFile(filepath.Join(g.dir, "cgroup.subtree_control"), []byte("+memory"), 0); err != nil {
			return g, err
		}
	}
	g.dir = filepath.Join(g.dir, "patchbay-test-"+strconv.Itoa(os.Getpid()))
	return g, os.Mkdir(g.dir, 0o755)
}

// memoryRoot finds the highest memory cgroup. A machine without systemd may not have mounted it: then it is mounted
// in the test's own mount namespace.
func memoryRoot() (Cgroup, error) {
	const root, own = "/sys/fs/cgroup", "/run/test-cgroup"
	for _, g := range []Cgroup{{root + "/memory", false}, {root, true}, {own, true}} {
		if g.has("memory.usage_in_bytes") || g.v2 && g.has("cgroup.controllers") {
			return g, nil
		}
	}
	if err := os.Mkdir(own, 0o700); err != nil {
		return Cgroup{}, err
	}
	if err := unix.Mount("none", own, "cgroup2", 0, ""); err != nil {
		return Cgroup{}, fmt.Errorf("mount cgroup2 on %s: %w", own, err)
	}
	return Cgroup{own, true}, nil
}

func (g Cgroup) has(file string) bool {
	_, err := os.Stat(filepath.Join(g.dir, file))
	return err == nil
}

// Take moves a process into the cgroup. What it used before stays where it was.
func (g Cgroup) Take(t testing.TB, pid int) { g.write(t, "cgroup.procs", pid) }

// Limit is the most memory that the processes may use before the kernel kills one.
func (g Cgroup) Limit(t testing.TB, bytes int) {
	if g.v2 {
		g.write(t, "memory.max", bytes)
		return
	}
	g.write(t, "memory.limit_in_bytes", bytes)
}

// Used returns the memory of the cgroup in bytes, and the kernel's part of it.
func (g Cgroup) Used(t testing.TB) (all, kernel int) {
	t.Helper()
	if !g.v2 {
		return g.read(t, "memory.usage_in_bytes", ""), g.read(t, "memory.kmem.usage_in_bytes", "")
	}
	return g.read(t, "memory.current", ""), g.read(t, "memory.stat", "\nkernel ") // Linux 5.18
}

func (g Cgroup) write(t testing.TB, file string, n int) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(g.dir, file), []byte(strconv.Itoa(n)), 0); err != nil {
		t.Fatal(err)
	}
}

// read reads the number behind a word of a file.
func (g Cgroup) read(t testing.TB, file, word string) (n int) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(g.dir, file))
	_, rest, found := strings.Cut(string(text), word)
	if err == nil && found {
		_, err = fmt.Sscan(rest, &n)
	}
	if err != nil || !found {
		t.Fatalf("read %s of %s: %v, %.200q", file, g.dir, err, text)
	}
	return n
}
