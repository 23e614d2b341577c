// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"bytes"
	"errors"
	"net"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/terminal"
)

func TestLongFlags(t *testing.T) {
	got := longFlags([]string{"dhcp", "-pidfile", "/run/x", "-socketpath=/y", "--timeout", "1s", "-broadcast=true", "-broadcast=false", "-h", "-", "-1"})
	want := []string{"dhcp", "--pidfile", "/run/x", "--socketpath=/y", "--timeout", "1s", "--broadcast", "-h", "-", "-1"}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("%q", got)
	}
}

func TestRefused(t *testing.T) {
	for _, tc := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"tea"}, 2, "patchbayd: hint: patchbayd --help"},
		{[]string{"dhcp", "extra"}, 2, "error: unexpected argument \"extra\"\npatchbayd: hint: patchbayd dhcp --help"},
		{[]string{"docker", "ls"}, 2, "error: unknown command \"ls\"; use ps, gc, install, uninstall"},
		{[]string{"hosts", "list"}, 2, "error: unknown command \"list\"; use create, rm, ls, forget, leave\npatchbayd: hint: patchbayd hosts --help"},
		{[]string{"hosts", "ls", "x"}, 2, "patchbayd hosts ls --help"},
		{[]string{"hosts", "create", "--subnet", "10.1.0.0/16", "x", "y"}, 2, "unexpected argument \"y\""},
		{[]string{"help", "tea"}, 2, "unknown command \"tea\"; use dhcp, docker, hosts, node, plugins, trace, completion, man, help, version"},
		{[]string{"completion", "tea"}, 2, "the shells are bash, zsh and fish"},
		{[]string{"man", "tea"}, 2, "unexpected argument"},
		{[]string{"version", "tea"}, 2, "unexpected argument"},
		{[]string{"dhcp", "-tea"}, 2, `unknown flag "tea"`},
		{[]string{"dhcp", "-timeout", "soon"}, 2, `invalid argument for flag "--timeout"`},
		{[]string{"dhcp", "-timeout", "0s"}, 1, "must be more than 0"},
		{[]string{"dhcp", "-pidfile", "here"}, 1, `Error writing pidfile "here": path not absolute`},
	} {
		var log bytes.Buffer
		if code := Main(tc.args, &log); code != tc.code || !strings.Contains(log.String(), tc.says) {
			t.Errorf("%q: %d, %s", tc.args, code, &log)
		}
	}
}

// The man page has each command once, with the usage line of its help.
func TestManPage(t *testing.T) {
	p, err := new(app).parser()
	if err != nil {
		t.Fatal(err)
	}
	page := terminal.ManPage(p, false)
	for _, line := range []string{".TH patchbayd 1 \"\" \"\" \"Patchbay\"", ".SS dhcp", `\fBUsage\fP: patchbayd dhcp [FLAGS]`, ".SS hosts create", "keep DHCP leases for the plugin dhcp"} {
		if n := strings.Count("\n"+page, "\n"+line+"\n"); n != 1 {
			t.Errorf("the page has %q %d times", line, n)
		}
	}
}

// listen replaces a socket on which no process listens, and no other.
func TestListen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "dir", "s")
	l, err := listen(path)
	if err != nil {
		t.Fatal(err)
	}
	if fi, err := os.Stat(path); err != nil || fi.Mode().Perm() != 0o660 {
		t.Errorf("%v, %v", fi.Mode(), err)
	}
	if _, err := listen(path); !errors.Is(err, unix.EADDRINUSE) {
		t.Errorf("a second keeper: %v", err)
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	l.Close() //nolint:errcheck // as a kill would
	again, err := listen(path)
	if err != nil {
		t.Fatal(err)
	}
	again.Close() //nolint:errcheck // the test ends
}

// The socket has its mode when it comes to be, whatever the umask is: nobody connects before its mode is changed.
func TestListenIsNeverOpen(t *testing.T) {
	defer unix.Umask(unix.Umask(0))
	dir := t.TempDir()
	watch, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(watch) //nolint:errcheck // read only
	if _, err := unix.InotifyAddWatch(watch, dir, unix.IN_ATTRIB); err != nil {
		t.Fatal(err)
	}
	l, err := listen(filepath.Join(dir, "keeper.sock"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() //nolint:errcheck // the test ends
	if fi, err := os.Stat(filepath.Join(dir, "keeper.sock")); err != nil || fi.Mode().Perm() != 0o660 {
		t.Errorf("%v, %v", fi.Mode(), err)
	}
	events := make([]byte, 4096) // those of other files, such as the lock, may be there
	if n, err := unix.Read(watch, events); !errors.Is(err, unix.EAGAIN) && bytes.Contains(events[:max(n, 0)], []byte("keeper.sock\x00")) {
		t.Error("the mode of the socket was changed after it was there")
	}
}

func TestPassed(t *testing.T) {
	for _, tc := range []struct {
		pid, fds string
		want     int
		bad      bool
	}{
		{"", "", 0, false}, {"1", "1", 0, false}, {strconv.Itoa(os.Getpid()), "1", 1, false}, {strconv.Itoa(os.Getpid()), "2", 2, false},
		{strconv.Itoa(os.Getpid()), "x", 0, true},
	} {
		t.Setenv("LISTEN_PID", tc.pid)
		t.Setenv("LISTEN_FDS", tc.fds)
		n, err := passed()
		if n != tc.want || (err != nil) != tc.bad {
			t.Errorf("%+v: %d, %v", tc, n, err)
		}
	}
	t.Setenv("LISTEN_PID", strconv.Itoa(os.Getpid()))
	t.Setenv("LISTEN_FDS", "2")
	if _, err := listener("/nonexistent"); err == nil || err.Error() != "Too many (2) FDs passed through socket activation" {
		t.Error(err)
	}
}
