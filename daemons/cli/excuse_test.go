// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"bytes"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/daemons/cnm"
)

const failureArgs = "PATCHBAY_TEST_EXCUSE"

// TestFailureChild is the patchbayd that systemd starts. As a test it does nothing.
func TestFailureChild(t *testing.T) {
	if args := os.Getenv(failureArgs); args != "" {
		os.Exit(Main(strings.Fields(args), os.Stderr))
	}
}

// A driver that cannot start reports this to Docker on systemd's socket. It still answers the
// calls that Docker makes only once.
func TestServeFailure(t *testing.T) {
	for name, tc := range map[string]struct{ args, says string }{
		"flag":  {"docker --tea", `unknown flag "tea"`},
		"group": {"docker --group 0", "SocketGroup="},
		"state": {"docker --plugins /nonexistent --docker=", "state"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := dockerEnv(t)
			notOurs(t, filepath.Join(dir, "state"))
			client := socketActivated(t, dir, tc.args)
			m, err := client.Activate(t.Context())
			if err != nil || len(m.Implements) != 2 {
				t.Errorf("%v %v", m, err)
			}
			if got, err := client.Capabilities(t.Context()); err != nil || got.Scope != cnm.ScopeLocal {
				t.Errorf("%v %v", got, err)
			}
			_, err = client.RequestPool(t.Context(), &cnm.RequestPoolRequest{})
			if err == nil || !strings.Contains(err.Error(), "cannot start") || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("a pool: %v", err)
			}
			if err := client.Leave(t.Context(), &cnm.EndpointRequest{NetworkID: "n", EndpointID: "e"}); err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("leave: %v", err)
			}
		})
	}
}

// notOurs makes a directory that others may write to.
func notOurs(t *testing.T, path string) {
	t.Helper()
	if err := os.Mkdir(path, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o777); err != nil {
		t.Fatal(err)
	}
}

// socketActivated starts patchbayd as systemd does for the first call.
func socketActivated(t *testing.T, dir, args string) *cnm.Client {
	t.Helper()
	path := filepath.Join(dir, "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	f, err := l.File()
	if err != nil {
		t.Fatal(err)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	cmd := exec.Command("sh", "-c", `LISTEN_PID=$$ LISTEN_FDS=1 exec "$0" -test.run='^TestFailureChild$'`, self)
	cmd.Env = append(os.Environ(), failureArgs+"="+args)
	cmd.ExtraFiles, cmd.Stderr = []*os.File{f}, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Log(&log)
		}
		_ = f.Close()
		_ = l.Close()
	})
	client, err := cnm.NewClient(cnm.DriverAddr{URL: "unix://" + path}, cnm.ClientOptions{Timeout: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	return client
}
