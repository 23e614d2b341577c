// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package resident

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/internal/test/nettest/leak"
)

// TestClosed calls plugins without standard output, and without standard error. The connection to the server must
// not take the place of either.
func TestClosed(t *testing.T) {
	dir, ns, before := install(t), nettest.NewNS(t, "closed"), leak.Must(t)
	script(t, filepath.Join(dir, "loud"), `cat > /dev/null; echo a warning >&2
[ "$CNI_COMMAND" = ADD ] && echo '{"cniVersion":"1.0.0","ips":[{"address":"10.99.0.9/16"}]}'; exit 0`)
	for _, closed := range []string{"0<&-", "1>&-", "2>&-"} {
		s := serve(t, dir)
		add := call{plugin: "bridge", verb: "ADD", id: "c", netns: ns, input: bridgeConf("loud"), shell: `exec "$0" ` + closed}
		o := add.run(t, dir)
		s.stop(t) // after the undo
		if has := nettest.HasLink(t, ns, "eth0"); (o.code == 0) != has || has == (closed == "0<&-") {
			t.Errorf("%s: %+v, and the link is there: %v", closed, o, has)
		}
		add.verb, add.shell = "DEL", ""
		if o := add.run(t, dir); o.code != 0 {
			t.Errorf("%+v", o)
		}
	}
	leak.NoLeaks(t, before)
}

// TestFull has a runtime that reads late from a pipe that does not block.
func TestFull(t *testing.T) {
	dir, ns := install(t), nettest.NewNS(t, "full")
	serve(t, dir)
	routes := strings.Repeat(`,{"dst":"10.0.0.0/8","gw":"10.99.0.1"}`, 1200)
	c := call{plugin: "tuning", verb: "ADD", id: "c", netns: ns, shell: noGo, input: `{"cniVersion":"1.0.0","name":"res","type":"tuning",
		"prevResult":{"cniVersion":"1.0.0","ips":[],"routes":[{"dst":"0.0.0.0/0"}` + routes + `]}}`}
	want := c.run(t, dir)
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	raw, err := write.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	cmd := c.process(dir)
	cmd.Stdout = write
	if err := cmd.Start(); err != nil { // this makes the pipe block
		t.Fatal(err)
	}
	if err := raw.Control(func(fd uintptr) { err = unix.SetNonblock(int(fd), true) }); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(err, write.Close()); err != nil {
		t.Fatal(err)
	}
	time.Sleep(300 * time.Millisecond) // until the pipe is full
	got, err := io.ReadAll(read)
	if err := errors.Join(err, read.Close(), cmd.Wait()); err != nil || string(got) != want.stdout || want.code != 0 {
		t.Errorf("%v: %d bytes, want %d", err, len(got), len(want.stdout))
	}
}

// TestStopped stops a plugin's process while it waits for the server's word. It must not take the signal for the end
// of its wait.
func TestStopped(t *testing.T) {
	dir, ns, before := install(t), nettest.NewNS(t, "stopped"), leak.Must(t)
	running, release := slow(t, dir)
	s := serve(t, dir)
	signal := func(p *os.Process, sig os.Signal) {
		t.Helper()
		if err := p.Signal(sig); err != nil {
			t.Fatal(err)
		}
	}
	signal(s.cmd.Process, syscall.SIGSTOP)
	add := call{plugin: "bridge", verb: "ADD", id: "c", netns: ns, input: bridgeConf("slow")}
	cmd, stdout := add.begin(t, dir)
	until(t, "the plugin waits", func() bool {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/syscall", cmd.Process.Pid))
		return err == nil && strings.HasPrefix(string(text), fmt.Sprint(unix.SYS_PPOLL, " "))
	})
	signal(cmd.Process, syscall.SIGSTOP)
	signal(s.cmd.Process, syscall.SIGCONT)
	until(t, "the ADD runs", exists(running))
	signal(cmd.Process, syscall.SIGCONT)
	if err := os.WriteFile(release, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil || !nettest.HasLink(t, ns, "eth0") {
		t.Errorf("%v: %s", err, stdout)
	}
	add.verb = "DEL"
	if o := add.run(t, dir); o.code != 0 {
		t.Errorf("%+v", o)
	}
	s.stop(t)
	leak.NoLeaks(t, before)
}
