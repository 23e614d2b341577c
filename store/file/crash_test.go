// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package file

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/store"
	"github.com/patchbay-net/patchbay/store/typed"
)

const asWriter = "PATCHBAY_TEST_WRITER"

func TestMain(m *testing.M) {
	if dir := os.Getenv(asWriter); dir != "" {
		writeForever(dir)
	}
	os.Exit(m.Run())
}

// writeForever changes networks and prints each change until it is killed.
func writeForever(dir string) {
	s, err := Open(dir, Options{Keep: 1 << 20})
	for i := 0; err == nil; i++ {
		ctx, name := context.Background(), fmt.Sprint("n", rand.IntN(5))
		item, getErr := s.Networks().Get(ctx, name)
		item.Object.Name = name
		item.Object.MTU = i
		at := item.Revision
		switch {
		case errors.Is(getErr, store.ErrNotFound):
			at, err = s.Networks().Create(ctx, item.Object, nil)
		case getErr != nil:
			err = getErr
		case i%3 == 0:
			err = s.Networks().Delete(ctx, name, at)
		default:
			at, err = s.Networks().Update(ctx, item.Object, at)
		}
		fmt.Println(at)
	}
	fmt.Println(err)
	os.Exit(1)
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A writer is killed at any point: confirmed changes exist, and the objects match the log.
func TestKilledWriters(t *testing.T) {
	dir := t.TempDir()
	for range 25 {
		promised := runWriter(t, dir, time.Duration(rand.IntN(30_000))*time.Microsecond)
		s := open(t, dir, Options{Keep: 1 << 20})
		items, revision, err := s.Networks().List(t.Context(), "")
		must(t, err)
		head, _, err := typed.OfHistory(revision)
		must(t, err)
		if head < promised {
			t.Fatalf("revision %d was promised, there is %d", promised, head)
		}
		want := map[string]store.Item[store.Network]{}
		if head > 0 {
			replay(t, s, typed.Revision(head), want)
		}
		got := map[string]store.Item[store.Network]{}
		for _, i := range items {
			got[i.Object.Name] = i
		}
		if !reflect.DeepEqual(got, want) {
			t.Fatalf("the objects are %v\nby the log %v", got, want)
		}
		must(t, s.Close())
	}
}

func replay(t *testing.T, s *Store, until store.Revision, state map[string]store.Item[store.Network]) {
	t.Helper()
	for e, err := range s.Networks().Watch(t.Context(), "") {
		must(t, err)
		if state[e.Object.Name] = e.Item; e.Gone {
			delete(state, e.Object.Name)
		}
		if e.Revision == until {
			return
		}
	}
}

// runWriter returns the newest revision that a writer had printed when it was killed.
func runWriter(t *testing.T, dir string, life time.Duration) (promised int64) {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), asWriter+"="+dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	must(t, err)
	must(t, cmd.Start())
	lines := bufio.NewScanner(out)
	for n := 0; lines.Scan(); n++ {
		if n == 0 {
			time.AfterFunc(life, func() { _ = cmd.Process.Kill() })
		}
		at, err := typed.Number(store.Revision(lines.Text()))
		if err != nil {
			t.Errorf("a writer failed: %s", lines.Text())
		}
		promised = max(promised, at)
	}
	_ = cmd.Wait()
	return promised
}

func create(t *testing.T, s *Store, name string) store.Revision {
	t.Helper()
	at, err := s.Networks().Create(t.Context(), store.Network{Name: name}, nil)
	must(t, err)
	return at
}

// After a power loss the newest files may be torn: the object's or the log's.
func TestTornFiles(t *testing.T) {
	for what, torn := range map[string][]string{
		"object":  {"networks/b.json"},
		"log":     {"log/2"},
		"neither": nil,
		"lock":    {"lock"},
	} {
		for _, size := range []int64{0, 7} {
			dir := t.TempDir()
			s := open(t, dir, Options{})
			create(t, s, "a")
			create(t, s, "b")
			must(t, s.Close())
			for _, name := range torn {
				must(t, os.Truncate(filepath.Join(dir, version, name), size))
			}
			s = open(t, dir, Options{})
			items, revision, err := s.Networks().List(t.Context(), "")
			if err != nil || len(items) != 2 || !isAt(revision, 2) {
				t.Errorf("%s torn: %v at %q, %v", what, items, revision, err)
			}
			if at := create(t, s, "c"); at != "3" {
				t.Errorf("%s torn: the next change is %s", what, at)
			}
		}
	}
}

func isAt(r store.Revision, want int64) bool {
	number, history, err := typed.OfHistory(r)
	return err == nil && number == want && history != ""
}

// After the log was removed no revision comes twice.
func TestLogRemoved(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, Options{})
	create(t, s, "a")
	create(t, s, "b")
	must(t, s.Close())
	must(t, os.RemoveAll(filepath.Join(dir, version, "log")))
	s = open(t, dir, Options{})
	if _, revision, err := s.Networks().List(t.Context(), ""); err != nil || !isAt(revision, 2) {
		t.Errorf("revision %q, %v", revision, err)
	}
	if at := create(t, s, "c"); at != "3" {
		t.Errorf("the next change is %s", at)
	}
}

// Foreign files are named in errors, and no link leads out of the store.
func TestStrangeFiles(t *testing.T) {
	dir := t.TempDir()
	s := open(t, dir, Options{})
	create(t, s, "a")
	networks := filepath.Join(dir, version, "networks")
	must(t, os.Symlink("/etc/passwd", filepath.Join(networks, "link.json")))
	must(t, syscall.Mkfifo(filepath.Join(networks, "pipe.json"), 0o600))
	must(t, os.Mkdir(filepath.Join(networks, "dir.json"), 0o700))
	must(t, os.WriteFile(filepath.Join(networks, "note.txt"), []byte("no object"), 0o600))
	must(t, os.WriteFile(filepath.Join(networks, "a.json~"), []byte("left by a killed writer"), 0o600))
	items, _, err := s.Networks().List(t.Context(), "")
	if len(items) != 1 || !errors.Is(err, store.ErrUnreadable) {
		t.Errorf("%v, %v", items, err)
	}
	for _, name := range []string{"link", "pipe", "dir"} {
		if !strings.Contains(fmt.Sprint(err), fmt.Sprintf("%q", name)) {
			t.Errorf("%s is not in the error: %v", name, err)
		}
	}
	if strings.Contains(fmt.Sprint(err), "root:") {
		t.Errorf("a link was followed: %v", err)
	}
}

func TestRefusesDirectoryOfOthers(t *testing.T) {
	dir := t.TempDir()
	must(t, os.Chmod(dir, 0o777))
	if s, err := Open(dir, Options{}); err == nil {
		t.Errorf("opened %v", s.dir)
	}
}

// A process that holds the lock and hangs delays a caller only until the caller's deadline.
func TestLockIsHeld(t *testing.T) {
	dir := t.TempDir()
	s, other := open(t, dir, Options{}), open(t, dir, Options{})
	unlock, err := durable.Lock(t.Context(), filepath.Join(other.dir, "lock"))
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := s.Networks().Get(ctx, "a"); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "lock") {
		t.Error(err)
	}
	unlock()
	if _, err := s.Networks().Get(t.Context(), "a"); !errors.Is(err, store.ErrNotFound) {
		t.Error(err)
	}
}

// No object is on a lease of the former boot.
func TestLeaseEndsWithTheBoot(t *testing.T) {
	dir, proc := t.TempDir(), t.TempDir()
	s := open(t, dir, Options{})
	l, err := s.Lease(t.Context(), time.Hour)
	must(t, err)
	_, err = s.Networks().Create(t.Context(), store.Network{Name: "a"}, l)
	must(t, err)
	must(t, s.Close())
	s = open(t, dir, Options{}) // a restart alone is no absence
	_, err = s.Networks().Get(t.Context(), "a")
	must(t, err)
	must(t, os.MkdirAll(filepath.Join(proc, "sys/kernel/random"), 0o700))
	must(t, os.WriteFile(filepath.Join(proc, "sys/kernel/random/boot_id"), []byte("another\n"), 0o600))
	s = open(t, dir, Options{Proc: proc})
	if _, err = s.Networks().Get(t.Context(), "a"); !errors.Is(err, store.ErrNotFound) {
		t.Error(err)
	}
}

// Without inotify a watcher polls.
func TestWithoutNotifier(t *testing.T) {
	b := newNotifier(t.Context(), "/nowhere")
	defer b.close()
	if b.f != nil {
		t.Fatal("it has a notifier for a missing directory")
	}
	s := open(t, t.TempDir(), Options{})
	time.AfterFunc(50*time.Millisecond, func() { create(t, s, "a") })
	if c, err := s.next(t.Context(), 0, b); err != nil || c.Key != "a" {
		t.Errorf("%+v, %v", c, err)
	}
}
