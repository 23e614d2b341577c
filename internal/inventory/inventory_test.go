// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/internal/claim"
	"github.com/patchbay-net/patchbay/internal/life"
	"github.com/patchbay-net/patchbay/spec"
)

// Each row of the table, and what comes before it. Only rows whose verdict is wanted may look at all namespaces.
func TestJudge(t *testing.T) {
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	old, young := now.Add(-time.Hour), now.Add(-time.Second)
	there, gone, hidden := []Space{{Path: "there"}}, []Space{{Path: "gone"}}, []Space{{Path: "hidden"}}
	gc := Question{Now: now, Grace: time.Minute, Unseen: time.Minute}
	gc.Boot = now.Add(-24 * time.Hour)
	list := OfList(now, "crio", false)
	sweep := Question{Now: now, Grace: time.Minute, OnlyOwn: true, Own: list.Own}
	address := Question{OnlyAddress: true}
	named := spec.AttachmentKey{ContainerID: "c", IfName: "eth0"}
	ours, theirs := []*claim.Head{{Runtime: "crio", NetNS: "x"}}, []*claim.Head{{Runtime: "crio", NetNS: "x"}, {Runtime: "containerd", NetNS: "x"}}
	nowhere := []*claim.Head{{Runtime: "containerd"}}
	callers := func(pids ...int) (heads []*claim.Head) {
		for _, pid := range pids {
			heads = append(heads, &claim.Head{NetNS: "there", Caller: &life.Caller{PID: pid}})
		}
		return heads
	}
	forgets := func(s life.Suspect) (string, bool) {
		return "forgot", s.ID == "c" && s.NetNS == "there" && (s.Caller == nil || s.Caller.PID == 7)
	}
	before := gc.Boot.Add(-time.Hour)
	finds := func(what string) func() (string, error) { return func() (string, error) { return what, nil } }
	fails := func() (string, error) { return "", errors.New("no rights") }
	carries := func(link string) func(bool) (string, error) { return func(bool) (string, error) { return link, nil } }
	unread := func(bool) (string, error) { return fails() }
	yes := func() bool { return true }
	rows := map[Row]bool{}
	for _, c := range []struct {
		about string
		e     Evidence
		q     Question
		want  life.State
		row   Row
		why   string
	}{
		{"made after the list", Evidence{Since: now.Add(time.Second), Names: named, records: ours, Spaces: gone}, list, life.Unsure, Newer, "newer"},
		{"made after the list, by nobody known", Evidence{Since: now.Add(time.Second)}, list, life.Unsure, Newer, "newer"},
		{"dead, of another runtime, in a sweep", Evidence{Since: old, Names: named, records: theirs, Spaces: gone}, sweep, life.Unsure, NotOwn, "another runtime's"},
		{"dead, of nobody known, in a sweep", Evidence{Since: old, Spaces: gone}, sweep, life.Unsure, NotOwn, ""},
		{"not on its runtime's list, and alive", Evidence{Since: old, Names: named, records: ours, Spaces: there, Pair: carries("veth1")}, list, life.Dead, Unlisted, "lacks it"},
		{"of another runtime, alive", Evidence{Since: old, Names: named, records: theirs, Spaces: there}, list, life.Alive, Exists, "there exists"},
		{"of another runtime, gone", Evidence{Since: old, Names: named, records: theirs, Spaces: gone}, list, life.Dead, Gone, "gone is gone"},
		{"of another runtime, one is there", Evidence{Since: old, Names: named, records: theirs, Spaces: append(gone, there...)}, list, life.Alive, Exists, ""},
		{"of another runtime, hidden", Evidence{Since: old, Names: named, records: theirs, Spaces: hidden}, list, life.Unsure, Doubtful, "another runtime made it"},
		{"of another runtime, gone, but its pair carries", Evidence{Since: old, Names: named, records: theirs, Spaces: gone, Pair: carries("veth1")}, list, life.Alive, PairInUse, "veth1 carries"},
		{"of another runtime, gone, and a record without a namespace", Evidence{Since: old, Names: named, records: append(theirs, nowhere...), Spaces: []Space{{"gone", &life.Mark{}}}}, list, life.Dead, Gone, ""},
		{"of another runtime, which found no namespace at the path", Evidence{Since: old, Names: named, records: nowhere, Spaces: gone}, list, life.Unsure, Untraced, ""},
		{"of another runtime, without a namespace", Evidence{Since: old, Names: named, records: theirs}, list, life.Unsure, Untraced, ""},
		{"without a record, its pair carries", Evidence{Pair: carries("veth1")}, list, life.Alive, PairInUse, "veth1 carries"},
		{"without a record, its pair unread", Evidence{Pair: unread}, list, life.Alive, PairInUse, "no rights"},
		{"without a record, in use here", Evidence{Pair: carries(""), Here: finds("ns")}, list, life.Unsure, HasAddress, "in use in ns"},
		{"without a record, namespaces unread", Evidence{Here: fails}, list, life.Unsure, Unrecorded, "no rights"},
		{"without a record", Evidence{Pair: carries(""), Here: finds("")}, list, life.Dead, Unrecorded, "nothing of it is in use"},
		{"dead, in a sweep", Evidence{Since: old, Names: named, records: ours, Spaces: gone}, sweep, life.Dead, Gone, ""},
		{"young, in a sweep", Evidence{Since: young, Names: named, records: ours, Spaces: gone}, sweep, life.Unsure, Young, "1s old"},
		{"alive and young", Evidence{Since: young, Spaces: there}, gc, life.Alive, Exists, ""},
		{"by everyone's list, of another runtime, alive", Evidence{Since: old, Names: named, records: theirs, Spaces: there}, OfList(now, "crio", true), life.Dead, Unlisted, ""},
		{"without a record, but cached by the caller", Evidence{Since: old, Names: named, Cached: true, Spaces: there}, list, life.Dead, Unlisted, ""},
		{"a torn record, with names", Evidence{Since: old, Names: named, records: []*claim.Head{nil}}, list, life.Dead, Unlisted, ""},
		{"a torn record, without names", Evidence{Since: old, records: []*claim.Head{nil}, Pair: carries("veth1")}, list, life.Alive, PairInUse, ""},
		{"of a runtime without a name", Evidence{Since: old, Names: named, records: []*claim.Head{{}}, Spaces: there}, list, life.Alive, Exists, ""},
		{"without a record, by everyone's list, in use here", Evidence{Here: finds("ns")}, OfList(now, "crio", true), life.Dead, Unrecorded, ""},
		{"forgotten", Evidence{Since: old, Names: named, Pod: true, records: callers(7), Spaces: there, Forgotten: forgets, Pair: carries("veth1")}, gc, life.Dead, Gone, "forgot"},
		{"forgotten, young", Evidence{Since: young, Names: named, Pod: true, records: callers(7), Spaces: there, Forgotten: forgets}, gc, life.Unsure, Young, ""},
		{"forgotten, but a later caller lives", Evidence{Since: old, Names: named, Pod: true, records: callers(7, 8), Spaces: there, Forgotten: forgets}, gc, life.Alive, Exists, ""},
		{"forgotten, but a record has no caller", Evidence{Since: old, Names: named, Pod: true, records: append(callers(7), &claim.Head{}), Spaces: there, Forgotten: forgets}, gc, life.Alive, Exists, ""},
		{"forgotten, but a record is torn", Evidence{Since: old, Names: named, Pod: true, records: append(callers(7), nil), Spaces: there, Forgotten: forgets}, gc, life.Alive, Exists, ""},
		{"forgotten, of no pod", Evidence{Since: old, Names: named, Remains: Result, Spaces: there, Forgotten: forgets}, gc, life.Alive, Exists, ""},
		{"forgotten, only cached", Evidence{Since: old, Names: named, Pod: true, Remains: Result, Spaces: there, Forgotten: forgets}, gc, life.Dead, Gone, "forgot"},
		{"forgotten, cached and more", Evidence{Since: old, Names: named, Pod: true, Spaces: there, Forgotten: forgets}, gc, life.Alive, Exists, ""},
		{"listed", Evidence{Since: old, Spaces: gone, Lists: Yes}, gc, life.Unsure, Listed, ""},
		{"listed, but only its driver must hear", Evidence{Since: old, Lists: Yes, Pending: "lab"}, gc, life.Dead, Ended, "lab"},
		{"alive, but only its driver must hear", Evidence{Since: old, Spaces: there, Pending: "lab"}, gc, life.Dead, Ended, "lab"},
		{"of the driver", Evidence{Since: old, Spaces: gone, ByDriver: true}, gc, life.Unsure, OfDriver, ""},
		{"ahead", Evidence{Since: now.Add(time.Hour), Spaces: gone}, gc, life.Unsure, Ahead, "1h0m0s ahead"},
		{"ahead, without grace", Evidence{Since: now.Add(time.Hour), Spaces: gone}, Question{Now: now}, life.Dead, Gone, ""},
		{"without a date, seen now", Evidence{Seen: func() time.Time { return now }, Spaces: gone}, gc, life.Unsure, Young, "0s old"},
		{"without a date, seen before", Evidence{Seen: func() time.Time { return old }, Spaces: gone}, gc, life.Dead, Gone, ""},
		{"gone and hidden", Evidence{Since: old, Spaces: append(gone, hidden...)}, gc, life.Unsure, Doubtful, "hidden"},
		{"from before the boot", Evidence{Since: before, Spaces: hidden, InUse: finds("")}, gc, life.Dead, Earlier, "booted"},
		{"from before the boot, in use", Evidence{Since: old, Outlived: true, InUse: finds("/proc/7")}, gc, life.Unsure, HasAddress, "in use in /proc/7"},
		{"from before the boot, unread", Evidence{Since: old, Outlived: true, InUse: fails}, gc, life.Unsure, Earlier, "no rights"},
		{"from before the boot, but in the kernel", Evidence{Since: before, Names: named, ThisBoot: true}, gc, life.Unsure, Untraced, ""},
		{"reserved before the boot, with a record", Evidence{Since: old, Names: named, Outlived: true, records: ours}, gc, life.Unsure, Untraced, ""},
		{"only its address, and another one may be at its path", Evidence{Outlived: true, Spaces: there, InUse: finds("")}, address, life.Dead, Earlier, ""},
		{"only its address, and it is in use", Evidence{Outlived: true, Spaces: there, InUse: finds("/proc/7")}, address, life.Unsure, HasAddress, ""},
		{"only its address, but a record says where it is", Evidence{Outlived: true, records: ours, Spaces: there}, address, life.Alive, Exists, ""},
		{"only its address, of this boot", Evidence{Spaces: there}, address, life.Alive, Exists, ""},
		{"not listed", Evidence{Since: old, Names: named, Lists: No, InUse: finds("")}, gc, life.Dead, NotListed, "does not list it"},
		{"not listed, hidden", Evidence{Since: old, Names: named, Lists: No, Spaces: hidden}, gc, life.Unsure, Doubtful, ""},
		{"elements, blind", Evidence{Since: old, Names: named, Remains: Elements, SeesAll: func() bool { return false }}, gc, life.Unsure, OnlyRules, "does not see all"},
		{"elements", Evidence{Since: old, Names: named, Remains: Elements, SeesAll: yes, InUse: finds("")}, gc, life.Dead, OnlyRules, ""},
		{"masquerades", Evidence{Since: old, Names: named, Remains: Masquerades, InUse: finds("")}, gc, life.Dead, OnlyRules, ""},
		{"torn", Evidence{Since: old, Remains: Torn, SeesAll: yes, Marked: finds("")}, gc, life.Dead, OnlyTorn, "no namespace has a link"},
		{"torn, its link is there", Evidence{Since: old, Remains: Torn, Marked: finds("/proc/8")}, gc, life.Unsure, OnlyTorn, "its link is in /proc/8"},
		{"torn, unread", Evidence{Since: old, Remains: Torn, Marked: fails}, gc, life.Unsure, OnlyTorn, "no rights"},
		{"torn, without marks", Evidence{Since: old, Remains: Torn, Marked: finds(""), Unmarked: "/run/x"}, gc, life.Unsure, OnlyTorn, "delete /run/x"},
		{"torn, blind", Evidence{Since: old, Remains: Torn, Marked: finds(""), SeesAll: func() bool { return false }}, gc, life.Unsure, OnlyTorn, "does not see all"},
		{"nameless", Evidence{Since: old, Lists: No}, gc, life.Unsure, Nameless, "owner is unknown"},
		{"untraced", Evidence{Since: old, Names: named}, gc, life.Unsure, Untraced, "--from"},
	} {
		c.e.At = func(path string, _ *life.Mark) (life.State, string) {
			switch path {
			case "there":
				return life.Alive, "its namespace there exists"
			case "hidden":
				return life.Unsure, "hidden is no namespace here"
			}
			return life.Dead, "its namespace " + path + " is gone"
		}
		v := Judge(&c.e, c.q)
		rows[v.Row] = true
		if v.State != c.want || v.Row != c.row || !strings.Contains(v.Why, c.why) || v.Why == "" {
			t.Errorf("%s: %v by row %q, %q; want %v by row %q", c.about, v.State, v.Row, v.Why, c.want, c.row)
		}
		if forgotten := c.why == "forgot"; forgotten != (v.Forgotten == "there") {
			t.Errorf("%s: forgotten at %q", c.about, v.Forgotten)
		}
		if v.Young() != slices.Contains([]Row{Ahead, Young}, c.row) {
			t.Errorf("%s: young is %v", c.about, v.Young())
		}
	}
	for _, r := range []Row{
		Newer, NotOwn, Unlisted, Exists, PairInUse, HasAddress, Listed, OfDriver, Ahead, Young, Ended, Gone, Earlier, Doubtful, NotListed,
		OnlyRules, OnlyTorn, Unrecorded, Nameless, Untraced,
	} {
		if !rows[r] {
			t.Errorf("no case reaches row %q", r)
		}
	}
}

// Which namespaces traces name. A mark tells more than a path, and a trace without a path tells nothing.
func TestSpace(t *testing.T) {
	first, second := &life.Mark{Ino: 1}, &life.Mark{Ino: 2}
	for about, c := range map[string]struct{ says, want []Space }{
		"nothing":                      {[]Space{{"", nil}, {"", first}}, nil},
		"a path twice":                 {[]Space{{"a", nil}, {"a", nil}}, []Space{{"a", nil}}},
		"a mark twice":                 {[]Space{{"a", first}, {"a", &life.Mark{Ino: 1}}}, []Space{{"a", first}}},
		"a mark, and then its path":    {[]Space{{"a", first}, {"a", nil}}, []Space{{"a", first}}},
		"a path, and then its mark":    {[]Space{{"a", nil}, {"b", nil}, {"a", first}}, []Space{{"b", nil}, {"a", first}}},
		"two namespaces at one path":   {[]Space{{"a", first}, {"a", second}}, []Space{{"a", first}, {"a", second}}},
		"one namespace, and elsewhere": {[]Space{{"a", first}, {"b", nil}}, []Space{{"a", first}, {"b", nil}}},
	} {
		var e Evidence
		for _, s := range c.says {
			e.Space(s.Path, s.Mark)
		}
		if !slices.Equal(e.Spaces, c.want) {
			t.Errorf("%s: %v, want %v", about, e.Spaces, c.want)
		}
	}
}

// What a record adds. One that cannot be read has only a date.
func TestRecord(t *testing.T) {
	old, now := time.Unix(1, 0), time.Unix(2, 0)
	var e Evidence
	e.Record(&claim.Head{ContainerID: "c", IfName: "eth0", NetNS: "a", Pod: "ns/pod"}, now)
	e.Record(nil, old)
	if e.Names != (spec.AttachmentKey{ContainerID: "c", IfName: "eth0"}) || !e.Pod || !e.Since.Equal(now) || len(e.records) != 2 || len(e.Spaces) != 1 {
		t.Errorf("%+v", e)
	}
}

// A GC waits for a pair only if the kernel may be about to delete it.
func TestSettling(t *testing.T) {
	gc, list := Question{}, OfList(time.Now(), "crio", false)
	for about, c := range map[string]struct {
		state life.State
		why   string
		q     Question
		waits bool
	}{
		"gone":                              {life.Dead, "gone", list, true},
		"perhaps hidden":                    {life.Unsure, "hidden", gc, false},
		"nobody says where":                 {life.Unsure, "", gc, true},
		"nobody says where, by a GC's list": {life.Unsure, "", list, false},
	} {
		asked := 0
		e := Evidence{Settling: &Settling{Time: time.Hour}, Pair: func(ending bool) (string, error) { // its namespace has ended
			asked++
			return map[bool]string{true: "veth1"}[ending && asked < 3], nil
		}}
		link, err := e.pair(c.q, Verdict{State: c.state, Why: c.why})
		if err != nil || link != "" || (asked > 2) != c.waits {
			t.Errorf("%s: %q after %d, %v", about, link, asked, err)
		}
	}
	e := Evidence{Settling: &Settling{Time: time.Nanosecond}, Pair: func(bool) (string, error) { return "veth1", nil }}
	if link, err := e.pair(gc, Verdict{}); link == "" || err != nil {
		t.Errorf("of a pair that stays: %q, %v", link, err)
	}
}

// The order of a removal, and what runs after a step that fails.
func TestRemove(t *testing.T) {
	const stays = -2 // the link stays, and that is no error
	all := []Part{Address, Link, Rules, Through, Rules}
	for _, c := range []struct {
		fails Part
		want  []Part
	}{
		{stays, []Part{Rules, Rules, Through, Link}},
		{-1, []Part{Rules, Rules, Through, Link, Address}},
		{Rules, []Part{Rules, Rules, Link}},
		{Through, []Part{Rules, Rules, Through, Link}},
		{Link, []Part{Rules, Rules, Through, Link}},
		{Address, []Part{Rules, Rules, Through, Link, Address}},
	} {
		var did []Part
		var steps []Step
		for _, p := range all {
			steps = append(steps, Step{p, func() error {
				did = append(did, p)
				if c.fails == stays && p == Link {
					return ErrStays
				}
				if p == c.fails {
					return errors.New("busy")
				}
				return nil
			}})
		}
		if err := Remove(steps...); (err != nil) != (c.fails >= 0) || !slices.Equal(did, c.want) {
			t.Errorf("%v fails: %v, %v; want %v", c.fails, did, err, c.want)
		}
	}
}
