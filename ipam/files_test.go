// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package ipam_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/test/draw"
	"github.com/patchbay-net/patchbay/ipam"
)

// bed is a store in a temporary directory.
type bed struct {
	*testing.T
	store *ipam.FileStore
	dir   string
	sets  []ipam.RangeSet
	warns []string
}

func newBed(t *testing.T, sets ...ipam.RangeSet) *bed {
	b := &bed{T: t, sets: sets}
	b.store = &ipam.FileStore{DataDir: t.TempDir(), Network: "net", IndexDir: filepath.Join(t.TempDir(), "ipam"),
		Boot: ipam.Boot{ID: "now", Since: time.Now().Add(-time.Hour)},
		Warn: func(err error) { b.warns = append(b.warns, err.Error()) }}
	b.dir = filepath.Join(b.store.DataDir, "net")
	return b
}

func (b *bed) begin(m ipam.Mode) *ipam.Tx {
	b.Helper()
	tx, err := b.store.Begin(context.Background(), m)
	if err != nil {
		b.Fatal(err)
	}
	return tx
}

func eth0(id string) ipam.Holder { return ipam.Holder{ID: id, IfName: "eth0"} }

func (b *bed) try(req *ipam.Request) (string, error) {
	b.Helper()
	tx := b.begin(ipam.Write)
	defer tx.Close()
	if req.Sets == nil {
		req.Sets = b.sets
	}
	leases, err := ipam.Allocate(tx, req)
	var out []string
	for _, l := range leases {
		out = append(out, l.Address.Addr().String())
	}
	return strings.Join(out, " "), err
}

func (b *bed) add(id, want string) {
	b.Helper()
	if got, err := b.try(&ipam.Request{Holder: eth0(id)}); err != nil || got != want {
		b.Fatalf("%s got %s, %v; want %s", id, got, err, want)
	}
}

func (b *bed) del(id string, want int) {
	b.Helper()
	tx := b.begin(ipam.Existing)
	defer tx.Close()
	got, err := ipam.Release(tx, eth0(id), nil)
	if err != nil || len(got) != want {
		b.Fatalf("released %v, %v; want %d", got, err, want)
	}
}

func (b *bed) write(name, content string) {
	b.Helper()
	if err := os.WriteFile(filepath.Join(b.dir, name), []byte(content), 0o600); err != nil {
		b.Fatal(err)
	}
}

func (b *bed) remove(name string) {
	b.Helper()
	if err := os.Remove(filepath.Join(b.dir, name)); err != nil {
		b.Fatal(err)
	}
}

// stand adds reservations outside of the range, so that there is an index file.
func (b *bed) stand(n int) {
	b.Helper()
	if err := os.MkdirAll(b.dir, 0o755); err != nil {
		b.Fatal(err)
	}
	for i := range n {
		b.write(fmt.Sprint("192.0.2.", i), fmt.Sprintf("standing%d\r\neth0", i))
	}
}

// indexes lists the index files.
func (b *bed) indexes() []string {
	b.Helper()
	names, err := filepath.Glob(b.store.IndexDir + "/*")
	if err != nil {
		b.Fatal(err)
	}
	return names
}

// ls lists the directory as "name mode content".
func (b *bed) ls() string {
	b.Helper()
	entries, err := os.ReadDir(b.dir)
	if err != nil {
		b.Fatal(err)
	}
	var out strings.Builder
	for _, e := range entries {
		info, err := e.Info()
		if err != nil {
			b.Fatal(err)
		}
		data, _ := os.ReadFile(filepath.Join(b.dir, e.Name()))
		fmt.Fprintf(&out, "%s %v %q\n", e.Name(), info.Mode(), data)
	}
	return out.String()
}

func TestLayout(t *testing.T) {
	b := newBed(t, Set(t, "10.1.0.0/24"), Set(t, "fd00::/64"))
	b.add("c1", "10.1.0.2 fd00::2")
	b.add("c2", "10.1.0.3 fd00::3")
	b.del("c1", 2)
	want := `10.1.0.3 -rw------- "c2\r\neth0"
fd00::3 -rw------- "c2\r\neth0"
last_reserved_ip.0 -rw------- "10.1.0.3"
last_reserved_ip.1 -rw------- "fd00::3"
lock -rwxr-x--- ""
`
	if got := b.ls(); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	info, err := os.Stat(b.dir)
	if err != nil || info.Mode().Perm() != 0o755 {
		t.Error(info.Mode(), err)
	}
	if index := b.indexes(); len(index) != 1 {
		t.Error(index)
	}
	b.del("c2", 2)
	if index := b.indexes(); len(index) != 0 {
		t.Errorf("the index outlives the last reservation: %v", index)
	}
}

// An index file is written for the third reservation, and remains until the last is gone.
func TestFewReservations(t *testing.T) {
	b := newBed(t, Set(t, "10.1.0.0/24"))
	want := func(when string, n int) {
		t.Helper()
		if index := b.indexes(); len(index) != n {
			t.Errorf("%s: %v", when, index)
		}
	}
	b.add("c1", "10.1.0.2")
	b.add("c2", "10.1.0.3")
	want("two", 0)
	b.del("c1", 1)
	b.add("c1", "10.1.0.4")
	want("two again", 0)
	b.add("c3", "10.1.0.5")
	want("three", 1)
	b.del("c1", 1)
	b.del("c2", 1)
	want("one left", 1)
	b.add("c4", "10.1.0.6")
	b.del("c3", 1)
	b.del("c4", 1)
	want("none left", 0)
}

// Another program changes the directory right after us, in the same clock tick. The next call
// notices the change.
func TestForeignChangeInTheSameTick(t *testing.T) {
	for where, dir := range benchDirsT(t) {
		t.Run(where, func(t *testing.T) {
			b := newBed(t, Set(t, "10.1.0.0/16"))
			b.store.DataDir, b.dir = dir, filepath.Join(dir, "net")
			b.add("keep", "10.1.0.2")
			b.stand(3)
			for i := range draw.Number(t, "PATCHBAY_TICK_CHANGES", 100, 300) {
				ours := fmt.Sprintf("10.1.%d.%d", (i+3)>>8, (i+3)&255)
				b.add("ours", ours)
				b.write("10.1.200.1", "foreign\r\neth0") // in replaces our file with the other program's
				b.remove(ours)
				b.del("foreign", 1)
				b.del("ours", 0)
			}
		})
	}
}

func benchDirsT(t *testing.T) map[string]string {
	shm, err := os.MkdirTemp("/dev/shm", "ipam")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(shm) })
	return map[string]string{"tmpfs": shm, "disk": t.TempDir()}
}

// An operator changes files without the lock while we hold it. The new mtime hides the change
// from the next call, which must answer correctly all the same.
func TestUnlockedChangeWithinATransaction(t *testing.T) {
	b := newBed(t, Set(t, "10.1.0.0/29")) // .2 to .6
	b.stand(3)
	b.add("c2", "10.1.0.2")
	b.add("c3", "10.1.0.3")
	tx := b.begin(ipam.Write)
	b.remove("10.1.0.2")
	b.write("10.1.0.5", "foreign\r\neth0")
	if _, err := ipam.Allocate(tx, &ipam.Request{Holder: eth0("c4"), Sets: b.sets}); err != nil {
		t.Fatal(err)
	}
	tx.Close()
	b.add("c6", "10.1.0.6") // .5 is tried and found taken
	b.del("foreign", 1)
	b.add("c7", "10.1.0.2")
	b.del("c2", 0)
}

// If a pool is full only in the index, the directory is scanned again.
func TestFullOnlyInTheIndex(t *testing.T) {
	b := newBed(t, Set(t, "10.1.0.0/29"))
	for i := 2; i <= 5; i++ {
		b.add(fmt.Sprint("c", i), fmt.Sprint("10.1.0.", i))
	}
	tx := b.begin(ipam.Write)
	b.remove("10.1.0.3")
	if _, err := ipam.Allocate(tx, &ipam.Request{Holder: eth0("c6"), Sets: b.sets}); err != nil {
		t.Fatal(err)
	}
	tx.Close()
	b.add("c7", "10.1.0.3")
}

func TestTornFiles(t *testing.T) {
	b := newBed(t, Set(t, "10.1.0.0/29"))
	b.add("c1", "10.1.0.2")
	b.write("10.1.0.3", "")
	b.write("10.1.0.4", " \r\n")
	b.write("10.1.0.5", strings.Repeat("\x00", 12))
	b.write("last_reserved_ip.0", "10.1.0") // an address that was cut short
	b.write("10.1.0.6", "someone")
	b.add("c3", "10.1.0.3")
	b.add("c4", "10.1.0.4")
	if len(b.warns) != 2 || !strings.Contains(b.warns[0], "10.1.0.3: empty or torn file") {
		t.Errorf("warnings: %q", b.warns)
	}
	tx := b.begin(ipam.Existing)
	if err := ipam.Status(tx, b.sets, nil); err != nil {
		t.Error(err)
	}
	if _, err := gc(tx, func(ipam.Holder) bool { return true }); err != nil {
		t.Fatal(err)
	}
	tx.Close()
	if _, err := os.Stat(filepath.Join(b.dir, "10.1.0.5")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("GC left a torn file: %v", err)
	}
	b.del("c3", 1)
	b.del("c1", 1)
}

func TestRefusedNames(t *testing.T) {
	for _, n := range []string{"", ".", "..", "a/b", "../x", "/etc", "a\x00b", strings.Repeat("x", 256)} {
		s := &ipam.FileStore{DataDir: t.TempDir(), Network: n}
		if _, err := s.Begin(context.Background(), ipam.Write); err == nil {
			t.Errorf("network %q was accepted", n)
		}
	}
	b := newBed(t, Set(t, "10.1.0.0/24"))
	for _, o := range []ipam.Holder{{}, {ID: "c"}, {IfName: "eth0"}, {ID: "c\r\neth1", IfName: "eth0"}, {ID: "c", IfName: "e\n"},
		{ID: "../c", IfName: "eth0"}, {ID: "c d", IfName: "eth0"}, {ID: "c", IfName: "\x00"}} {
		if got, err := b.try(&ipam.Request{Holder: o}); err == nil {
			t.Errorf("%q got %s", o, got)
		}
	}
}

func TestLockWaits(t *testing.T) {
	b := newBed(t, Set(t, "10.1.0.0/24"))
	tx := b.begin(ipam.Write)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if _, err := b.store.Begin(ctx, ipam.Write); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("locked, and yet: %v", err)
	}
	tx.Close()
	b.add("c1", "10.1.0.2")

	// If an operator deletes all files of the directory, the lock file is gone too.
	tx = b.begin(ipam.Write)
	done := make(chan struct{})
	go func() {
		defer close(done)
		other := b.begin(ipam.Write)
		defer other.Close()
		if _, err := ipam.Allocate(other, &ipam.Request{Holder: eth0("c2"), Sets: b.sets}); err != nil {
			t.Error(err)
		}
	}()
	time.Sleep(5 * time.Millisecond)
	b.remove("lock")
	tx.Close()
	<-done
	b.del("c2", 1)
	if err := os.RemoveAll(b.dir); err != nil {
		t.Fatal(err)
	}
	b.del("c1", 0)
	b.add("c1", "10.1.0.2")
}

// Only the mode Write creates anything. ReadOnly leaves no trace at all.
func TestReadOnlyTouchesNothing(t *testing.T) {
	b := newBed(t, Set(t, "10.1.0.0/24"))
	for _, m := range []ipam.Mode{ipam.ReadOnly, ipam.Existing} {
		b.begin(m).Close()
		if _, err := os.Stat(b.dir); !errors.Is(err, fs.ErrNotExist) {
			t.Fatal("made the directory")
		}
	}
	b.add("c1", "10.1.0.2")
	b.write("10.1.0.3", "c2\r\neth0") // the index is out of date
	var before, after unix.Stat_t
	if err := unix.Stat(b.dir, &before); err != nil {
		t.Fatal(err)
	}
	tx := b.begin(ipam.ReadOnly)
	got, err := ipam.Allocate(tx, &ipam.Request{Holder: eth0("c9"), Sets: b.sets, Dry: true})
	tx.Close()
	if err != nil || got[0].Address.String() != "10.1.0.4/24" {
		t.Error(got, err)
	}
	if err := unix.Stat(b.dir, &after); err != nil || before.Mtim != after.Mtim || before.Ctim != after.Ctim {
		t.Error("changed the directory")
	}
}

// If the index cannot be written, calls are slower but answer the same.
func TestIndexCannotBeWritten(t *testing.T) {
	b := newBed(t, Set(t, "10.1.0.0/24"))
	if err := os.WriteFile(b.store.IndexDir, nil, 0o600); err != nil { // a file in the place of the directory
		t.Fatal(err)
	}
	b.add("c1", "10.1.0.2")
	b.add("c2", "10.1.0.3")
	b.del("c1", 1)
	b.del("c2", 1)
}

// The index grows while it is in use.
func TestGrow(t *testing.T) {
	b := newBed(t, Set(t, "10.1.0.0/20"), Set(t, "fd00::/64"))
	for i := range 400 {
		j := i + 2
		b.add(fmt.Sprint("c", i), fmt.Sprintf("10.1.%d.%d fd00::%x", j>>8, j&255, j))
	}
	for i := range 400 {
		b.del(fmt.Sprint("c", i), 2)
	}
}
