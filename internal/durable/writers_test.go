// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package durable

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// text is what one writer writes: several pages of one letter, with its number of pages at both ends.
func text(letter byte, pages int) []byte {
	return fmt.Appendf(bytes.Repeat([]byte{letter}, pages<<12), "%d", pages)
}

// whole reports whether a reader sees what one writer wrote.
func whole(data []byte) bool {
	for pages := range 9 {
		if len(data) > 0 && bytes.Equal(data, text(data[0], pages)) {
			return true
		}
	}
	return false
}

// Writers of one file share the name of its temporary file. Each of them succeeds, a reader sees only what one
// of them wrote, and nothing is left beside the file.
func TestManyWriters(t *testing.T) {
	for name, write := range writers() {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "file")
			if err := write(path, text('x', 1)); err != nil {
				t.Fatal(err)
			}
			stop := watch(t, path)
			var all sync.WaitGroup
			for n := range 4 {
				all.Go(func() {
					for i := range 60 {
						if err := write(path, text('a'+byte(n), i%8+1)); err != nil {
							t.Error(err)
							return
						}
					}
				})
			}
			all.Wait()
			if reads := stop(); reads < 10 {
				t.Errorf("only %d reads", reads)
			}
			onlyFile(t, path)
		})
	}
}

// watch reads a file again and again, and fails if it is missing or torn. stop returns how often it was read.
func watch(t *testing.T, path string) (stop func() int) {
	end, done := make(chan struct{}), make(chan int)
	go func() {
		for reads := 0; ; reads++ {
			select {
			case <-end:
				done <- reads
				return
			default:
			}
			if data, err := Read(path); err != nil || !whole(data) {
				t.Errorf("a reader sees %d bytes, %.20q: %v", len(data), data, err)
			}
		}
	}()
	return func() int { close(end); return <-done }
}

func onlyFile(t *testing.T, path string) {
	t.Helper()
	list, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(list) != 1 || list[0].Name() != filepath.Base(path) {
		t.Errorf("beside the file: %v %v", list, err)
	}
}

// writerEnv makes the test binary write the file that the variable names until it is killed. The name of the way to
// write and a letter follow the path.
const writerEnv = "PATCHBAY_TEST_WRITER"

func TestMain(m *testing.M) {
	if words := strings.Split(os.Getenv(writerEnv), "\n"); len(words) == 3 {
		for i := 0; ; i++ {
			if err := writers()[words[1]](words[0], text(words[2][0], i%8+1)); err != nil {
				fmt.Println(err)
				os.Exit(1)
			}
			if i == 0 {
				fmt.Println("began")
			}
		}
	}
	os.Exit(m.Run())
}

// Processes write one file and are killed at any moment. A reader sees only whole files, the writers that live do not
// fail, and the next Remove leaves nothing.
func TestKilledWriters(t *testing.T) {
	for name, write := range writers() {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "file")
			if err := write(path, text('x', 1)); err != nil {
				t.Fatal(err)
			}
			stop := watch(t, path)
			lives := startWriter(t, path, name, 'l')
			for n := range 12 {
				victim := startWriter(t, path, name, 'a'+byte(n))
				time.Sleep(time.Duration(n) * 300 * time.Microsecond) // any moment of a write
				victim.kill(t)
			}
			lives.kill(t)
			stop()
			if err := write(path, text('y', 2)); err != nil {
				t.Errorf("after the kills: %v", err)
			}
			if err := Remove(path); err != nil {
				t.Error(err)
			}
			for _, left := range []string{path, path + suffix} {
				if _, err := os.Lstat(left); !errors.Is(err, fs.ErrNotExist) {
					t.Errorf("%s is left: %v", left, err)
				}
			}
		})
	}
}

// writer is a process that writes.
type writer struct {
	cmd *exec.Cmd
	out io.Reader
}

// startWriter starts a process and waits until it has written once.
func startWriter(t *testing.T, path, how string, letter byte) *writer {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s\n%s\n%c", writerEnv, path, how, letter))
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	w := &writer{cmd, out}
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // it may be dead
	began := make([]byte, len("began\n"))
	if _, err := io.ReadFull(out, began); err != nil || string(began) != "began\n" {
		t.Fatalf("%v: %s", err, began)
	}
	return w
}

// kill kills the process, which must not have ended before.
func (w *writer) kill(t *testing.T) {
	t.Helper()
	if err := w.cmd.Process.Kill(); err != nil {
		t.Error(err)
	}
	said, _ := io.ReadAll(w.out)
	if err := w.cmd.Wait(); err == nil || !strings.Contains(err.Error(), "killed") || len(said) > 0 {
		t.Errorf("a writer ended by itself: %v: %s", err, said)
	}
}
