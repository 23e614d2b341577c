// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/spec"
)

// during is a plugin whose call runs a function.
type during func()

func (d during) Invoke(context.Context, string, *spec.Call) ([]byte, error) { d(); return nil, nil }

// If a plugin takes two seconds, a remark appears. If it answers before, none appears.
func TestWaiting(t *testing.T) {
	for conf, want := range map[string]string{
		`"type": "macvlan", "ipam": {"type": "dhcp"}`:       "patchbay: waiting for dhcp (macvlan of pods)…\n",
		`"type": "macvlan", "ipam": {"type": "host-local"}`: "patchbay: waiting for macvlan of pods…\n",

		`"type": "patchbay", "plugins": [{"type": "macvlan", "ipam": {"type": "dhcp"}}, {"type": "sbr"}]`: "patchbay: waiting for dhcp (macvlan of pods)…\n",
		`"type": "patchbay", "plugins": [{"type": "macvlan"}]`:                                            "patchbay: waiting for patchbay of pods…\n",
	} {
		var said strings.Builder
		var pass func()
		stopped := false
		a := &app{stderr: &said, after: func(d time.Duration, f func()) func() bool {
			if d != slowCall {
				t.Errorf("a word after %v", d)
			}
			pass, stopped = f, false
			return func() bool { stopped = true; return true }
		}}
		call := &spec.Call{Verb: spec.Add, Config: []byte(`{"cniVersion": "1.1.0", "name": "pods", ` + conf + `}`)}
		var head struct{ Type string }
		if err := json.Unmarshal(call.Config, &head); err != nil {
			t.Fatal(err)
		}
		invoke := func(plugin func()) {
			if _, err := (watched{during(plugin), a}).Invoke(t.Context(), head.Type, call); err != nil {
				t.Fatal(err)
			}
		}
		invoke(func() {})
		if !stopped {
			t.Error("the clock was not stopped")
		}
		if pass(); said.String() != "" {
			t.Errorf("after the answer: %q", said.String())
		}
		invoke(func() { pass() })
		if said.String() != want {
			t.Errorf("%s: %q, want %q", conf, said.String(), want)
		}
	}
}

// Colours appear only on a terminal, and not if NO_COLOR is set.
func TestColours(t *testing.T) {
	screen, stderr := openTerminal(t)
	env := map[string]string{}
	a := &app{stderr: stderr, getenv: func(name string) string { return env[name] }}
	a.complain("it failed", "try again")
	screen.shows(t, "patchbay: \x1b[31merror:\x1b[0m it failed\r\npatchbay: \x1b[2mhint: try again\x1b[0m\r\n")
	env["NO_COLOR"] = "1"
	a.complain("it failed", "")
	screen.shows(t, "patchbay: error: it failed\r\n")
	delete(env, "NO_COLOR")
	a.stderr = new(strings.Builder)
	a.complain("it failed", "")
	if got := fmt.Sprint(a.stderr); got != "patchbay: error: it failed\n" {
		t.Errorf("into a pipe: %q", got)
	}
}

// screen is the master end of a pseudoterminal.
type screen struct{ *os.File }

func openTerminal(t *testing.T) (screen, *os.File) {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = master.Close() })
	if err := unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	fd, _, errno := unix.Syscall(unix.SYS_IOCTL, master.Fd(), unix.TIOCGPTPEER, unix.O_RDWR|unix.O_NOCTTY)
	if errno != 0 {
		t.Fatal(errno)
	}
	slave := os.NewFile(fd, "terminal")
	t.Cleanup(func() { _ = slave.Close() })
	return screen{master}, slave
}

func (s screen) shows(t *testing.T, want string) {
	t.Helper()
	got := make([]byte, len(want))
	if _, err := io.ReadFull(s, got); err != nil || string(got) != want {
		t.Errorf("%q, %v; want %q", got, err, want)
	}
}
