// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/internal/claim"
	"github.com/patchbay-net/patchbay/internal/owner"
)

// An ADD keeps its record locked until its session ends. If an ADD hangs, a DEL continues without
// the lock.
func TestLock(t *testing.T) {
	add := New(t.TempDir())
	r := sample("c1")
	if err := add.Write(r); err != nil {
		t.Fatal(err)
	}
	other := New(add.Path)
	if _, ok, err := other.TryReadLocked(r.Network, r.Owner, r.Plugin, 0); ok || err != nil {
		t.Errorf("taken from an ADD under way: %v, %v", ok, err)
	}
	if !other.Busy(r.Network, r.Owner, r.Plugin) || add.Busy(r.Network, r.Owner, r.Plugin) {
		t.Error("busy is who is kept out, not who keeps out")
	}
	start := time.Now()
	if got, err := other.ReadLocked(r.Network, r.Owner, r.Plugin); got == nil || err != nil || time.Since(start) < claim.Patience {
		t.Errorf("DEL beside an ADD that hangs, after %v: %v, %v", time.Since(start), got, err)
	}
	add.Close()
	if got, ok, err := other.TryReadLocked(r.Network, r.Owner, r.Plugin, 0); got == nil || !ok || err != nil {
		t.Errorf("after the ADD: %v, %v, %v", got, ok, err)
	}
	other.Unlock(r.Network, r.Owner, r.Plugin)
	if New(add.Path).Busy(r.Network, r.Owner, r.Plugin) {
		t.Error("busy although nobody has it")
	}
}

// A process waits for a record. Meanwhile the record is removed or replaced. The process gets the
// new record.
func TestLockOfWhatIsReplaced(t *testing.T) {
	first, second := New(t.TempDir()), New("")
	second.Path = first.Path
	r := sample("c1")
	if err := first.Write(r); err != nil {
		t.Fatal(err)
	}
	got := make(chan *Record)
	go func() {
		rec, err := second.ReadLocked(r.Network, r.Owner, r.Plugin)
		if err != nil {
			t.Error(err)
		}
		got <- rec
	}()
	time.Sleep(20 * time.Millisecond)
	if err := first.Remove(r.Network, r.Owner, r.Plugin); err != nil {
		t.Fatal(err)
	}
	if rec := <-got; rec != nil {
		t.Errorf("taken: %+v, which is removed", rec)
	}
	again := *r
	again.NetNS = "/run/netns/new"
	if err := second.Write(&again); err != nil {
		t.Fatal(err)
	}
	go second.Close()
	rec, err := first.ReadLocked(r.Network, r.Owner, r.Plugin)
	if err != nil || rec == nil || rec.NetNS != again.NetNS {
		t.Errorf("%+v, %v", rec, err)
	}
}

func TestCollectingKeepsRepairOut(t *testing.T) {
	s := New(t.TempDir())
	if done, err := s.Repairing(t.Context()); err != nil {
		t.Error(err)
	} else {
		done()
	}
	if err := s.Write(sample("c1")); err != nil {
		t.Fatal(err)
	}
	var done [2]func()
	for i := range done { // GCs do not exclude each other
		var err error
		if done[i], err = s.Collecting(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	repairs := make(chan struct{})
	go func() {
		if done, err := s.Repairing(t.Context()); err == nil {
			done()
		}
		close(repairs)
	}()
	select {
	case <-repairs:
		t.Error("repairs beside a GC")
	case <-time.After(20 * time.Millisecond):
	}
	done[0]()
	done[1]()
	<-repairs
}

// A record that cannot be read is found by its name, which gives the owner.
func TestScan(t *testing.T) {
	s := New(t.TempDir())
	r := sample("c1")
	for _, id := range []string{"c1", "c2"} {
		if err := s.Write(sample(id)); err != nil {
			t.Fatal(err)
		}
	}
	for name, content := range map[string]string{string(r.Owner) + ".bridge": `{"sch`, "README": "x"} {
		if err := os.WriteFile(filepath.Join(s.Path, claim.Attachments, "pods", name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	records, torn, err := s.Scan("")
	if len(records) != 1 || !errors.Is(err, ErrBroken) {
		t.Errorf("%d records, %v", len(records), err)
	}
	if len(torn) != 1 || torn[0].Owner != owner.Of("pods", "c1", "eth0") || torn[0].Plugin != "bridge" || torn[0].Network != "pods" {
		t.Errorf("torn: %+v", torn)
	}
}

// An ADD begins while gc removes the attachment. The ADD waits and then writes its record again,
// because gc may have removed it.
func TestClaim(t *testing.T) {
	gc, add := New(t.TempDir()), New("")
	add.Path = gc.Path
	r := sample("c1")
	release, err := gc.Claim(r.Network, r.Owner)
	if err != nil {
		t.Fatal(err)
	}
	if records, torn, err := gc.Scan(""); len(records)+len(torn) > 0 || err != nil {
		t.Errorf("a claim is no record: %v, %v, %v", records, torn, err)
	}
	written := make(chan error)
	go func() { written <- add.Write(r) }()
	select {
	case err := <-written:
		t.Errorf("an ADD beside gc: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	if err := gc.Remove(r.Network, r.Owner, r.Plugin); err != nil {
		t.Error(err)
	}
	release()
	if err := <-written; err != nil {
		t.Error(err)
	}
	if got, err := add.Read(r.Network, r.Owner, r.Plugin); got == nil || err != nil {
		t.Errorf("the record: %v, %v", got, err)
	}
}

// A gc gives the records' locks to the DELs that it calls, and keeps its claim.
func TestUnlockAll(t *testing.T) {
	add, r := New(t.TempDir()), sample("c1")
	if err := add.Write(r); err != nil {
		t.Fatal(err)
	}
	add.Close()
	gc, other := New(add.Path), New(add.Path)
	release, keep, err := gc.Seize(r.Network, r.Owner, func([]CurrentRecord) string { return "" })
	if err != nil || keep != "" {
		t.Fatal(keep, err)
	}
	if !other.Busy(r.Network, r.Owner, r.Plugin) {
		t.Error("the record is not locked")
	}
	gc.UnlockAll(r.Network, r.Owner)
	if other.Busy(r.Network, r.Owner, r.Plugin) {
		t.Error("the record is still locked")
	}
	if _, keep, err := other.TrySeize(r.Network, r.Owner, func([]CurrentRecord) string { return "" }); keep != claim.InUse || err != nil {
		t.Errorf("the claim is gone: %q, %v", keep, err)
	}
	release()
	if _, err := os.Lstat(filepath.Join(gc.Path, claim.Attachments, r.Network, string(r.Owner)+claim.Suffix)); err == nil {
		t.Error("the claim stays")
	}
}

// The claim of a killed gc blocks no ADD. The next gc removes the claim.
func TestClaimOfAKilledGC(t *testing.T) {
	s, killed := New(t.TempDir()), New("")
	killed.Path = s.Path
	for _, network := range []string{"pods", "others"} {
		if _, err := killed.Claim(network, sample("c1").Owner); err != nil {
			t.Fatal(err)
		}
	}
	killed.Close()
	if err := s.Write(sample("c1")); err != nil {
		t.Error(err)
	}
	if err := s.SweepClaims("pods"); err != nil {
		t.Error(err)
	}
	if left, err := filepath.Glob(filepath.Join(s.Path, claim.Attachments, "*", "*~")); len(left) != 1 || err != nil {
		t.Errorf("of another network: %v, %v", left, err)
	}
	if err := s.SweepClaims(""); err != nil {
		t.Error(err)
	}
	if left, err := filepath.Glob(filepath.Join(s.Path, claim.Attachments, "*", "*~")); len(left) > 0 || err != nil {
		t.Errorf("left: %v, %v", left, err)
	}
}

// A late DEL removes the record that it locked. It leaves the record of a later ADD alone, even if
// it found no record itself.
func TestRemoveWhatWasRead(t *testing.T) {
	r := sample("c1")
	for name, began := range map[string]func(*Dir){
		"none":  func(*Dir) {},
		"older": func(add *Dir) { write(t, add, r); add.Close() },
	} {
		t.Run(name, func(t *testing.T) {
			add, del := New(t.TempDir()), New("")
			del.Path = add.Path
			began(add)
			if _, err := del.Read(r.Network, r.Owner, r.Plugin); err != nil {
				t.Fatal(err)
			}
			write(t, add, r)
			for range 2 {
				if err := del.Remove(r.Network, r.Owner, r.Plugin); err != nil {
					t.Fatal(err)
				}
			}
			if got, err := New(add.Path).Read(r.Network, r.Owner, r.Plugin); got == nil || err != nil {
				t.Errorf("the new record is gone: %v", err)
			}
			if err := add.Remove(r.Network, r.Owner, r.Plugin); err != nil {
				t.Fatal(err)
			}
			if got, err := New(add.Path).Read(r.Network, r.Owner, r.Plugin); got != nil || err != nil {
				t.Errorf("its own undo leaves it: %v, %v", got, err)
			}
		})
	}
}

func write(t *testing.T, s *Dir, r *Record) {
	t.Helper()
	if err := s.Write(r); err != nil {
		t.Fatal(err)
	}
}

// A record that ReadLocked returns is locked, however late the ADD writes it. Otherwise a DEL could
// look for a lock before there is a record, find the record afterwards, and remove what the ADD
// is about to make.
func TestTakenIsLocked(t *testing.T) {
	r := sample("c1")
	dir, found := t.TempDir(), 0
	write(t, New(dir), sample("c2")) // the directory stays
	for range 3000 {
		add, del := New(dir), New(dir)
		wrote := make(chan error)
		go func() {
			err := add.Write(r)
			add.Close()
			wrote <- err
		}()
		got, err := del.ReadLocked(r.Network, r.Owner, r.Plugin)
		if err != nil {
			t.Fatal(err)
		}
		if got != nil {
			found++
		}
		if got != nil && !del.HasLock(del.File(r.Network, r.Owner, r.Plugin)) {
			t.Fatalf("taken without its lock, the %dth that was found", found)
		}
		if err := <-wrote; err != nil {
			t.Fatal(err)
		}
		del.Close()
		if err := add.Remove(r.Network, r.Owner, r.Plugin); err != nil {
			t.Fatal(err)
		}
	}
}
