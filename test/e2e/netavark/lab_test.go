// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package netavark

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/internal/test/reftest"
	"github.com/patchbay-net/patchbay/test/e2e/gate"
)

func TestMain(m *testing.M) {
	gate.Enter()
	os.Exit(m.Run())
}

// lab is a shell in a system with podman, our driver and an image.
type lab struct {
	*testing.T
	in     io.Writer
	out    *bufio.Scanner
	number int
}

// commandTime limits one command.
const commandTime = 2 * time.Minute

const image = "localhost/busybox:1"

// newLab starts the system, which ends with the test.
func newLab(t *testing.T) *lab {
	t.Helper()
	program, err := reftest.Program("patchbay")
	if err != nil {
		t.Fatal(err)
	}
	archive := filepath.Join(t.TempDir(), "busybox.tar")
	if out, err := exec.Command(reftest.Lab(t, "image"), archive, image, `["sleep","1000"]`).CombinedOutput(); err != nil {
		t.Fatalf("make an image: %v: %s", err, out)
	}
	cmd := exec.Command(reftest.Lab(t, "podman/podman"), "run", "/tmp/busybox.tar="+archive, "/tmp/patchbay="+program, "--", "sh", "-c", "exec sh 2>&1")
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = stdin.Close() // the shell ends, and with it the namespaces
		_ = cmd.Wait()
	})
	l := &lab{T: t, in: stdin, out: bufio.NewScanner(stdout)}
	l.sh("mkdir -p /opt/cni/bin /etc/cni/net.d; /tmp/patchbay install --podman /opt/cni/bin; ln -s /opt/cni/bin/patchbay /usr/local/bin/")
	l.sh("podman load -q -i /tmp/busybox.tar")
	return l
}

// try runs a command and returns its output and status.
func (l *lab) try(command string) (text string, status string) {
	l.Helper()
	l.number++
	mark := fmt.Sprintf("-- done %d ", l.number)
	if _, err := fmt.Fprintf(l.in, "{ %s\n} </dev/null; printf '\\n%s%%s\\n' $?\n", command, mark); err != nil {
		l.Fatal(err)
	}
	var late atomic.Bool
	timer := time.AfterFunc(commandTime, func() {
		late.Store(true)
		_ = l.in.(io.Closer).Close()
	})
	defer timer.Stop()
	var lines []string
	for l.out.Scan() {
		if status, done := strings.CutPrefix(l.out.Text(), mark); done {
			return strings.TrimSpace(strings.Join(lines, "\n")), status
		}
		lines = append(lines, l.out.Text())
	}
	l.Fatalf("%s: the lab ended, after the time of a command: %v: %s", command, late.Load(), strings.Join(lines, "\n"))
	return "", ""
}

// sh runs a command, which must succeed, and returns its output.
func (l *lab) sh(command string) string {
	l.Helper()
	text, status := l.try(command)
	if status != "0" {
		l.Fatalf("%s: status %s: %s", command, status, text)
	}
	return text
}

// refused runs a command, which must fail with a text.
func (l *lab) refused(command, want string) {
	l.Helper()
	if text, status := l.try(command); status == "0" || !strings.Contains(text, want) {
		l.Errorf("%s: status %s: %s\nwant an error with %q", command, status, text, want)
	}
}

// has runs a command whose output must contain a text.
func (l *lab) has(command, want string) {
	l.Helper()
	if text := l.sh(command); !strings.Contains(text, want) {
		l.Errorf("%s: %s\nwant %q", command, text, want)
	}
}

// eventually works like has, and repeats the command for some seconds.
func (l *lab) eventually(command, want string) {
	l.Helper()
	text := ""
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		if text, _ = l.try(command); strings.Contains(text, want) {
			return
		}
	}
	l.Errorf("%s: %s\nwant %q", command, text, want)
}

// lacks runs a command whose output must not contain a text.
func (l *lab) lacks(command, text string) {
	l.Helper()
	if got := l.sh(command); strings.Contains(got, text) {
		l.Errorf("%s: %s", command, got)
	}
}

// nothing checks that no container has anything left, for podman and for our commands.
func (l *lab) nothing() {
	l.Helper()
	l.sh("podman rm -f -t 0 -a")
	l.lacks("patchbay ps", "pods")
	l.has("patchbay gc --grace 0s", "nothing is left over")
	l.has("ls /var/lib/cni/results 2>/dev/null; ls /var/lib/cni/networks/pods | grep -c '^10[.]'; true", "0")
	l.lacks("nft list table inet patchbay", "8080")
	l.lacks("ip -br link", "veth")
	l.has("patchbay doctor", "healthy")
}
