// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package netstate

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/order"
)

// Lost describes something that is missing in the firewall or was changed there. What names it in
// a user's words; several elements may share one What. Detail names it as nft does. If What is
// empty, no element is lost, and Detail says everything.
type Lost struct{ What, Detail string }

// InFirewall is an object in the firewall. One cause removes several elements at once, so CHECK
// groups the differences of such objects.
type InFirewall interface {
	Lost(ctx context.Context, env *Env) ([]Lost, error)
}

// Differences are what CHECK found. As an error they form one sentence.
type Differences struct {
	Lost   []Lost
	Other  []string
	Tables []string // changes of our firewall tables

	Unrecorded bool // the records do not say what is lost, so repair cannot restore it
}

// Error names each lost object once, even if the object has several elements.
func (d *Differences) Error() string {
	parts := slices.Concat(d.Other, d.Tables)
	if len(d.Lost) > 0 {
		fix := "run patchbay repair"
		if d.Unrecorded {
			fix = "attach it again: patchbay repair has no record of it"
		}
		parts = append([]string{d.Sentence() + " missing (" + fix + ")"}, parts...)
	}
	return strings.Join(parts, "; ")
}

// Sentence returns the start of a sentence: what is lost, and the verb.
func (d *Differences) Sentence() string {
	what := d.What()
	if len(what) == 1 {
		return what[0] + " is"
	}
	return enumerate(what) + " are"
}

// What lists the lost objects without duplicates, published ports first. If anything else is
// lost, What leaves out the owner's mark.
func (d *Differences) What() (what []string) {
	mark := nft.Owner("", "").Meaning().What
	for _, l := range d.Lost {
		if l.What != mark && !slices.Contains(what, l.What) {
			what = append(what, l.What)
		}
	}
	if len(what) == 0 && len(d.Lost) > 0 {
		what = append(what, mark)
	}
	order.Stable(what, func(a, b string) int { return rank(a) - rank(b) })
	return what
}

func rank(what string) int {
	if strings.HasPrefix(what, "published") {
		return 0
	}
	return 1
}

// Details lists the lost elements as nft names them.
func (d *Differences) Details() (details []string) {
	for _, l := range d.Lost {
		details = append(details, l.Detail)
	}
	return details
}

// Any reports whether d contains a difference.
func (d *Differences) Any() bool { return d.count() > 0 }

func (d *Differences) count() int { return len(d.Lost) + len(d.Other) + len(d.Tables) }

// Add adds the differences of o to d.
func (d *Differences) Add(o *Differences) {
	d.Lost, d.Unrecorded = append(d.Lost, o.Lost...), d.Unrecorded || o.Unrecorded
	for _, t := range o.Other {
		if !slices.Contains(d.Other, t) { // two plugins may check the same object
			d.Other = append(d.Other, t)
		}
	}
	for _, t := range o.Tables {
		if !slices.Contains(d.Tables, t) {
			d.Tables = append(d.Tables, t)
		}
	}
}

// enumerate joins a list as in "a, b and c".
func enumerate(list []string) string {
	if len(list) < 2 {
		return strings.Join(list, "")
	}
	return strings.Join(list[:len(list)-1], ", ") + " and " + list[len(list)-1]
}

// Diff returns every difference between s and the kernel.
func (s State) Diff(ctx context.Context, env *Env) (*Differences, error) {
	d := new(Differences)
	for _, o := range s {
		before := d.count()
		if err := d.compare(ctx, env, o); err != nil {
			return d, fmt.Errorf("compare %s: %w", o, err)
		}
		if env.Say != nil {
			env.say(o, d.count() > before)
		}
	}
	return d, nil
}

// say prints the line of an object. A whole table is no step of an ADD, so say prints its line
// only if the table differs.
func (e *Env) say(o Object, differs bool) {
	_, table := o.(Table)
	switch {
	case differs:
		e.Say(o.String() + "   # the kernel differs")
	case !table:
		e.Say(o.String())
	}
}

func (d *Differences) lose(lost []Lost) {
	for _, l := range lost {
		if l.What == "" {
			d.Other = append(d.Other, l.Detail)
			continue
		}
		d.Lost = append(d.Lost, l)
	}
}

func (d *Differences) compare(ctx context.Context, env *Env, o Object) error {
	if f, ok := o.(InFirewall); ok {
		lost, err := f.Lost(ctx, env)
		d.lose(lost)
		return err
	}
	text, err := o.Diff(ctx, env)
	if text != "" && err == nil {
		text, err = mend(ctx, env, o, text)
	}
	if _, ok := o.(Table); ok && text != "" {
		d.Tables = append(d.Tables, text)
		return err
	}
	if text != "" && err == nil {
		d.Other = append(d.Other, text)
	}
	return err
}

// lostElements looks elements up by their keys and returns those that are missing or differ.
func lostElements(env *Env, elems ...nft.Element) (lost []Lost, err error) {
	for _, e := range elems {
		got, ok, err := env.NFT.Get(e.Set, e.Key)
		switch {
		case err != nil:
			return lost, err
		case !ok:
			lost = append(lost, Lost{e.Meaning().What, e.String()})
		case string(got.Data) != string(e.Data):
			lost = append(lost, Lost{e.Meaning().What, fmt.Sprintf("%s, in its place is %s", e, got)})
		}
	}
	return lost, nil
}

// Sentence describes what one object lost.
func Sentence(lost []Lost, err error) (string, error) {
	d := new(Differences)
	d.lose(lost)
	return d.Error(), err
}

// Found splits the joined errors of a CHECK. The differences that plugins found become one
// sentence. Every other error appears once. For a nil error, the result is empty.
func Found(err error) *Differences {
	found := new(Differences)
	sift(err, found)
	return found
}

func sift(err error, into *Differences) {
	var found *Differences
	if several, ok := err.(interface{ Unwrap() []error }); ok { // only an error that is joined at this level, not one that is wrapped deeper
		for _, e := range several.Unwrap() {
			sift(e, into)
		}
		return
	}
	switch {
	case err == nil:
	case errors.As(err, &found):
		if d, ok := err.(*Differences); ok { //nolint:errorlint // as above
			into.Add(d)
			return
		}
		sift(errors.Unwrap(err), into)
	case !slices.Contains(into.Other, err.Error()):
		into.Other = append(into.Other, err.Error())
	}
}
