// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package crash

import (
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/internal/test/nettest/leak"
	"github.com/patchbay-net/patchbay/netns"
	"github.com/patchbay-net/patchbay/spec"
)

// actsEnv makes this program act as containerd: it calls a plugin, and ends when file 3 is closed.
const actsEnv = "PATCHBAY_TEST_CONTAINERD"

// actAsContainerd runs the plugin as its child, as containerd does.
func actAsContainerd() (status int) {
	os.Unsetenv(actsEnv) //nolint:errcheck // the name is valid
	cmd := exec.Command("/proc/self/exe")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	if cmd.Run() != nil {
		status = 1
	}
	os.Stdout.Close()                      //nolint:errcheck // the test reads to its end
	io.Copy(io.Discard, os.NewFile(3, "")) //nolint:errcheck // until the test ends this process
	return status
}

// addByContainerd attaches a pod. The caller is a process with containerd's name, which kill ends.
func (p *pod) addByContainerd(t *testing.T) (kill func()) {
	t.Helper()
	name := filepath.Join(t.TempDir(), "containerd")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(self, name); err != nil {
		t.Fatal(err)
	}
	stays, ends, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	c := p.call(spec.Add)
	cmd := exec.Command(name)
	cmd.Env = append(append(os.Environ(), c.Environ()...), actsEnv+"=1")
	cmd.Stdin, cmd.ExtraFiles = bytes.NewReader(c.Config), []*os.File{stays}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stays.Close() //nolint:errcheck // the child has it
	if p.result, err = io.ReadAll(out); err != nil || !bytes.Contains(p.result, []byte(`"ips"`)) {
		t.Fatalf("%v: %s%s", err, p.result, &stderr)
	}
	return func() {
		ends.Close() //nolint:errcheck // nothing is written
		if err := cmd.Wait(); err != nil {
			t.Error(err)
		}
	}
}

// containerd has forgotten a sandbox, and the sandbox's namespace stays. The sweep detaches it, but
// only if no containerd can be starting it, and nothing uses the namespace.
func TestSweepForgotten(t *testing.T) {
	state := t.TempDir()
	t.Setenv("PATCHBAY_CONTAINERD_DIR", state)
	known := filepath.Join(state, "io.containerd.grpc.v1.cri", "sandboxes")
	before := podBaseline(t)
	for name, c := range map[string]struct {
		change  func(*testing.T, pod) (undo func())
		lives   bool // the caller
		other   bool // the caller is another program
		young   bool
		removed bool
	}{
		"forgotten":          {removed: true},
		"down elsewhere":     {removed: true, change: func(t *testing.T, p pod) func() { return addLink(t, p, false) }},
		"caller lives":       {lives: true},
		"of another program": {other: true},
		"young":              {young: true},
		"known":              {change: func(t *testing.T, p pod) func() { return mkdir(t, filepath.Join(known, p.name)) }},
		"no containerd":      {change: func(t *testing.T, _ pod) func() { return away(t, known) }},
		"process inside":     {change: processIn},
		"file open":          {change: openNS},
		"second interface":   {change: func(t *testing.T, p pod) func() { return addLink(t, p, true) }},
	} {
		t.Run(name, func(t *testing.T) {
			mkdir(t, known)
			p := newPod(t, "/run/netns", "forgotten", 9401)
			end := func() {}
			if c.other {
				p.exec(t, spec.Add)
			} else {
				end = p.addByContainerd(t)
			}
			if !c.lives {
				end()
			}
			if !c.young {
				age(t)
			}
			undo := func() {}
			if c.change != nil {
				undo = c.change(t, p)
			}
			had := len(records(t, "pods"))
			other := newPod(t, "/run/netns", "other", 9402)
			if c.removed {
				sweepUntil(t, &other, func() bool { return len(records(t, "pods")) == 0 })
			}
			for range sweeps(t) {
				other.exec(t, spec.Add)
				other.exec(t, spec.Del)
			}
			if left := len(records(t, "pods")); (left == 0) != c.removed || left != had && !c.removed {
				t.Errorf("of %d records %d are left", had, left)
			}
			if got := nettest.HasLink(t, p.ns, "eth0"); got == c.removed {
				t.Errorf("eth0 is there: %v", got)
			}
			undo()
			if c.lives {
				end()
			}
			p.exec(t, spec.Del)
			p.end(t)
			other.end(t)
			leak.NoLeaks(t, before, stateDirs()...)
		})
	}
}

// containerd was killed while libcni wrote the result of an ADD. The sweep removes the empty file, so
// that libcni calls DEL.
func TestSweepEmptyResult(t *testing.T) {
	before := podBaseline(t)
	p, other := newPod(t, "/run/netns", "empty", 9411), newPod(t, "/run/netns", "other", 9412)
	p.exec(t, spec.Add)
	results := filepath.Join(paths.Default().CNI, "results")
	mkdir(t, results)
	empty, full, young := filepath.Join(results, "pods-empty-eth0"), filepath.Join(results, "pods-full-eth0"), filepath.Join(results, "pods-other-eth0")
	for path, text := range map[string]string{empty: "", full: "{", young: ""} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	hour := time.Now().Add(-time.Hour)
	for _, path := range []string{empty, full} {
		if err := os.Chtimes(path, hour, hour); err != nil {
			t.Fatal(err)
		}
	}
	for range 3 {
		other.exec(t, spec.Add)
		other.exec(t, spec.Del)
	}
	if exists(empty) || !exists(full) || !exists(young) {
		t.Errorf("empty %v, full %v, young %v", exists(empty), exists(full), exists(young))
	}
	p.exec(t, spec.Check)
	p.exec(t, spec.Del)
	for _, path := range []string{full, young, results} {
		if err := os.Remove(path); err != nil {
			t.Error(err)
		}
	}
	p.end(t)
	other.end(t)
	leak.NoLeaks(t, before, stateDirs()...)
}

func mkdir(t *testing.T, path string) (undo func()) {
	t.Helper()
	if err := os.MkdirAll(path, 0o755); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := os.Remove(path); err != nil {
			t.Error(err)
		}
	}
}

// away removes containerd's directory, until undo.
func away(t *testing.T, path string) (undo func()) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	return func() { mkdir(t, path) }
}

// processIn starts a process in the pod's namespace.
func processIn(t *testing.T, p pod) (undo func()) {
	t.Helper()
	cmd := exec.Command("sleep", "600")
	inNS(t, p.ns, cmd.Start)
	return func() {
		cmd.Process.Kill() //nolint:errcheck // Wait tells
		cmd.Wait()         //nolint:errcheck // it was killed
	}
}

// openNS keeps a file of the namespace open in another process, as the hypervisor of a pod does.
func openNS(t *testing.T, p pod) (undo func()) {
	t.Helper()
	f, err := os.Open(p.ns)
	if err != nil {
		t.Fatal(err)
	}
	return func() { f.Close() } //nolint:errcheck // read only
}

// addLink makes another interface in the pod's namespace.
func addLink(t *testing.T, p pod, up bool) (undo func()) {
	t.Helper()
	inNS(t, p.ns, func() error {
		link := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "tap0"}, PeerName: "tap1"}
		if err := netlink.LinkAdd(link); err != nil || !up {
			return err
		}
		return netlink.LinkSetUp(link)
	})
	return func() {}
}

func inNS(t *testing.T, path string, fn func() error) {
	t.Helper()
	ns, err := netns.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close() //nolint:errcheck // read only
	if err := ns.Do(fn); err != nil {
		t.Fatal(err)
	}
}
