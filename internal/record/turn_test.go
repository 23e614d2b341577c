// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package record

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/patchbay-net/patchbay/internal/claim"
	"github.com/patchbay-net/patchbay/internal/life"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/spec"
)

// ofPod writes the records of a pod's attachment. Its namespace is at path.
func ofPod(t testing.TB, s *Dir, id, path string, mark *life.Mark) owner.Key {
	t.Helper()
	r := sample(id)
	r.NetNS, r.NetNSMark, r.Pod = path, mark, "default/"+id
	for _, plugin := range []string{"host-local", "ptp", "portmap"} {
		r.Plugin = plugin
		if err := s.Write(r); err != nil {
			t.Fatal(err)
		}
	}
	return r.Owner
}

func known(spec.AttachmentKey, bool) bool { return false }

const ownNS = "/proc/self/ns/net"

// markOwn returns the mark of ownNS, and keeps the namespace's inode in use.
func markOwn(t testing.TB) *life.Mark {
	t.Helper()
	f, err := os.Open(ownNS)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() }) //nolint:errcheck // read only
	mark := life.MarkOf(ownNS, "boot", life.CookieOf)
	if mark == nil {
		t.Fatal("no mark")
	}
	return mark
}

// Each call examines at most four attachments. All attachments get their turn.
func TestSuspectsInTurn(t *testing.T) {
	s := New(t.TempDir())
	const pods = 50
	missing := filepath.Join(t.TempDir(), "missing")
	seen := map[owner.Key]int{}
	for n := range pods {
		ofPod(t, s, fmt.Sprint(n), missing, &life.Mark{Dev: 1})
	}
	s.Close()
	for range pods {
		owners, err := New(s.Path).Suspects("pods", filepath.Dir(missing), 4, known)
		if err != nil || len(owners) > 4 {
			t.Fatalf("%v, %v", owners, err)
		}
		for _, o := range owners {
			seen[o]++
		}
	}
	if len(seen) != pods {
		t.Errorf("%d calls saw %d of %d", pods, len(seen), pods)
	}
	for n := range pods {
		for _, plugin := range []string{"host-local", "ptp", "portmap"} {
			if err := s.Remove("pods", owner.Of("pods", fmt.Sprint(n), "eth0"), plugin); err != nil {
				t.Fatal(err)
			}
		}
	}
	if owners, err := s.Suspects("pods", filepath.Dir(missing), 4, known); len(owners) > 0 || err != nil {
		t.Errorf("without records: %v, %v", owners, err)
	}
	if _, err := os.Lstat(filepath.Join(s.Path, claim.Turns)); err == nil {
		t.Error("the turns outlive the records")
	}
}

// An attachment is suspect only if it is a pod's and its namespace is not where it was. encode
// writes the text that isSuspect looks for.
func TestSuspects(t *testing.T) {
	there := markOwn(t)
	other := *there
	other.Ino++
	for name, c := range map[string]struct {
		path, dir string
		mark      *life.Mark
		want      bool
	}{
		"there":           {path: ownNS, dir: filepath.Dir(ownNS), mark: there},
		"another one":     {path: ownNS, dir: filepath.Dir(ownNS), mark: &other, want: true},
		"missing":         {path: "/proc/self/ns/missing", dir: filepath.Dir(ownNS), mark: there, want: true},
		"other directory": {path: "/proc/self/ns/missing", dir: "/run/netns", mark: there},
		"without a mark":  {path: ownNS, dir: filepath.Dir(ownNS), want: true},
	} {
		s := New(t.TempDir())
		o := ofPod(t, s, "c1", c.path, c.mark)
		got, err := s.Suspects("pods", c.dir, 4, known)
		if err != nil || slices.Contains(got, o) != c.want {
			t.Errorf("%s: %v, %v", name, got, err)
		}
		s.Close()
	}
	s := New(t.TempDir())
	r := sample("c1") // not of a pod
	r.NetNS = "/run/netns/missing"
	if err := s.Write(r); err != nil {
		t.Fatal(err)
	}
	if got, err := s.Suspects("pods", "/run/netns", 4, known); len(got) > 0 || err != nil {
		t.Errorf("not of a pod: %v, %v", got, err)
	}
	s.Close()
}

// If the stored position is damaged or beyond the end, Suspects starts at the beginning. Files that
// are no records are skipped.
func TestSuspectsWithDamage(t *testing.T) {
	s := New(t.TempDir())
	o := ofPod(t, s, "c1", "/run/netns/missing", &life.Mark{Dev: 1})
	s.Close()
	for _, name := range []string{"x", "torn~", string(o) + claim.Suffix} {
		if err := os.WriteFile(filepath.Join(s.Path, claim.Attachments, "pods", name), []byte("{"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(s.Path, claim.Turns), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, at := range []string{"", "x", "-5", "999", "99999999999999999999999", fmt.Sprintf(positionFormat, 1<<62)} {
		if err := os.WriteFile(s.TurnPath("pods"), []byte(at), 0o600); err != nil {
			t.Fatal(err)
		}
		var seen []owner.Key
		for range 3 {
			got, err := New(s.Path).Suspects("pods", "/run/netns", 4, known)
			if err != nil {
				t.Errorf("%q: %v", at, err)
			}
			seen = append(seen, got...)
		}
		if !slices.Contains(seen, o) {
			t.Errorf("from %q the record is never seen", at)
		}
	}
	if _, err := os.Lstat(filepath.Join(s.Path, claim.Attachments, "pods", string(o)+claim.Suffix)); err == nil {
		t.Error("the claim of a killed gc stays")
	}
}

// BenchmarkSuspects measures the search that each ADD and DEL of a pod makes.
func BenchmarkSuspects(b *testing.B) {
	s := New(b.TempDir())
	mark := markOwn(b)
	for n := range 100 {
		ofPod(b, s, fmt.Sprint(n), ownNS, mark)
	}
	s.Close()
	for b.Loop() {
		if owners, err := s.Suspects("pods", filepath.Dir(ownNS), 3, known); len(owners) > 0 || err != nil {
			b.Fatal(owners, err)
		}
	}
}
