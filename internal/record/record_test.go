// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/patchbay-net/patchbay/internal/claim"
	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/owner"
)

func sample(id string) *Record {
	return &Record{
		Plugin: "bridge", Owner: owner.Of("pods", id, "eth0"), Network: "pods", ContainerID: id, IfName: "eth0",
		NetNS: "/run/netns/x", Bridge: "cni0", DataDir: "/d", Links: []string{"veth0"}, Shared: []string{"masq-10.0.0.0/8"},
		Elements: []nft.Element{{Set: "owners", Key: []byte("k"), Data: []byte{1}, Comment: "c"}},
	}
}

func TestWriteReadRemove(t *testing.T) {
	s := New(t.TempDir())
	want := sample("c1")
	if err := s.Write(want); err != nil {
		t.Fatal(err)
	}
	got, err := s.Read("pods", want.Owner, "bridge")
	if err != nil || !reflect.DeepEqual(got, want) {
		t.Fatalf("read %+v, %v; want %+v", got, err, want)
	}
	if fi, err := os.Stat(s.File("pods", want.Owner, "bridge")); err != nil || fi.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v; a record is root's alone", fi.Mode(), err)
	}
	for range 2 {
		if err := s.Remove("pods", want.Owner, "bridge"); err != nil {
			t.Error(err)
		}
	}
	if left, err := os.ReadDir(filepath.Join(s.Path, claim.Attachments)); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
	if got, err := s.Read("pods", want.Owner, "bridge"); got != nil || err != nil {
		t.Errorf("a record that is not there: %v, %v", got, err)
	}
}

// The record of a container holds ten thousand published ports, and Write refuses a record
// that could not be read again.
func TestLargeRecord(t *testing.T) {
	s, want := New(t.TempDir()), sample("c1")
	want.Elements = slices.Repeat([]nft.Element{{Set: "dnat4", Key: make([]byte, 40), Data: make([]byte, 40), Comment: "c"}}, 20000)
	if err := s.Write(want); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Read("pods", want.Owner, "bridge"); err != nil || len(got.Elements) != 20000 {
		t.Errorf("read %v", err)
	}
	large := sample("c2")
	large.DataDir = strings.Repeat("x", claim.MaxFile)
	if err := s.Write(large); err == nil {
		t.Error("a record was written that cannot be read")
	}
	if got, err := s.Read("pods", large.Owner, "bridge"); got != nil || err != nil {
		t.Errorf("of it there is %v", err)
	}
}

func TestListReportsBrokenOnesBesideTheGood(t *testing.T) {
	s := New(t.TempDir())
	for _, id := range []string{"c1", "c2"} {
		if err := s.Write(sample(id)); err != nil {
			t.Fatal(err)
		}
	}
	for name, content := range map[string]string{
		"empty.bridge": "", "torn.bridge": `{"schema":1,`, "newer.bridge": `{"schema":2,"owner":"nczf7ieoql4ijph"}`, "half.bridge.1~": "x",
	} {
		if err := os.WriteFile(filepath.Join(s.Path, claim.Attachments, "pods", name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	list, err := s.List("")
	if len(list) != 2 || !errors.Is(err, ErrBroken) {
		t.Errorf("%d records, error %v; want 2 and ErrBroken", len(list), err)
	}
}

// Write does not follow a link planted at the record's path.
func TestPlantedLinkIsNotFollowed(t *testing.T) {
	s := New(t.TempDir())
	r := sample("c1")
	if err := s.Write(r); err != nil {
		t.Fatal(err)
	}
	victim := filepath.Join(t.TempDir(), "victim")
	if err := os.WriteFile(victim, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	path := s.File("pods", r.Owner, "bridge")
	if err := s.Remove("pods", r.Owner, "bridge"); err != nil {
		t.Fatal(err)
	}
	if err := s.Write(sample("c2")); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(victim, path); err != nil {
		t.Fatal(err)
	}
	if err := s.Write(r); err != nil {
		t.Error(err)
	}
	if data, _ := os.ReadFile(victim); string(data) != "precious" {
		t.Errorf("the link's target now holds %q", data)
	}
}

// DEL and GC delete paths that a record names. So a record must belong to the attachment in its
// own path.
func TestAnotherAttachmentsRecordIsBroken(t *testing.T) {
	s := New(t.TempDir())
	r := sample("c1")
	if err := s.Write(r); err != nil {
		t.Fatal(err)
	}
	for what, change := range map[string]func(*Record){
		"id": func(r *Record) { r.ContainerID = "../../c1" }, "interface": func(r *Record) { r.IfName = "../x" },
		"network": func(r *Record) { r.Network = ".." }, "plugin": func(r *Record) { r.Plugin = "ptp" },
		"owner": func(r *Record) { r.Owner = owner.Of("pods", "c2", "eth0") },
	} {
		bad := *r
		change(&bad)
		data, err := json.Marshal(&bad)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(s.File("pods", r.Owner, "bridge"), data, 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := s.Read("pods", r.Owner, "bridge"); !errors.Is(err, ErrBroken) || got != nil {
			t.Errorf("another %s: %+v, %v", what, got, err)
		}
	}
}

// Another user planted directories. We neither read nor write through them.
func TestPlantedDirectories(t *testing.T) {
	for _, at := range []string{claim.Attachments, claim.Attachments + "/pods", shared, shared + "/" + hex.EncodeToString([]byte(fact().Name))} {
		s, outside := New(t.TempDir()), t.TempDir()
		if err := os.MkdirAll(filepath.Dir(filepath.Join(s.Path, at)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(outside, filepath.Join(s.Path, at)); err != nil {
			t.Fatal(err)
		}
		r := sample("c1")
		var err error
		if strings.HasPrefix(at, claim.Attachments) {
			_, rerr := s.Read("pods", r.Owner, "bridge")
			err = errors.Join(s.Write(r), rerr, s.Remove("pods", r.Owner, "bridge"))
		} else {
			err = errors.Join(s.Hold(t.Context(), fact(), r.Owner, nil), s.Release(t.Context(), fact().Name, r.Owner, func(Fact) error { return nil }))
		}
		if !errors.Is(err, durable.ErrNotOurs) {
			t.Errorf("%s is a link: %v", at, err)
		}
		if left, err := os.ReadDir(outside); err != nil || len(left) > 0 {
			t.Errorf("%s is a link, written outside: %v, %v", at, left, err)
		}
	}
}

func fact() Fact {
	return Fact{Name: "masq-10.0.0.0/8", Elements: []nft.Element{{Set: "masq4", Key: []byte{10, 0, 0, 0}}}}
}

func TestTheLastHolderRemoves(t *testing.T) {
	s := New(t.TempDir())
	a, b := owner.Of("n", "a", "e"), owner.Of("n", "b", "e")
	for _, o := range []owner.Key{a, b, b} {
		if err := s.Hold(t.Context(), fact(), o, nil); err != nil {
			t.Fatal(err)
		}
	}
	removed := 0
	remove := func(f Fact) error {
		if !reflect.DeepEqual(f, fact()) {
			t.Errorf("removing %+v", f)
		}
		removed++
		return nil
	}
	for i, o := range []owner.Key{a, a, b, b} {
		if err := s.Release(t.Context(), fact().Name, o, remove); err != nil {
			t.Fatal(err)
		}
		if want := i / 2; removed != want {
			t.Errorf("after release %d: removed %d times, want %d", i, removed, want)
		}
	}
	if left, err := os.ReadDir(filepath.Join(s.Path, shared)); err != nil || len(left) > 0 {
		t.Errorf("left: %v, %v", left, err)
	}
}

func TestFailedRemovalKeepsTheReference(t *testing.T) {
	s := New(t.TempDir())
	o := owner.Of("n", "a", "e")
	if err := s.Hold(t.Context(), fact(), o, nil); err != nil {
		t.Fatal(err)
	}
	busy := errors.New("busy")
	if err := s.Release(t.Context(), fact().Name, o, func(Fact) error { return busy }); !errors.Is(err, busy) {
		t.Fatalf("release: %v", err)
	}
	removed := false
	if err := s.Release(t.Context(), fact().Name, o, func(Fact) error { removed = true; return nil }); err != nil || !removed {
		t.Errorf("second release: removed %v, %v", removed, err)
	}
}

func TestTornFactIsSurvived(t *testing.T) {
	s := New(t.TempDir())
	o := owner.Of("n", "a", "e")
	if err := s.Hold(t.Context(), fact(), o, nil); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(s.factDir(fact().Name), factFile), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, _, err := s.Facts(); !errors.Is(err, ErrBroken) {
		t.Errorf("listing reports %v", err)
	}
	if err := s.Release(t.Context(), fact().Name, o, func(Fact) error { return nil }); err != nil {
		t.Errorf("release: %v", err)
	}
	if err := s.Hold(t.Context(), fact(), o, nil); err != nil {
		t.Error(err)
	}
}

// A process was killed while it became or ceased to be a holder of a fact. The fact may have no
// holder then, and the next Release removes it.
func TestFactWithoutHoldersGoes(t *testing.T) {
	s := New(t.TempDir())
	o := owner.Of("n", "a", "e")
	for _, left := range []string{"refs", factFile, ""} {
		if err := s.Hold(t.Context(), fact(), o, nil); err != nil {
			t.Fatal(err)
		}
		dir := s.factDir(fact().Name)
		if err := os.RemoveAll(filepath.Join(dir, refs)); err != nil {
			t.Fatal(err)
		}
		if left == "refs" {
			if err := os.Mkdir(filepath.Join(dir, refs), 0o700); err != nil {
				t.Fatal(err)
			}
		}
		if left == "" {
			if err := os.Remove(filepath.Join(dir, factFile)); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.Release(t.Context(), fact().Name, o, func(Fact) error { return nil }); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("with %q left the fact stays: %v", left, err)
		}
	}
}

// A Hold fails. If the fact has no other holder, nothing of it is left.
func TestFailedHoldLeavesNothing(t *testing.T) {
	s := New(t.TempDir())
	tooLong := owner.Key(strings.Repeat("x", 300)) // no file can have such a name
	if err := s.Hold(t.Context(), fact(), tooLong, nil); err == nil {
		t.Fatal("no failure")
	}
	if _, err := os.Stat(s.factDir(fact().Name)); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the fact stays: %v", err)
	}
	o := owner.Of("n", "a", "e")
	if err := s.Hold(t.Context(), fact(), o, nil); err != nil {
		t.Fatal(err)
	}
	if err := s.Hold(t.Context(), fact(), tooLong, nil); err == nil {
		t.Fatal("no failure")
	}
	if holders, facts, err := s.Facts(); err != nil || len(facts) != 1 || !slices.Equal(holders[fact().Name], []owner.Key{o}) {
		t.Errorf("%v held by %v, %v", facts, holders, err)
	}
}

// gc found a fact without a holder. Since then it may have got one.
func TestReleaseByNobody(t *testing.T) {
	s := New(t.TempDir())
	o := owner.Of("n", "a", "e")
	if err := s.Hold(t.Context(), fact(), o, nil); err != nil {
		t.Fatal(err)
	}
	if err := s.Release(t.Context(), fact().Name, "", func(Fact) error { return errors.New("removed") }); err != nil {
		t.Fatal(err)
	}
	if holders, _, err := s.Facts(); err != nil || !slices.Equal(holders[fact().Name], []owner.Key{o}) {
		t.Errorf("held by %v, %v", holders, err)
	}
}

// Many holders come and go at once. Whenever there is a holder, the fact exists.
func TestHoldersRace(t *testing.T) {
	s := New(t.TempDir())
	var mu sync.Mutex
	standing := false
	var wg sync.WaitGroup
	for i := range 8 {
		o := owner.Of("n", fmt.Sprint(i), "e")
		wg.Go(func() {
			for range 100 {
				if err := s.Hold(t.Context(), fact(), o, nil); err != nil {
					t.Error(err)
				}
				mu.Lock()
				standing = true // like the ADD's transaction
				mu.Unlock()
				mu.Lock()
				if !standing {
					t.Error("removed while held")
				}
				mu.Unlock()
				err := s.Release(t.Context(), fact().Name, o, func(Fact) error {
					mu.Lock()
					standing = false
					mu.Unlock()
					return nil
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	if standing {
		t.Error("it stands although nobody holds it")
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte(`{"schema":1,"owner":"nczf7ieoql4ijph"}`))
	f.Add([]byte(``))
	f.Add([]byte(`{"remote":{"driver":{"name":"lab"},"ended":true,"interface":{"Address":"10.0.0.2/8"},"addresses":[{"address":""}]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		alone := new(Record) // any owner
		if json.Unmarshal(data, alone) == nil {
			d, err := alone.DriverOf()
			if err != nil && !errors.Is(err, ErrBroken) {
				t.Error(err)
			}
			if d != nil {
				for _, p := range d.Prefixes() {
					if !p.IsValid() {
						t.Errorf("%q: an address that is none", data)
					}
				}
			}
		}
		path := filepath.Join(t.TempDir(), "r")
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		r, err := read(path)
		if err == nil && (r.Schema > claim.Schema || !r.Owner.Valid()) {
			t.Errorf("accepted %q", data)
		}
	})
}
