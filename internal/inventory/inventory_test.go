// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package inventory

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/internal/life"
)

// Each row of the table, and what comes before it. Only rows whose verdict is wanted may look at all namespaces.
func TestJudge(t *testing.T) {
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	old, young := now.Add(-time.Hour), now.Add(-time.Second)
	there, gone, hidden := []Space{{Path: "there"}}, []Space{{Path: "gone"}}, []Space{{Path: "hidden"}}
	gc := Question{Now: now, Grace: time.Minute, Unseen: time.Minute}
	list := Question{HasList: true, Listed: now}
	sweep := Question{Now: now, Grace: time.Minute, OnlyOwn: true}
	finds := func(what string) func() (string, error) { return func() (string, error) { return what, nil } }
	fails := func() (string, error) { return "", errors.New("no rights") }
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
		{"made after the list", Evidence{Since: now.Add(time.Second), Maker: Asker, Spaces: gone}, list, life.Unsure, Newer, "newer"},
		{"made after the list, by nobody known", Evidence{Since: now.Add(time.Second)}, list, life.Unsure, Newer, "newer"},
		{"dead, of another runtime, in a sweep", Evidence{Since: old, Maker: Another, Spaces: gone}, sweep, life.Unsure, NotOwn, "another runtime's"},
		{"dead, of nobody known, in a sweep", Evidence{Since: old, Spaces: gone}, sweep, life.Unsure, NotOwn, ""},
		{"not on its runtime's list, and alive", Evidence{Since: old, Maker: Asker, Spaces: there, Pair: finds("veth1")}, list, life.Dead, Unlisted, "lacks it"},
		{"of another runtime, alive", Evidence{Since: old, Maker: Another, Spaces: there}, list, life.Alive, Exists, "there exists"},
		{"of another runtime, gone", Evidence{Since: old, Maker: Another, Spaces: gone}, list, life.Dead, Gone, "gone is gone"},
		{"of another runtime, one is there", Evidence{Since: old, Maker: Another, Spaces: append(gone, there...)}, list, life.Alive, Exists, ""},
		{"of another runtime, hidden", Evidence{Since: old, Maker: Another, Spaces: hidden}, list, life.Unsure, Doubtful, "another runtime made it"},
		{"of another runtime, gone, but its pair carries", Evidence{Since: old, Maker: Another, Spaces: gone, Pair: finds("veth1")}, list, life.Alive, PairInUse, "veth1 carries"},
		{"of another runtime, without a namespace", Evidence{Since: old, Maker: Another, Named: true}, list, life.Unsure, Untraced, ""},
		{"without a record, its pair carries", Evidence{Pair: finds("veth1")}, list, life.Alive, PairInUse, "veth1 carries"},
		{"without a record, its pair unread", Evidence{Pair: fails}, list, life.Alive, PairInUse, "no rights"},
		{"without a record, in use here", Evidence{Pair: finds(""), Here: finds("ns has it")}, list, life.Unsure, HasAddress, "ns has it"},
		{"without a record, namespaces unread", Evidence{Here: fails}, list, life.Unsure, Unrecorded, "no rights"},
		{"without a record", Evidence{Pair: finds(""), Here: finds("")}, list, life.Dead, Unrecorded, "nothing of it is in use"},
		{"dead, in a sweep", Evidence{Since: old, Maker: Asker, Spaces: gone}, sweep, life.Dead, Gone, ""},
		{"young, in a sweep", Evidence{Since: young, Maker: Asker, Spaces: gone}, sweep, life.Unsure, Young, "1s old"},
		{"alive and young", Evidence{Since: young, Spaces: there}, gc, life.Alive, Exists, ""},
		{"forgotten", Evidence{Since: old, Spaces: there, Forgotten: func(string) (string, bool) { return "forgot", true }, Pair: finds("veth1")}, gc, life.Dead, Gone, "forgot"},
		{"listed", Evidence{Since: old, Spaces: gone, Lists: Yes}, gc, life.Unsure, Listed, ""},
		{"listed, but only its driver must hear", Evidence{Since: old, Lists: Yes, Pending: "lab"}, gc, life.Dead, Ended, "lab"},
		{"alive, but only its driver must hear", Evidence{Since: old, Spaces: there, Pending: "lab"}, gc, life.Dead, Ended, "lab"},
		{"of the driver", Evidence{Since: old, Spaces: gone, ByDriver: true}, gc, life.Unsure, OfDriver, ""},
		{"ahead", Evidence{Since: now.Add(time.Hour), Spaces: gone}, gc, life.Unsure, Ahead, "1h0m0s ahead"},
		{"ahead, without grace", Evidence{Since: now.Add(time.Hour), Spaces: gone}, Question{Now: now}, life.Dead, Gone, ""},
		{"without a date, seen now", Evidence{Seen: func() time.Time { return now }, Spaces: gone}, gc, life.Unsure, Young, "0s old"},
		{"without a date, seen before", Evidence{Seen: func() time.Time { return old }, Spaces: gone}, gc, life.Dead, Gone, ""},
		{"gone and hidden", Evidence{Since: old, Spaces: append(gone, hidden...)}, gc, life.Unsure, Doubtful, "hidden"},
		{"from before the boot", Evidence{Since: old, Earlier: true, Spaces: hidden, InUse: finds("")}, gc, life.Dead, Earlier, "booted"},
		{"from before the boot, in use", Evidence{Since: old, Earlier: true, InUse: finds("/proc/7")}, gc, life.Unsure, HasAddress, "in use in /proc/7"},
		{"from before the boot, unread", Evidence{Since: old, Earlier: true, InUse: fails}, gc, life.Unsure, Earlier, "no rights"},
		{"not listed", Evidence{Since: old, Named: true, Lists: No, InUse: finds("")}, gc, life.Dead, NotListed, "does not list it"},
		{"not listed, hidden", Evidence{Since: old, Named: true, Lists: No, Spaces: hidden}, gc, life.Unsure, Doubtful, ""},
		{"elements, blind", Evidence{Since: old, Named: true, Remains: Elements, SeesAll: func() bool { return false }}, gc, life.Unsure, OnlyRules, "does not see all"},
		{"elements", Evidence{Since: old, Named: true, Remains: Elements, SeesAll: yes, InUse: finds("")}, gc, life.Dead, OnlyRules, ""},
		{"masquerades", Evidence{Since: old, Named: true, Remains: Masquerades, InUse: finds("")}, gc, life.Dead, OnlyRules, ""},
		{"torn", Evidence{Since: old, Remains: Torn, SeesAll: yes, Marked: finds("")}, gc, life.Dead, OnlyTorn, "no namespace has a link"},
		{"torn, its link is there", Evidence{Since: old, Remains: Torn, Marked: finds("/proc/8")}, gc, life.Unsure, OnlyTorn, "its link is in /proc/8"},
		{"torn, unread", Evidence{Since: old, Remains: Torn, Marked: fails}, gc, life.Unsure, OnlyTorn, "no rights"},
		{"torn, without marks", Evidence{Since: old, Remains: Torn, Marked: finds(""), Unmarked: "/run/x"}, gc, life.Unsure, OnlyTorn, "delete /run/x"},
		{"torn, blind", Evidence{Since: old, Remains: Torn, Marked: finds(""), SeesAll: func() bool { return false }}, gc, life.Unsure, OnlyTorn, "does not see all"},
		{"nameless", Evidence{Since: old, Lists: No}, gc, life.Unsure, Nameless, "owner is unknown"},
		{"untraced", Evidence{Since: old, Named: true}, gc, life.Unsure, Untraced, "--from"},
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
		if forgotten := c.about == "forgotten"; forgotten != (v.Forgotten == "there") {
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
