// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package resident

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/internal/test/nettest/leak"
)

// TestOwnDescriptor names the namespace by a descriptor of the plugin's process. In the server, the same number is
// another container's namespace.
func TestOwnDescriptor(t *testing.T) {
	dir, a, b, before := install(t), nettest.NewNS(t, "a"), nettest.NewNS(t, "b"), leak.Must(t)
	running, release := slow(t, dir)
	s := serve(t, dir)
	first, _ := call{plugin: "bridge", verb: "ADD", id: "a", netns: a, input: bridgeConf("slow")}.begin(t, dir)
	until(t, "the ADD runs", exists(running))
	file, err := os.Open(b)
	if err != nil {
		t.Fatal(err)
	}
	number := descriptorOf(t, s.cmd.Process.Pid, a)
	second := call{plugin: "bridge", verb: "ADD", id: "b", netns: fmt.Sprint("/proc/self/fd/", number), input: bridgeConf("host-local"), env: []string{"CNI_IFNAME=eth1"}}
	run := func() {
		cmd := second.process(dir)
		cmd.ExtraFiles = make([]*os.File, number-2)
		cmd.ExtraFiles[number-3] = file
		if out, err := cmd.Output(); err != nil {
			t.Errorf("%s: %v: %s", second.verb, err, out)
		}
	}
	run()
	if nettest.HasLink(t, a, "eth1") || !nettest.HasLink(t, b, "eth1") {
		t.Error("the link is not in the container's namespace")
	}
	second.verb = "DEL"
	run()
	if nettest.HasLink(t, b, "eth1") {
		t.Error("the link is still there")
	}
	if err := errors.Join(file.Close(), os.WriteFile(release, nil, 0o600), first.Wait()); err != nil {
		t.Error(err)
	}
	if o := (call{plugin: "bridge", verb: "DEL", id: "a", netns: a, input: bridgeConf("slow")}).run(t, dir); o.code != 0 {
		t.Errorf("%+v", o)
	}
	s.stop(t)
	leak.NoLeaks(t, before)
}

// descriptorOf returns the number of a process's descriptor of a file.
func descriptorOf(t *testing.T, pid int, path string) (number int) {
	t.Helper()
	want, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	fds, _ := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	for _, fd := range fds {
		if st, err := os.Stat(fd); err == nil && os.SameFile(st, want) {
			_, _ = fmt.Sscan(filepath.Base(fd), &number)
		}
	}
	if number < 3 {
		t.Fatalf("process %d has not opened %s", pid, path)
	}
	return number
}
