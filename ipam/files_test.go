// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package ipam_test

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/ipam"
	"github.com/patchbay-net/patchbay/ipam/storetest"
)

// bed is a store and its files.
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

func (b *bed) begin(m ipam.Mode) ipam.Tx {
	b.Helper()
	tx, err := b.store.Begin(context.Background(), m)
	if err != nil {
		b.Fatal(err)
	}
	return tx
}

func eth0(id string) ipam.Owner { return ipam.Owner{ID: id, IfName: "eth0"} }

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
	if got, err := b.try(&ipam.Request{Owner: eth0(id)}); err != nil || got != want {
		b.Fatalf("%s got %s, %v; want %s", id, got, err, want)
	}
}

func (b *bed) del(id string, want int) {
	b.Helper()
	tx := b.begin(ipam.Existing)
	defer tx.Close()
	got, err := ipam.Release(tx, eth0(id))
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
	b := newBed(t, storetest.Set(t, "10.1.0.0/24"), storetest.Set(t, "fd00::/64"))
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
	index, err := filepath.Glob(b.store.IndexDir + "/*")
	if err != nil || len(index) != 1 {
		t.Error(index, err)
	}
	b.del("c2", 2)
	if index, _ := filepath.Glob(b.store.IndexDir + "/*"); len(index) != 0 {
		t.Errorf("the index outlives the last reservation: %v", index)
	}
}

// Whatever somebody else does right after us, in the same clock tick, is seen.
func TestForeignChangeInTheSameTick(t *testing.T) {
	for where, dir := range benchDirsT(t) {
		t.Run(where, func(t *testing.T) {
			b := newBed(t, storetest.Set(t, "10.1.0.0/16"))
			b.store.DataDir, b.dir = dir, filepath.Join(dir, "net")
			b.add("keep", "10.1.0.2")
			for i := range 300 {
				ours := fmt.Sprintf("10.1.%d.%d", (i+3)>>8, (i+3)&255)
				b.add("ours", ours)
				b.write("10.1.200.1", "foreign\r\neth0") // in swaps ours for the other's
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

// An operator changes files without the lock while we hold it: the stamp hides
// that from the next call, which must come out right all the same.
func TestUnlockedChangeWithinATransaction(t *testing.T) {
	b := newBed(t, storetest.Set(t, "10.1.0.0/29")) // .2 to .6
	b.add("c2", "10.1.0.2")
	b.add("c3", "10.1.0.3")
	tx := b.begin(ipam.Write)
	b.remove("10.1.0.2")
	b.write("10.1.0.5", "foreign\r\neth0")
	if _, err := ipam.Allocate(tx, &ipam.Request{Owner: eth0("c4"), Sets: b.sets}); err != nil {
		t.Fatal(err)
	}
	tx.Close()
	b.add("c6", "10.1.0.6") // 5 is tried and found taken
	b.del("foreign", 1)
	b.add("c7", "10.1.0.2")
	b.del("c2", 0)
}

// A pool that only seems full is looked at again.
func TestFullOnlyInTheIndex(t *testing.T) {
	b := newBed(t, storetest.Set(t, "10.1.0.0/29"))
	for i := 2; i <= 5; i++ {
		b.add(fmt.Sprint("c", i), fmt.Sprint("10.1.0.", i))
	}
	tx := b.begin(ipam.Write)
	b.remove("10.1.0.3")
	if _, err := ipam.Allocate(tx, &ipam.Request{Owner: eth0("c6"), Sets: b.sets}); err != nil {
		t.Fatal(err)
	}
	tx.Close()
	b.add("c7", "10.1.0.3")
}

func TestTornFiles(t *testing.T) {
	b := newBed(t, storetest.Set(t, "10.1.0.0/29"))
	b.add("c1", "10.1.0.2")
	b.write("10.1.0.3", "")
	b.write("10.1.0.4", " \r\n")
	b.write("10.1.0.5", strings.Repeat("\x00", 12))
	b.write("last_reserved_ip.0", "10.1.0") // half of an address
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
	if _, err := ipam.Collect(tx, func(ipam.Owner) bool { return true }); err != nil {
		t.Fatal(err)
	}
	tx.Close()
	if _, err := os.Stat(filepath.Join(b.dir, "10.1.0.5")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("GC left a torn file: %v", err)
	}
	b.del("c3", 1)
	b.del("c1", 1)
}

// Files from before host-local 0.7 hold the id alone.
func TestOldFiles(t *testing.T) {
	b := newBed(t, storetest.Set(t, "10.1.0.0/29"))
	b.add("other", "10.1.0.2")
	b.write("10.1.0.3", "c1")
	b.write("10.1.0.4", "c1\n")
	b.write("10.1.0.5", "by hand: do not use")
	_, err := b.try(&ipam.Request{Owner: eth0("c1")})
	if err == nil || !strings.Contains(err.Error(), "has been allocated to c1, duplicate allocation is not allowed") {
		t.Error(err)
	}
	b.del("c1", 2)
	tx := b.begin(ipam.Existing)
	defer tx.Close()
	gone, err := ipam.Collect(tx, func(ipam.Owner) bool { return false })
	if err != nil || len(gone) != 1 || gone[0].Owner != eth0("other") {
		t.Errorf("collected %v, %v; want only other", gone, err)
	}
	if _, taken, _ := tx.Holder(netip.MustParseAddr("10.1.0.5")); !taken {
		t.Error("an address that somebody blocked by hand was freed")
	}
}

func TestPlantedLinks(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("c1\r\neth0"), 0o600); err != nil {
		t.Fatal(err)
	}
	plant := func(b *bed, name string) {
		if err := os.Symlink(secret, filepath.Join(b.dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	b := newBed(t, storetest.Set(t, "10.1.0.0/24"))
	b.add("c0", "10.1.0.2")
	plant(b, "10.1.0.3")
	if err := unix.Mkfifo(filepath.Join(b.dir, "10.1.0.4"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(b.dir, "10.1.0.5"), 0o700); err != nil {
		t.Fatal(err)
	}
	b.del("c1", 0)
	b.add("c1", "10.1.0.6")

	b.remove("last_reserved_ip.0")
	plant(b, "last_reserved_ip.0")
	if _, err := b.try(&ipam.Request{Owner: eth0("c2")}); !errors.Is(err, unix.ELOOP) {
		t.Errorf("last_reserved_ip.0 is a link: %v", err)
	}
	b.del("c2", 0)
	b.remove("lock")
	plant(b, "lock")
	if _, err := b.store.Begin(context.Background(), ipam.Existing); !errors.Is(err, unix.ELOOP) {
		t.Errorf("lock is a link: %v", err)
	}
	if err := os.Rename(b.dir, b.dir+".real"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(b.dir+".real", b.dir); err != nil {
		t.Fatal(err)
	}
	if _, err := b.store.Begin(context.Background(), ipam.Write); !errors.Is(err, unix.ENOTDIR) && !errors.Is(err, unix.ELOOP) {
		t.Errorf("the directory is a link: %v", err)
	}
	if data, err := os.ReadFile(secret); err != nil || string(data) != "c1\r\neth0" {
		t.Errorf("the file behind the links: %q, %v", data, err)
	}
}

func TestRefusedNames(t *testing.T) {
	for _, n := range []string{"", ".", "..", "a/b", "../x", "/etc", "a\x00b", strings.Repeat("x", 256)} {
		s := &ipam.FileStore{DataDir: t.TempDir(), Network: n}
		if _, err := s.Begin(context.Background(), ipam.Write); err == nil {
			t.Errorf("network %q was accepted", n)
		}
	}
	b := newBed(t, storetest.Set(t, "10.1.0.0/24"))
	for _, o := range []ipam.Owner{{}, {ID: "c"}, {IfName: "eth0"}, {ID: "c\r\neth1", IfName: "eth0"}, {ID: "c", IfName: "e\n"},
		{ID: "../c", IfName: "eth0"}, {ID: "c d", IfName: "eth0"}, {ID: "c", IfName: "\x00"}} {
		if got, err := b.try(&ipam.Request{Owner: o}); err == nil {
			t.Errorf("%q got %s", o, got)
		}
	}
}

func TestEarlierBoot(t *testing.T) {
	b := newBed(t, storetest.Set(t, "10.1.0.0/29"))
	gone := func(r ipam.Reservation) bool { return r.EarlierBoot && r.Owner != eth0("alive") }
	for i, id := range []string{"a", "b", "alive", "late"} {
		b.add(id, fmt.Sprint("10.1.0.", i+2))
	}
	// Made by the reference two hours ago, before the node booted.
	b.write("10.1.0.6", "found\r\neth0")
	old := time.Now().Add(-2 * time.Hour)
	if err := os.Chtimes(filepath.Join(b.dir, "10.1.0.6"), old, old); err != nil {
		t.Fatal(err)
	}
	req := func(id string) *ipam.Request { return &ipam.Request{Owner: eth0(id), Gone: gone} }
	if got, err := b.try(req("n1")); err != nil || got != "10.1.0.6" {
		t.Fatalf("%s, %v: only the reservation found from before the boot may go", got, err)
	}
	if _, err := b.try(req("n2")); !errors.Is(err, ipam.ErrExhausted) {
		t.Fatal(err)
	}
	b.store.Boot = ipam.Boot{ID: "next", Since: time.Now()} // the index lives on a disk
	tx := b.begin(ipam.Existing)
	if err := ipam.Status(tx, b.sets, gone); err != nil {
		t.Errorf("reclaimable, and yet: %v", err)
	}
	tx.Close()
	// A repeated ADD of the dead keeps its address and is of this boot then.
	if got, err := b.try(req("b")); err != nil || got != "10.1.0.3" {
		t.Fatal(got, err)
	}
	if got, err := b.try(&ipam.Request{Owner: eth0("n3"), Gone: gone, Requested: []netip.Addr{netip.MustParseAddr("10.1.0.2")}}); err != nil || got != "10.1.0.2" {
		t.Fatalf("an address of the dead that was asked for: %s, %v", got, err)
	}
	if got, err := b.try(req("n4")); err != nil || got != "10.1.0.5" {
		t.Fatal(got, err)
	}
	b.del("late", 0)
	b.del("alive", 1)
	b.del("b", 1)
}

// The reservations that an index found on disk after a reboot, without the
// index, are told by the time of their files.
func TestRenewTouchesTheFile(t *testing.T) {
	b := newBed(t, storetest.Set(t, "10.1.0.0/29"))
	b.add("c1", "10.1.0.2")
	old := time.Now().Add(-2 * time.Hour)
	if err := os.Chtimes(filepath.Join(b.dir, "10.1.0.2"), old, old); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(b.store.IndexDir); err != nil {
		t.Fatal(err)
	}
	gone := func(r ipam.Reservation) bool { return r.EarlierBoot }
	if got, err := b.try(&ipam.Request{Owner: eth0("c1"), Gone: gone}); err != nil || got != "10.1.0.2" {
		t.Fatal(got, err)
	}
	if err := os.RemoveAll(b.store.IndexDir); err != nil {
		t.Fatal(err)
	}
	if got, err := b.try(&ipam.Request{Owner: eth0("c1"), Gone: gone}); err == nil {
		t.Fatalf("%s was given again to a living container", got)
	}
}

func TestLockWaits(t *testing.T) {
	b := newBed(t, storetest.Set(t, "10.1.0.0/24"))
	tx := b.begin(ipam.Write)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	if _, err := b.store.Begin(ctx, ipam.Write); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("locked, and yet: %v", err)
	}
	tx.Close()
	b.add("c1", "10.1.0.2")

	// rm -rf of the directory's content takes the lock file along.
	tx = b.begin(ipam.Write)
	done := make(chan struct{})
	go func() {
		defer close(done)
		other := b.begin(ipam.Write)
		defer other.Close()
		if _, err := ipam.Allocate(other, &ipam.Request{Owner: eth0("c2"), Sets: b.sets}); err != nil {
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

// No mode but Write makes anything; ReadOnly leaves no trace at all.
func TestReadOnlyTouchesNothing(t *testing.T) {
	b := newBed(t, storetest.Set(t, "10.1.0.0/24"))
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
	got, err := ipam.Allocate(tx, &ipam.Request{Owner: eth0("c9"), Sets: b.sets, Dry: true})
	tx.Close()
	if err != nil || got[0].Address.String() != "10.1.0.4/24" {
		t.Error(got, err)
	}
	if err := unix.Stat(b.dir, &after); err != nil || before.Mtim != after.Mtim || before.Ctim != after.Ctim {
		t.Error("changed the directory")
	}
}

// An index that cannot be written costs time and nothing else.
func TestIndexCannotBeWritten(t *testing.T) {
	b := newBed(t, storetest.Set(t, "10.1.0.0/24"))
	if err := os.WriteFile(b.store.IndexDir, nil, 0o600); err != nil { // a file where the directory should be
		t.Fatal(err)
	}
	b.add("c1", "10.1.0.2")
	b.add("c2", "10.1.0.3")
	b.del("c1", 1)
	b.del("c2", 1)
}

// The index grows while it is in use.
func TestGrow(t *testing.T) {
	b := newBed(t, storetest.Set(t, "10.1.0.0/20"), storetest.Set(t, "fd00::/64"))
	for i := range 400 {
		j := i + 2
		b.add(fmt.Sprint("c", i), fmt.Sprintf("10.1.%d.%d fd00::%x", j>>8, j&255, j))
	}
	for i := range 400 {
		b.del(fmt.Sprint("c", i), 2)
	}
}

func FuzzStateFile(f *testing.F) {
	f.Add([]byte("c1\r\neth0"), []byte("10.1.0.2"), []byte{})
	f.Add([]byte(""), []byte("x"), []byte("pbipam01"))
	f.Add([]byte("c1\n"), []byte("fd00::1"), []byte{0})
	f.Add([]byte("\x00\x00"), []byte("10.1.0.2\n"), make([]byte, 4096))
	f.Fuzz(func(t *testing.T, content, cursor, index []byte) {
		b := newBed(t, storetest.Set(t, "10.1.0.0/29"))
		b.add("keep", "10.1.0.2")
		b.write("10.1.0.3", string(content))
		b.write("last_reserved_ip.0", string(cursor))
		names, _ := filepath.Glob(b.store.IndexDir + "/*")
		for _, name := range names {
			if err := os.WriteFile(name, index, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		mine := strings.TrimSpace(string(content)) == "c1\r\neth0" || strings.TrimSpace(string(content)) == "c1"
		tx := b.begin(ipam.Existing)
		got, err := ipam.Release(tx, eth0("c1"))
		tx.Close()
		if err != nil || mine != (len(got) == 1) {
			t.Fatalf("%q: released %v, %v", content, got, err)
		}
		first, err := b.try(&ipam.Request{Owner: eth0("c8")})
		if err != nil || first == "10.1.0.2" || first == "10.1.0.1" {
			t.Fatal(first, err)
		}
		b.del("keep", 1)
	})
}
