// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package netns

import (
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Many goroutines open sockets in two namespaces, while the garbage collector stops them again and
// again. Each socket is in its namespace, and no thread stays in one.
func TestSocketsAtOnce(t *testing.T) {
	spaces := make([]*NS, 2)
	inodes := make([]uint64, 2)
	for i := range spaces {
		ns := newNS(t, "socket"+strconv.Itoa(i))
		spaces[i], inodes[i] = ns, inodeOf(t, func() (fd int, err error) {
			err = ns.Visit(func() error { fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM, 0); return err })
			return fd, err
		})
	}
	if inodes[0] == inodes[1] {
		t.Fatal("both namespaces are the same")
	}
	stop := make(chan bool)
	var busy, wg sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		busy.Go(func() { collect(stop) })
	}
	for i := range 16 {
		ns, want := spaces[i%2], inodes[i%2]
		wg.Go(func() {
			for range 300 {
				if got := inodeOf(t, func() (int, error) { fd, _ := ns.quickSocket(unix.AF_UNIX, unix.SOCK_DGRAM, 0); return fd, nil }); got != want {
					t.Errorf("the socket is in namespace %d, want %d", got, want)
				}
			}
		})
	}
	wg.Wait()
	close(stop)
	busy.Wait()
	for i, ns := range spaces {
		if n := threadCount(t, ns); n > 0 {
			t.Errorf("%d threads are in namespace %d", n, i)
		}
		if own, err := ns.IsCurrent(); own || err != nil {
			t.Errorf("this thread is in namespace %d: %v", i, err)
		}
	}
}

// collect runs the garbage collector, and a loop that only a signal interrupts.
func collect(stop chan bool) {
	for n := 0; ; n++ {
		select {
		case <-stop:
			return
		default:
			runtime.GC()
			for end := time.Now().Add(time.Duration(n%20) * time.Microsecond); time.Now().Before(end); {
			}
		}
	}
}

// inodeOf returns the inode of the namespace of a socket.
func inodeOf(t *testing.T, open func() (int, error)) uint64 {
	fd, err := open()
	if err != nil || fd < 0 {
		t.Error(fd, err)
		return 0
	}
	defer unix.Close(fd) //nolint:errcheck // a test
	ns, err := unix.IoctlRetInt(fd, unix.SIOCGSKNS)
	if err != nil {
		t.Error(err)
		return 0
	}
	defer unix.Close(ns) //nolint:errcheck // a test
	var st unix.Stat_t
	if err := unix.Fstat(ns, &st); err != nil {
		t.Error(err)
	}
	return st.Ino
}

// If the thread may not return, or the socket cannot be opened, nothing moves.
func TestSocketRefused(t *testing.T) {
	ns := newNS(t, "refused")
	var before, after unix.Stat_t
	must := func(err error) {
		if err != nil {
			t.Fatal(err)
		}
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	must(unix.Stat(current, &before))
	mask := blocked(t)
	noReturn := ^uintptr(0)
	if fd := socketIn(uintptr(ns.Fd()), noReturn, unix.AF_UNIX, unix.SOCK_DGRAM, 0); fd >= 0 {
		t.Error("opened a socket")
	}
	if _, err := ns.Socket(unix.AF_UNIX, 4711, 0); err == nil {
		t.Error("opened a socket of a kind that does not exist")
	}
	must(unix.Stat(current, &after))
	if before.Ino != after.Ino {
		t.Error("the thread moved")
	}
	if now := blocked(t); now != mask {
		t.Errorf("blocked signals: %q, before: %q", now, mask)
	}
}

// blocked returns the line of the thread's blocked signals.
func blocked(t *testing.T) string {
	t.Helper()
	status, err := os.ReadFile("/proc/thread-self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, after, _ := strings.Cut(string(status), "SigBlk:")
	line, _, _ := strings.Cut(after, "\n")
	return line
}

// TestFromAnotherThread opens sockets and visits a namespace while the caller's thread is in another
// one. Afterwards no other thread is in either of them.
func TestFromAnotherThread(t *testing.T) {
	spaces := [...]*NS{newNS(t, "from0"), newNS(t, "from1")}
	w := spaces[0].NewWorker()
	defer w.Close()
	err := w.Do(func() error {
		for range 5 {
			fd, err := spaces[1].Socket(unix.AF_UNIX, unix.SOCK_DGRAM, 0)
			if err != nil {
				return err
			}
			unix.Close(fd) //nolint:errcheck // a test
			if err := spaces[1].Visit(func() error { return nil }); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []int{1, 0} { // the worker
		deadline := time.Now().Add(time.Minute) // the threads that made the namespaces take their time to end
		for in := -1; in != want; time.Sleep(time.Millisecond) {
			if in = threadCount(t, spaces[i]); in != want && time.Now().After(deadline) {
				t.Fatalf("%d threads are in namespace %d, want %d", in, i, want)
			}
		}
	}
}

func threadCount(t *testing.T, ns *NS) (n int) {
	t.Helper()
	for _, in := range threadsIn(t, ns) {
		if in {
			n++
		}
	}
	return n
}
