// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package resident

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/handover"
	"github.com/patchbay-net/patchbay/internal/test/draw"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/internal/test/nettest/leak"
)

// slow writes an IPAM plugin whose ADD says that it runs, by a file, and then waits for another file.
func slow(t *testing.T, dir string) (running, release string) {
	t.Helper()
	running, release = filepath.Join(t.TempDir(), "running"), filepath.Join(t.TempDir(), "release")
	script(t, filepath.Join(dir, "slow"), fmt.Sprintf(`cat > /dev/null
[ "$CNI_COMMAND" = ADD ] || exit 0
touch %s
for i in $(seq 3000); do [ -e %s ] && break; sleep 0.01; done
echo '{"cniVersion":"1.0.0","ips":[{"address":"10.99.0.9/16","gateway":"10.99.0.1"}]}'`, running, release))
	return running, release
}

// endless writes a plugin whose ADD says that it runs, by a file, and does not end.
func endless(t *testing.T, dir string) (running string) {
	t.Helper()
	running = filepath.Join(t.TempDir(), "running")
	script(t, filepath.Join(dir, "endless"), fmt.Sprintf(`cat > /dev/null; [ "$CNI_COMMAND" = ADD ] || exit 0; touch %s; exec sleep 60`, running))
	return running
}

func exists(path string) func() bool {
	return func() bool { _, err := os.Stat(path); return err == nil }
}

// begin starts a call that a test will disturb.
func (c call) begin(t *testing.T, dir string) (cmd *exec.Cmd, stdout *bytes.Buffer) {
	t.Helper()
	cmd, stdout = c.process(dir), new(bytes.Buffer)
	cmd.Stdout = stdout
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd, stdout
}

// beginAndKill kills the plugin's process of an ADD that says that it runs.
func (c call) beginAndKill(t *testing.T, dir, running string) (stdout *bytes.Buffer) {
	t.Helper()
	cmd, stdout := c.begin(t, dir)
	until(t, "the ADD runs", exists(running))
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed
	return stdout
}

// TestServerDies kills the server in an ADD, and in a DEL. The ADD fails with code 11; the DEL is done all the same.
func TestServerDies(t *testing.T) {
	dir, ns, before := install(t), nettest.NewNS(t, "dies"), leak.Must(t)
	running, _ := slow(t, dir)
	s := serve(t, dir)
	add := call{plugin: "bridge", verb: "ADD", id: "c", netns: ns, input: bridgeConf("slow")}
	cmd, stdout := add.begin(t, dir)
	until(t, "the ADD runs", exists(running))
	if err := s.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // its status is checked
	if cmd.ProcessState.ExitCode() != 1 || !strings.Contains(stdout.String(), `"code": 11,`) || !strings.Contains(stdout.String(), "ended without an answer") {
		t.Errorf("%v: %s", cmd.ProcessState, stdout)
	}
	del := add
	del.verb = "DEL"
	if o := del.run(t, dir); o.code != 0 {
		t.Errorf("%+v", o)
	}
	os.Remove(handover.Path)
	leak.NoLeaks(t, before)
}

// TestServerDiesAnywhere kills the server at any moment of ADDs and DELs. Whatever an ADD says, a DEL leaves
// nothing behind.
func TestServerDiesAnywhere(t *testing.T) {
	dir, ns, before := install(t), nettest.NewNS(t, "dies"), leak.Must(t)
	kills := nettest.NewKills(t, "a server's ADD or DEL")
	for i := range draw.Number(t, "PATCHBAY_RESIDENT_KILLS", 12, 40) {
		s := serve(t, dir)
		for _, verb := range []string{"ADD", "DEL"} {
			c := call{plugin: "bridge", verb: verb, id: fmt.Sprint("c", i), netns: ns, input: bridgeConf("host-local")}
			kills.Try(func(after time.Duration) bool {
				timer := time.AfterFunc(after, func() { _ = s.cmd.Process.Kill() })
				o := c.run(t, dir)
				timer.Stop()
				if verb == "DEL" && o.code != 0 || o.code == 1 && !strings.Contains(o.stdout, `"code": 11,`) || o.code > 1 {
					t.Errorf("%s: %+v", verb, o)
				}
				return !exists(fmt.Sprint("/proc/", s.cmd.Process.Pid, "/exe"))()
			})
		}
		if o := (call{plugin: "bridge", verb: "DEL", id: fmt.Sprint("c", i), netns: ns, input: bridgeConf("host-local")}).run(t, dir); o.code != 0 {
			t.Errorf("DEL: %+v", o)
		}
		s.stop(t)
	}
	os.Remove(handover.Path)
	leak.NoLeaks(t, before)
}

// TestCallerDies kills the plugin's process in an ADD and calls DEL at once, as a runtime does. The server
// undoes the ADD before it runs the DEL.
func TestCallerDies(t *testing.T) {
	dir, ns, before := install(t), nettest.NewNS(t, "caller"), leak.Must(t)
	running, _ := slow(t, dir)
	s := serve(t, dir)
	add := call{plugin: "bridge", verb: "ADD", id: "c", netns: ns, input: bridgeConf("slow")}
	stdout := add.beginAndKill(t, dir, running)
	del := add
	del.verb, del.shell = "DEL", noGo
	if o := del.run(t, dir); o.code != 0 || stdout.Len() > 0 {
		t.Errorf("%+v, %s", o, stdout)
	}
	if ran := s.stop(t); ran != 2 {
		t.Errorf("the server ran %d calls\n%s", ran, s.said())
	}
	leak.NoLeaks(t, before)
}

// TestSlowUndo is TestCallerDies with an undo that takes longer than a plugin's process waits for a server that
// does not take its call.
func TestSlowUndo(t *testing.T) {
	dir, ns, before := install(t), nettest.NewNS(t, "undo"), leak.Must(t)
	log := filepath.Join(t.TempDir(), "log")
	script(t, filepath.Join(dir, "tardy"), fmt.Sprintf(`cat > /dev/null
[ "$CNI_COMMAND" = ADD ] || grep -q DEL %[1]s || late=1.5
echo $CNI_COMMAND begins >> %[1]s
sleep ${late:-0}
echo $CNI_COMMAND ends >> %[1]s
[ "$CNI_COMMAND" = ADD ] && echo '{"cniVersion":"1.0.0","interfaces":[],"ips":[]}'
exit 0`, log))
	running := endless(t, dir)
	s := serve(t, dir)
	conf := fmt.Sprintf(`{"cniVersion":"1.0.0","name":"res","type":"patchbay","plugins":[%s,{"type":"tardy"},{"type":"endless"}]}`, bridgeConf("host-local"))
	add := call{plugin: "patchbay", verb: "ADD", id: "c", netns: ns, input: conf}
	add.beginAndKill(t, dir, running)
	del := add
	del.verb, del.shell = "DEL", noGo
	if o := del.run(t, dir); o.code != 0 {
		t.Errorf("%+v", o)
	}
	s.stop(t)
	text, err := os.ReadFile(log)
	if want := "ADD begins\nADD ends\nDEL begins\nDEL ends\nDEL begins\nDEL ends\n"; err != nil || string(text) != want {
		t.Errorf("%v\n%s\n%s", err, text, s.said())
	}
	leak.NoLeaks(t, before)
}

// TestNested kills the caller of an ADD whose undo executes a program that executes a plugin for the same container.
func TestNested(t *testing.T) {
	dir, ns, before := install(t), nettest.NewNS(t, "nested"), leak.Must(t)
	script(t, filepath.Join(dir, "shim"), `"`+dir+`/host-local"`) // a shell waits for the plugin
	running := endless(t, dir)
	s := serve(t, dir)
	conf := fmt.Sprintf(`{"cniVersion":"1.0.0","name":"res","type":"patchbay","plugins":[%s,{"type":"endless"}]}`, bridgeConf("shim"))
	add := call{plugin: "patchbay", verb: "ADD", id: "c", netns: ns, input: conf}
	add.beginAndKill(t, dir, running)
	began := time.Now()
	add.verb = "DEL"
	if o := add.run(t, dir); o.code != 0 || time.Since(began) > 10*time.Second {
		t.Errorf("%+v after %v", o, time.Since(began))
	}
	s.stop(t)
	leak.NoLeaks(t, before)
}

// TestBroken sends what no plugin's process sends. The server goes on. It refuses this process, which runs
// another program, and may do so before the packet.
func TestBroken(t *testing.T) {
	dir := install(t)
	serve(t, dir)
	for _, packet := range []string{"", "x", strings.Repeat("\xff", 16), strings.Repeat("\x00", 16), "\x08\x00\x00\x00\x00\x00\x00\x00\xf9\xff\xff\xff\xff\xff\xff\xffx"} {
		conn, err := net.Dial("unixpacket", handover.Path)
		if err != nil {
			t.Fatal(err)
		}
		_, err = conn.Write([]byte(packet))
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		if err != nil && !errors.Is(err, syscall.EPIPE) {
			t.Error(err)
		}
	}
	version := call{plugin: "bridge", verb: "VERSION", input: `{"cniVersion":"1.0.0"}`, shell: noGo}
	if o := version.run(t, dir); o.code != 0 {
		t.Errorf("%+v", o)
	}
}

// TestUnread closes the runtime's end of standard output before the result. The server undoes the ADD.
func TestUnread(t *testing.T) {
	dir, ns, before := install(t), nettest.NewNS(t, "unread"), leak.Must(t)
	running, release := slow(t, dir)
	s := serve(t, dir)
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := call{plugin: "bridge", verb: "ADD", id: "c", netns: ns, input: bridgeConf("slow")}.process(dir)
	cmd.Stdout = write
	if err := errors.Join(cmd.Start(), write.Close()); err != nil {
		t.Fatal(err)
	}
	until(t, "the ADD runs", exists(running))
	if err := errors.Join(read.Close(), os.WriteFile(release, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err == nil {
		t.Error("a lost result is no error")
	}
	s.stop(t) // after the calls
	leak.NoLeaks(t, before)
}

// TestServerHangs stops the server. The plugin's process does the work itself after a second, and the
// server does not repeat the work when it goes on.
func TestServerHangs(t *testing.T) {
	dir, ns, before := install(t), nettest.NewNS(t, "hangs"), leak.Must(t)
	s := serve(t, dir)
	if err := s.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	add := call{plugin: "bridge", verb: "ADD", id: "c", netns: ns, input: bridgeConf("host-local")}
	began := time.Now()
	if o := add.run(t, dir); o.code != 0 || time.Since(began) < time.Second || time.Since(began) > 10*time.Second {
		t.Errorf("after %v: %+v", time.Since(began), o)
	}
	add.verb = "DEL"
	if o := add.run(t, dir); o.code != 0 {
		t.Errorf("%+v", o)
	}
	if err := s.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if ran := s.stop(t); ran != 0 {
		t.Errorf("the server ran %d calls\n%s", ran, s.said())
	}
	leak.NoLeaks(t, before)
}

// TestMany has 100 callers at once.
func TestMany(t *testing.T) {
	dir, before := install(t), leak.Must(t)
	s := serve(t, dir)
	var all sync.WaitGroup
	for i := range 100 {
		ns := nettest.NewNS(t, fmt.Sprint("many", i))
		all.Go(func() {
			for _, verb := range []string{"ADD", "DEL"} {
				c := call{plugin: "bridge", verb: verb, id: fmt.Sprint("c", i), netns: ns, input: bridgeConf("host-local")}
				if o := c.run(t, dir); o.code != 0 {
					t.Errorf("%d: %s: %+v", i, verb, o)
				}
			}
		})
	}
	all.Wait()
	if ran := s.stop(t); ran < 100 { // the socket's queue may be full; a plugin's process then does not wait
		t.Errorf("the server ran %d calls\n%s", ran, s.said())
	}
	leak.NoLeaks(t, before)
}

// TestRefused has plugin processes that differ from the server. The server leaves their calls to them.
func TestRefused(t *testing.T) {
	dir, ns := install(t), nettest.NewNS(t, "refused")
	other := filepath.Join(t.TempDir(), "bin")
	copyProgram(t, filepath.Join(dir, "patchbay"), other)
	s := serve(t, dir)
	version := call{plugin: "bridge", verb: "VERSION", input: `{"cniVersion":"1.0.0"}`, id: "c", netns: ns, shell: noGo}
	if o := version.run(t, dir); o.code != 0 {
		t.Fatalf("the server does not serve: %+v", o)
	}
	for about, c := range map[string]struct{ dir, shell string }{
		"another mount namespace":    {dir, `exec unshare -m sh -c '%s' "$0"`},
		"another network namespace":  {dir, `exec unshare -n sh -c '%s' "$0"`},
		"another PID namespace":      {dir, `exec unshare -fp sh -c '%s' "$0"`},
		"another working directory":  {dir, `cd /; %s`},
		"another umask":              {dir, `umask 077; %s`},
		"fewer capabilities":         {dir, `exec setpriv --bounding-set -net_raw --inh-caps -net_raw sh -c '%s' "$0"`},
		"another file":               {other, `%s`},
		"the environment forbids it": {dir, `export PATCHBAY_RESIDENT=off; %s`},
	} {
		version.shell = fmt.Sprintf(c.shell, `exec "$0"`)
		alone := version.run(t, c.dir)
		version.shell = fmt.Sprintf(c.shell, noGo)
		if with := version.run(t, c.dir); alone.code != 0 || with.code == 0 {
			t.Errorf("%s: alone %+v, and the server's call %+v", about, alone, with)
		}
	}
	version.env, version.shell = []string{"PATCHBAY_RESIDENT=offer"}, noGo
	if o := version.run(t, dir); o.code != 0 {
		t.Errorf("%+v", o)
	}
	for _, reason := range []string{"ns/mnt", "ns/net", "ns/pid", "cwd", "Umask", "CapEff", "exe"} {
		if !strings.Contains(s.said(), "its "+reason+" differs") {
			t.Errorf("the log has no %s:\n%s", reason, s.said())
		}
	}
}

// TestReplaced replaces the program. The server leaves calls of the new program to their processes, and
// ends; the next server runs them.
func TestReplaced(t *testing.T) {
	dir := install(t)
	s := serve(t, dir)
	next := filepath.Join(dir, "patchbay.new")
	copyProgram(t, filepath.Join(dir, "patchbay"), next)
	if err := os.Rename(filepath.Join(next, "patchbay"), filepath.Join(dir, "patchbay")); err != nil {
		t.Fatal(err)
	}
	version := call{plugin: "patchbay", verb: "VERSION", input: `{"cniVersion":"1.0.0"}`}
	if o := version.run(t, dir); o.code != 0 {
		t.Errorf("%+v", o)
	}
	<-s.end
	if err := s.cmd.Wait(); err != nil || !strings.Contains(s.said(), "was replaced") {
		t.Errorf("%v: %s", err, s.said())
	}
	serve(t, dir)
	version.shell = noGo
	if o := version.run(t, dir); o.code != 0 {
		t.Errorf("%+v", o)
	}
}

// TestSocket checks who may connect, and that a dead server's socket is no obstacle.
func TestSocket(t *testing.T) {
	dir := install(t)
	s := serve(t, dir)
	var st unix.Stat_t
	if err := unix.Stat("/run/patchbay/plugins.sock", &st); err != nil || st.Mode != unix.S_IFSOCK|0o600 || st.Uid != 0 {
		t.Errorf("%v, %o, %d", err, st.Mode, st.Uid)
	}
	if err := s.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	<-s.end
	version := call{plugin: "bridge", verb: "VERSION", input: `{"cniVersion":"1.0.0"}`}
	if o := version.run(t, dir); o.code != 0 {
		t.Errorf("%+v", o)
	}
	serve(t, dir)
	version.shell = noGo
	if o := version.run(t, dir); o.code != 0 {
		t.Errorf("%+v", o)
	}
}

// copyProgram copies the program to a new directory, with the names of two plugins.
func copyProgram(t *testing.T, from, dir string) {
	t.Helper()
	text, err := os.ReadFile(from)
	if err == nil {
		err = errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(filepath.Join(dir, "patchbay"), text, 0o755), os.Symlink("patchbay", filepath.Join(dir, "bridge")))
	}
	if err != nil {
		t.Fatal(err)
	}
}
