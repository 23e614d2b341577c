// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/paths"
)

// TestHostSockets checks which sockets of the host conflict with which ports.
func TestHostSockets(t *testing.T) {
	runtime.LockOSThread() // the thread's namespace decides which sockets there are
	defer runtime.UnlockOSThread()
	self := strconv.Itoa(os.Getpid())
	proc := t.TempDir()
	if err := errors.Join(os.Symlink("/proc/thread-self/net", filepath.Join(proc, "net")), os.Symlink("/proc/self", filepath.Join(proc, self))); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		at, port string
		taken    bool
	}{
		{"127.0.0.1", "PORT:80", true},
		{"127.0.0.1", "127.0.0.1:PORT:80", true},
		{"127.0.0.1", "0.0.0.0:PORT:80", true},
		{"127.0.0.1", "127.0.0.2:PORT:80", false},
		{"127.0.0.1", "[::1]:PORT:80", false},
		{"127.0.0.1", "[::]:PORT:80", false},
		{"127.0.0.1", "PORT:80/udp", false},
		{"127.0.0.1", "1:80", false},
		{"0.0.0.0", "127.0.0.1:PORT:80", true},
		{"::", "127.0.0.1:PORT:80", true},
		{"::", "[::1]:PORT:80", true},
	} {
		l, err := net.Listen("tcp", net.JoinHostPort(test.at, "0"))
		if err != nil {
			t.Fatal(err)
		}
		port := strconv.Itoa(l.Addr().(*net.TCPAddr).Port)
		w := &capabilityFlags{Ports: []string{strings.ReplaceAll(test.port, "PORT", port)}}
		err = w.free(&app{paths: paths.Paths{Proc: proc}})
		if (err != nil) != test.taken {
			t.Errorf("served on %s, published %s: %v", test.at, test.port, err)
		}
		if err != nil && !strings.Contains(err.Error(), port+"/tcp is served on this host already, by ") {
			t.Error(err)
		}
		if err != nil && !strings.Contains(err.Error(), "process "+self) {
			t.Errorf("%v: the process is this one", err)
		}
		l.Close() //nolint:errcheck // a test
	}
}

// TestHostSocketsUDP checks that a socket without a peer counts as a server. A client's socket
// and a connected TCP socket do not.
func TestHostSocketsUDP(t *testing.T) {
	proc := t.TempDir()
	if err := os.Mkdir(filepath.Join(proc, "net"), 0o700); err != nil {
		t.Fatal(err)
	}
	head := "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
	line := func(local, state string) string {
		return "   0: " + local + " 00000000:0000 " + state + " 00000000:00000000 00:00000000 00000000     0        0 4711 1 0 100\n"
	}
	for file, text := range map[string]string{
		"udp": head + line("00000000:0035", "07") + line("00000000:0036", "01") + "broken\n" + line("xyz:1", "07"),
		"tcp": head + line("00000000:0050", "01"),
	} {
		if err := os.WriteFile(filepath.Join(proc, "net", file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	a := &app{paths: paths.Paths{Proc: proc}}
	for port, taken := range map[string]bool{"53:53/udp": true, "54:53/udp": false, "80:80": false, "53:53": false} {
		if err := (&capabilityFlags{Ports: []string{port}}).free(a); (err != nil) != taken {
			t.Errorf("%s: %v", port, err)
		}
	}
}
