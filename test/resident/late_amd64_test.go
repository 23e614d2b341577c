// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package resident

import (
	"bytes"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/handover"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
)

// TestLateTake has a server that takes the call between the end of the process's wait and the shutdown. The
// process must not run the call until the server has ended it.
func TestLateTake(t *testing.T) {
	dir, ns := install(t), nettest.NewNS(t, "late")
	log := filepath.Join(t.TempDir(), "log")
	script(t, filepath.Join(dir, "foreign"), "cat > /dev/null; echo $CNI_COMMAND >> "+log)
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: handover.Path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()        //nolint:errcheck // the test ends
	runtime.LockOSThread() // ptrace(2) belongs to a thread
	defer runtime.UnlockOSThread()
	cmd := call{plugin: "bridge", verb: "DEL", id: "c", netns: ns, input: bridgeConf("foreign")}.process(dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Ptrace: true, Pdeathsig: syscall.SIGKILL}
	var out bytes.Buffer
	cmd.Stdout = &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	taken := make(chan *net.UnixConn, 1)
	go func() {
		conn, _ := l.AcceptUnix()
		taken <- conn
	}()
	stopAt(t, cmd, unix.SYS_SHUTDOWN)
	conn := <-taken
	if _, err := conn.Write([]byte("T")); err != nil {
		t.Fatal(err)
	}
	if err := syscall.PtraceDetach(cmd.Process.Pid); err != nil {
		t.Fatal(err)
	}
	time.Sleep(300 * time.Millisecond) // a process that does not wait would have run the call
	if exists(log)() {
		t.Error("the process runs the call while the server has it")
	}
	if err := errors.Join(conn.Close(), cmd.Wait()); err != nil {
		t.Errorf("%v: %s", err, out.String())
	}
	if text, err := os.ReadFile(log); string(text) != "DEL\n" {
		t.Errorf("%q, %v", text, err)
	}
}

// TestServerDiesAfterItsAnswer has a server that dies before it knows that the process has written the
// output. It cannot undo the ADD, so its answer counts.
func TestServerDiesAfterItsAnswer(t *testing.T) {
	dir, ns := install(t), nettest.NewNS(t, "late")
	if err := os.MkdirAll(filepath.Dir(handover.Path), 0o700); err != nil {
		t.Fatal(err)
	}
	os.Remove(handover.Path)
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: handover.Path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() //nolint:errcheck // the test ends
	const output = `{"cniVersion":"1.0.0"}`
	served := make(chan error, 1)
	go func() {
		conn, err := l.AcceptUnix()
		if err != nil {
			served <- err
			return
		}
		_, read := conn.Read(make([]byte, 1<<17))
		_, took := conn.Write([]byte("T"))
		_, answered := conn.Write(append(make([]byte, 8), output...))
		served <- errors.Join(read, took, answered, conn.Close())
	}()
	o := call{plugin: "bridge", verb: "ADD", id: "c", netns: ns, input: bridgeConf("host-local")}.run(t, dir)
	if err := <-served; err != nil {
		t.Fatal(err)
	}
	if o.code != 0 || o.stdout != output {
		t.Errorf("%+v", o)
	}
}

// stopAt lets a process run until it makes a system call.
func stopAt(t *testing.T, cmd *exec.Cmd, nr uint64) {
	t.Helper()
	pid := cmd.Process.Pid
	var status syscall.WaitStatus
	if _, err := syscall.Wait4(pid, &status, 0, nil); err != nil {
		t.Fatal(err)
	}
	for {
		if err := syscall.PtraceSyscall(pid, 0); err != nil {
			t.Fatal(err)
		}
		if _, err := syscall.Wait4(pid, &status, 0, nil); err != nil || !status.Stopped() {
			t.Fatalf("%v, %v", err, status)
		}
		var regs syscall.PtraceRegs
		if err := syscall.PtraceGetRegs(pid, &regs); err != nil {
			t.Fatal(err)
		}
		if regs.Orig_rax == nr {
			return
		}
	}
}
