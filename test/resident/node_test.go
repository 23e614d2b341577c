// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package resident

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/internal/handover"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/internal/test/reftest"
)

func TestMain(m *testing.M) { nettest.Main(m) }

// patience is how long a test waits for what should happen at once.
const patience = 30 * time.Second

// server is a running process that stays.
type server struct {
	cmd *exec.Cmd

	mu  sync.Mutex
	log strings.Builder
	end chan struct{} // closed at the end of the log
}

// serve starts the program of dir, and waits until it listens.
func serve(t *testing.T, dir string) *server {
	t.Helper()
	if runtime.GOARCH != "amd64" {
		t.Fatal("the entry routine is written for amd64 only")
	}
	s := &server{cmd: exec.Command(filepath.Join(dir, "patchbay"), handover.Argument), end: make(chan struct{})}
	s.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	log, err := s.cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	started := make(chan error)
	go func() { // Pdeathsig kills the server when the thread ends that has started it
		runtime.LockOSThread()
		started <- s.cmd.Start()
		<-s.end
		runtime.UnlockOSThread()
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	go s.read(log)
	t.Cleanup(func() { s.stop(t) })
	until(t, "the server listens", func() bool { return strings.Contains(s.said(), "listening on "+handover.Path) || s.ended() })
	if s.ended() {
		t.Fatalf("the server ended: %s", s.said())
	}
	return s
}

func (s *server) read(log io.Reader) {
	defer close(s.end)
	for lines := bufio.NewScanner(log); lines.Scan(); {
		s.mu.Lock()
		fmt.Fprintln(&s.log, lines.Text())
		s.mu.Unlock()
	}
}

func (s *server) ended() bool {
	select {
	case <-s.end:
		return true
	default:
		return false
	}
}

func (s *server) said() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.log.String()
}

// stop ends the server with SIGTERM, and returns how many calls it ran.
func (s *server) stop(t *testing.T) (calls int) {
	t.Helper()
	_ = s.cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	<-s.end                                   // first: Wait closes the pipe, also if it is not read to its end
	_ = s.cmd.Wait()
	_, last, _ := strings.Cut(s.said(), "ran ")
	_, _ = fmt.Sscanf(last, "%d calls", &calls)
	return calls
}

// until waits until ok returns true.
func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited %v until %s", patience, what)
		}
	}
}

// call is a call of a plugin's process.
type call struct {
	plugin, verb, id, netns, input string
	env                            []string // more variables
	shell                          string   // a shell command that executes the plugin as "$0"
}

// outcome is what a runtime sees of a call.
type outcome struct {
	stdout, stderr string
	code           int
}

// process returns the process of a call.
func (c call) process(dir string) *exec.Cmd {
	path := filepath.Join(dir, c.plugin)
	cmd := exec.Command(path)
	if c.shell != "" {
		cmd = exec.Command("sh", "-c", c.shell, path)
	}
	cmd.Env = append([]string{
		"PATH=" + os.Getenv("PATH"), "CNI_COMMAND=" + c.verb, "CNI_CONTAINERID=" + c.id, "CNI_NETNS=" + c.netns, "CNI_IFNAME=eth0", "CNI_PATH=" + dir,
	}, c.env...)
	cmd.Stdin = strings.NewReader(c.input)
	return cmd
}

func (c call) run(t *testing.T, dir string) outcome {
	t.Helper()
	cmd := c.process(dir)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Run(); err != nil && cmd.ProcessState == nil {
		t.Fatal(err)
	}
	return outcome{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// noGo is a shell command that gives the plugin too little memory for Go's runtime. Only a call that is
// handed over can succeed.
const noGo = `ulimit -v 150000; exec "$0"`

// bridgeConf returns a configuration of bridge whose IPAM plugin has that type.
func bridgeConf(ipam string) string {
	return fmt.Sprintf(`{"cniVersion":"1.0.0","name":"res","type":"bridge","bridge":"res0","isGateway":true,"ipMasq":true,
		"ipam":{"type":%q,"ranges":[[{"subnet":"10.99.0.0/16"}]],"routes":[{"dst":"0.0.0.0/0"}]}}`, ipam)
}

// install returns a directory with our program, and the program itself.
func install(t *testing.T) string {
	t.Helper()
	return reftest.Ours(t)
}

// script writes an executable shell script.
func script(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o755); err != nil {
		t.Fatal(err)
	}
}
