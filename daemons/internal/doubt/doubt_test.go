// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package doubt

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"
)

// version is an object of these tests.
type version int

// newTable returns a table with a clock that the test moves.
func newTable(keep time.Duration) (*Table[version], *time.Time) {
	now := time.Unix(1000, 0)
	return &Table[version]{Keep: keep, Now: func() time.Time { return now }}, &now
}

// text returns what a table knows: what the source has, then what is missing, then what was deleted, each sorted.
func text(t *Table[version]) string {
	var out []string
	for mark, list := range map[string]map[string]version{"": t.present, "?": objects(t.missing), "-": objects(t.deleted)} {
		for key, v := range list {
			out = append(out, fmt.Sprintf("%s%s%d", mark, key, v))
		}
	}
	slices.SortFunc(out, func(a, b string) int { return strings.Compare(strings.TrimLeft(a, "?-"), strings.TrimLeft(b, "?-")) })
	return strings.Join(out, " ")
}

func objects(past map[string]Past[version]) map[string]version {
	out := map[string]version{}
	for key, p := range past {
		out[key] = p.Object
	}
	return out
}

func newer(missing, there version) bool { return missing > there }

// Each transition of an object between four states: the source has it (a1), it is missing (?a1), it was deleted (-a1),
// it is unknown ("").
func TestTransitions(t *testing.T) {
	there := func(t *Table[version]) { t.Put("a", 1) }
	missing := func(t *Table[version]) { t.Put("a", 1); t.Replace(nil, false) }
	deleted := func(t *Table[version]) { t.Put("a", 1); t.Delete("a") }
	unknown := func(*Table[version]) {}
	put := func(t *Table[version]) bool { return t.Put("a", 1) }
	other := func(t *Table[version]) bool { return t.Put("a", 2) }
	remove := func(t *Table[version]) bool { return t.Delete("a") }
	reading := func(follows bool, a ...version) func(t *Table[version]) bool {
		return func(t *Table[version]) bool {
			all := map[string]version{}
			for _, v := range a {
				all["a"] = v
			}
			return t.Replace(all, follows)
		}
	}
	for _, c := range []struct {
		name    string
		before  func(*Table[version])
		do      func(*Table[version]) bool
		after   string
		changed bool
	}{
		{"there, put again", there, put, "a1", false},
		{"there, changed", there, other, "a2", true},
		{"there, deleted", there, remove, "-a1", true},
		{"there, read", there, reading(true, 1), "a1", false},
		{"there, read changed", there, reading(false, 2), "a2", true},
		{"there, lacked by what follows", there, reading(true), "", true},
		{"there, lacked", there, reading(false), "?a1", true},
		{"missing, put", missing, put, "a1", true},
		{"missing, put changed", missing, other, "a2", true},
		{"missing, deleted", missing, remove, "-a1", true},
		{"missing, read", missing, reading(true, 1), "a1", true},
		{"missing, read by what does not follow", missing, reading(false, 2), "a2", true},
		{"missing, lacked by what follows", missing, reading(true), "?a1", false},
		{"missing, lacked again", missing, reading(false), "?a1", false},
		{"deleted, put", deleted, put, "a1", true},
		{"deleted, deleted", deleted, remove, "-a1", false},
		{"deleted, read", deleted, reading(false, 2), "a2", true},
		{"deleted, lacked", deleted, reading(false), "-a1", false},
		{"unknown, put", unknown, put, "a1", true},
		{"unknown, deleted", unknown, remove, "", false},
		{"unknown, read", unknown, reading(false, 1), "a1", true},
		{"unknown, lacked", unknown, reading(false), "", false},
	} {
		table, _ := newTable(time.Hour)
		c.before(table)
		if changed := c.do(table); text(table) != c.after || changed != c.changed {
			t.Errorf("%s: %q, changed %v; want %q, %v", c.name, text(table), changed, c.after, c.changed)
		}
	}
}

// A source that went back has an older object. The newer one counts until the source has it, an event comes, or it is dropped.
func TestNewer(t *testing.T) {
	for name, c := range map[string]struct {
		do  func(*Table[version])
		all version
	}{
		"nothing":               {func(*Table[version]) {}, 5},
		"the same again":        {func(t *Table[version]) { t.Replace(map[string]version{"a": 3}, true) }, 5},
		"the source catches up": {func(t *Table[version]) { t.Replace(map[string]version{"a": 5}, true) }, 5},
		"an event":              {func(t *Table[version]) { t.Put("a", 4) }, 4},
		"it is dropped":         {func(t *Table[version]) { t.Drop(func(version) bool { return true }) }, 3},
	} {
		table, _ := newTable(0)
		table.Newer = newer
		table.Put("a", 5)
		table.Replace(map[string]version{"a": 3}, false)
		c.do(table)
		if all := table.All(); len(all) != 1 || all[0] != c.all {
			t.Errorf("%s: %v, want %d", name, all, c.all)
		}
	}
	table, _ := newTable(0)
	table.Newer = newer
	table.Put("a", 5)
	if table.Replace(map[string]version{"a": 3}, true); text(table) != "a3" {
		t.Errorf("the source that follows says %q", text(table))
	}
}

// The hour of a missing object begins once. One that has returned gets another hour.
func TestExpire(t *testing.T) {
	table, now := newTable(time.Hour)
	table.Put("a", 1)
	table.Put("b", 1)
	table.Put("c", 1)
	pass := func(d time.Duration, want string) {
		t.Helper()
		*now = now.Add(d)
		if table.Expire(); text(table) != want {
			t.Errorf("%v: %q, want %q", now.Unix(), text(table), want)
		}
	}
	table.Replace(map[string]version{"c": 1}, false)
	table.Delete("c")
	pass(59*time.Minute, "?a1 ?b1 -c1")
	table.Replace(map[string]version{"a": 1}, false)
	table.Replace(nil, false)
	pass(time.Minute, "?a1")
	pass(58*time.Minute, "?a1")
	pass(time.Minute, "")
	forever, now := newTable(0)
	forever.Put("a", 1)
	forever.Put("b", 1)
	forever.Replace(nil, false)
	forever.Delete("b")
	*now = now.Add(1000 * time.Hour)
	if forever.Expire(); text(forever) != "?a1" {
		t.Errorf("%q", text(forever))
	}
}

// Drop judges all missing objects before it removes one.
func TestDrop(t *testing.T) {
	table, _ := newTable(0)
	for _, key := range []string{"a", "b"} {
		table.Put(key, 1)
	}
	table.Put("c", 2)
	table.Replace(map[string]version{"c": 2}, false)
	table.Drop(func(version) bool { return len(table.Missing()) == 2 })
	if text(table) != "c2" {
		t.Errorf("%q", text(table))
	}
}

// A new run continues with the objects that the last one saved. Its clock may have been set back.
func TestRestore(t *testing.T) {
	table, now := newTable(time.Hour)
	past := func(at time.Time) Past[version] { return Past[version]{7, at} }
	saved := map[string]version{"a": 1, "b": 7}
	table.Restore(saved, map[string]Past[version]{"b": past(now.Add(-time.Minute))}, map[string]Past[version]{"c": past(now.Add(time.Minute))})
	if text(table) != "a1 ?b7 -c7" || len(saved) != 2 {
		t.Errorf("%q of %v", text(table), saved)
	}
	if got, want := table.Missing()[0].At, now.Add(-time.Minute); !got.Equal(want) {
		t.Errorf("missing since %v, want %v", got, want)
	}
	if got := table.Deleted()[0].At; !got.Equal(*now) {
		t.Errorf("deleted at %v, want %v", got, now)
	}
}

// What a table returns is the caller's, in the order of the keys.
func TestRead(t *testing.T) {
	table, _ := newTable(time.Hour)
	for i, key := range []string{"d", "c", "b", "a"} {
		table.Put(key, version(i))
	}
	table.Delete("d")
	table.Replace(map[string]version{"a": 3, "c": 1}, false)
	for what, got := range map[string]any{
		"[3 2 1]": table.All(), "[3 1]": table.Present(), "[2]": Objects(table.Missing()), "[0]": Objects(table.Deleted()),
		"[a b c]": slices.Sorted(maps.Keys(table.AllByKey())),
	} {
		if fmt.Sprint(got) != what {
			t.Errorf("%v, want %s", got, what)
		}
	}
	_, known := table.Get("b")
	_, has := table.GetPresent("b")
	_, gone := table.Recall("d")
	if _, unknown := table.Get("d"); !known || has || !gone || unknown {
		t.Errorf("known %v, has %v, gone %v, unknown %v", known, has, gone, unknown)
	}
	if table.AllByKey()["x"] = 1; len(table.All()) != 3 {
		t.Errorf("%v", table.All())
	}
}
