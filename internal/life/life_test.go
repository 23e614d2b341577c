// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package life_test

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/clock"
	"github.com/patchbay-net/patchbay/internal/life"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/netns"
)

func TestMain(m *testing.M) { nettest.Main(m) }

func TestAt(t *testing.T) {
	dir := "/run/netns"
	path, other := filepath.Join(dir, "life"), filepath.Join(dir, "other")
	for _, p := range []string{path, other} {
		if err := netns.Create(p); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { netns.Delete(p) }) //nolint:errcheck // may be gone
	}
	id, err := clock.BootID("/proc")
	if err != nil {
		t.Fatal(err)
	}
	was, host := life.MarkOf(path, id, noCookie), life.MarkOf("/proc/self/ns/net", id, noCookie)
	if was == nil || host == nil {
		t.Fatal("no marks")
	}
	plain := filepath.Join(t.TempDir(), "plain")
	if err := os.WriteFile(plain, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	within := inside(t, id)
	earlier, renamed, rebound, hidden, others, process := *was, *was, *was, *was, *was, *was
	hidden.Place, others.Place = &life.Place{Dev: was.Dev, Ino: was.Ino}, &life.Place{Dev: was.Dev, Ino: was.Ino}
	process.Place = host.Place
	earlier.Boot, renamed.Boot, rebound.Since = "another", "another", rebound.Since-1
	earlier.Since--
	cookied, cookiedOther := rebound, rebound
	cookied.Cookie = cookieOf(t, path)
	cookiedOther.Cookie = cookieOf(t, other)
	for _, c := range []struct {
		name string
		path string
		was  *life.Mark
		want life.State
	}{
		{"itself", path, was, life.Alive},
		{"without a mark", path, nil, life.Alive},
		{"another one under its path", other, was, life.Dead},
		{"of an earlier boot", path, &earlier, life.Dead},
		{"of another boot by its id alone", path, &renamed, life.Alive},
		{"bound again, or another with its number", path, &rebound, life.Unsure},
		{"bound again, with its cookie", path, &cookied, life.Alive},
		{"another with its number", path, &cookiedOther, life.Dead},
		{"missing", filepath.Join(dir, "missing"), was, life.Dead},
		{"missing with its directory", filepath.Join(dir, "nowhere", "ns"), was, life.Unsure},
		{"missing in another directory of that name", filepath.Join(dir, "missing"), &hidden, life.Unsure},
		{"another one in another directory of that name", other, &hidden, life.Unsure},
		{"itself, in another directory", path, &hidden, life.Alive},
		{"missing among other processes", "/proc/4194399/ns/net", &others, life.Unsure},
		{"missing, of a process that is gone", "/proc/4194399/ns/net", &process, life.Dead},
		{"missing, but a process is in it", filepath.Join(dir, "missing"), within, life.Alive},
		{"missing, without a mark", filepath.Join(dir, "missing"), nil, life.Dead},
		{"a mount that is hidden", plain, was, life.Unsure},
		{"the process's own under a container's path", "/proc/self/ns/net", &process, life.Dead},
		{"the process's own without a mark", "/proc/self/ns/net", nil, life.Dead},
		{"the process's own, meant", "/proc/self/ns/net", host, life.Alive},
		{"nothing", "", nil, life.Unsure},
	} {
		if got, why := (&life.Judge{Proc: "/proc"}).AtPath(c.path, c.was); got != c.want {
			t.Errorf("%s: %v (%s), want %v", c.name, got, why, c.want)
		}
	}
}

// A namespace without a path lives while a process has its file open.
func TestHeld(t *testing.T) {
	const path = "/run/netns/held"
	if err := netns.Create(path); err != nil {
		t.Fatal(err)
	}
	was := life.MarkOf(path, "", noCookie)
	f, err := os.Open(path)
	if err == nil {
		err = netns.Delete(path)
	}
	if err != nil {
		t.Fatal(err)
	}
	if state, why := life.Doubt(was, "gone"); state != life.Alive {
		t.Errorf("with an open file: %v (%s)", state, why)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if state, why := life.Doubt(was, "gone"); state != life.Dead || why != "gone (no visible process holds it)" {
		t.Errorf("without: %v (%s)", state, why)
	}
}

// A namespace that is bound at another path, in any mount namespace, lives.
func TestBoundElsewhere(t *testing.T) {
	for name, bind := range map[string]func(testing.TB, string, string) func(){"here": bindHere, "where a process sees it": bindThere} {
		t.Run(name, func(t *testing.T) {
			const path = "/run/netns/bound"
			elsewhere := filepath.Join(t.TempDir(), "else where")
			err := errors.Join(netns.Create(path), os.WriteFile(elsewhere, nil, 0o600))
			if err != nil {
				t.Fatal(err)
			}
			was := life.MarkOf(path, "", noCookie)
			release := bind(t, path, elsewhere)
			if err := netns.Delete(path); err != nil {
				t.Fatal(err)
			}
			if state, why := life.Doubt(was, "gone"); state != life.Alive || !strings.HasSuffix(why, elsewhere) {
				t.Errorf("bound: %v (%s)", state, why)
			}
			release()
			if state, why := life.Doubt(was, "gone"); state != life.Dead {
				t.Errorf("bound no more: %v (%s)", state, why)
			}
		})
	}
}

func bindHere(t testing.TB, path, at string) (release func()) {
	t.Helper()
	if err := unix.Mount(path, at, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	return func() {
		if err := unix.Unmount(at, 0); err != nil {
			t.Fatal(err)
		}
	}
}

// bindThere binds in the mount namespace of a separate process.
func bindThere(t testing.TB, path, at string) (release func()) {
	t.Helper()
	cmd := exec.Command("sh", "-c", `mount --bind "$0" "$1" && echo bound && exec cat`, path, at)
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	in, err := cmd.StdinPipe()
	out, oerr := cmd.StdoutPipe()
	if err := errors.Join(err, oerr, cmd.Start()); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); line != "bound\n" {
		t.Fatalf("%q: %v", line, err)
	}
	return func() {
		if err := errors.Join(in.Close(), cmd.Wait()); err != nil {
			t.Fatal(err)
		}
	}
}

// The kernel uses an inode's number again for the next namespace. A process in the new namespace
// does not hold the old one.
func TestNumberGivenAgain(t *testing.T) {
	id, err := clock.BootID("/proc")
	if err != nil {
		t.Fatal(err)
	}
	pid := start(t)
	path := fmt.Sprintf("/proc/%d/ns/net", pid)
	is := life.MarkOf(path, id, noCookie)
	is.Since-- // as if nothing had held the inode meanwhile
	for name, c := range map[string]struct {
		cookie uint64
		want   life.State
	}{
		"its own": {cookieOf(t, path), life.Alive},
		"another": {cookieOf(t, "/proc/self/ns/net"), life.Dead},
	} {
		is.Cookie = c.cookie
		if state, why := life.Doubt(is, "gone"); state != c.want {
			t.Errorf("%s: %v (%s), want %v", name, state, why, c.want)
		}
		if state, why := (&life.Judge{Proc: "/proc"}).AtPath("/run/missing", is); state == life.Alive && c.want == life.Dead {
			t.Errorf("%s: %v (%s)", name, state, why)
		}
	}
}

func cookieOf(t *testing.T, path string) uint64 {
	t.Helper()
	ns, err := netns.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close() //nolint:errcheck // read only
	cookie, err := ns.Cookie()
	if err != nil {
		t.Fatal(err)
	}
	return cookie
}

// Without a mark, a missing path proves death only if this process sees the real directory.
func TestTold(t *testing.T) {
	other := t.TempDir()
	if err := unix.Mount("tmpfs", other, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(other, unix.MNT_DETACH) }) //nolint:errcheck // the test's namespace goes
	if err := os.MkdirAll("/run/netns", 0o755); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]life.State{"/run/netns/missing": life.Dead, filepath.Join(other, "missing"): life.Unsure} {
		if got, why := (&life.Judge{Proc: "/proc", Run: "/run"}).At(path, nil); got != want {
			t.Errorf("%s: %v (%s), want %v", path, got, why, want)
		}
	}
}

// noCookie is for marks as older records have them.
func noCookie(string) uint64 { return 0 }

// inside runs a process in a new namespace and returns the namespace's mark.
func inside(t *testing.T, bootID string) *life.Mark {
	t.Helper()
	f, err := os.Open(fmt.Sprintf("/proc/%d/ns/net", start(t))) // holds the inode, as a mount does
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() }) //nolint:errcheck // read only
	return life.MarkOf(f.Name(), bootID, noCookie)
}

// start runs a process in a new namespace.
func start(t *testing.T) (pid int) {
	t.Helper()
	cmd := exec.Command("sleep", "1000")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill() //nolint:errcheck // it runs
		cmd.Wait()         //nolint:errcheck // it was killed
	})
	return cmd.Process.Pid
}

// BenchmarkHeldBy measures the look at all processes, which a call that finds a dead pod waits for.
func BenchmarkHeldBy(b *testing.B) {
	for b.Loop() {
		life.Doubt(&life.Mark{}, "")
	}
}
