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

// Lost is something that the firewall lacks or that differs: What names it in a user's
// words, which several elements share, Detail in the firewall's. Without What it is no
// element, and Detail says all.
type Lost struct{ What, Detail string }

// InFirewall is an object in the firewall. CHECK groups its differences, because one cause
// removes several elements at once.
type InFirewall interface {
	Lost(ctx context.Context, env *Env) ([]Lost, error)
}

// Differences are the findings of CHECK. As an error they are one sentence for a person.
type Differences struct {
	Lost   []Lost
	Other  []string
	Tables []string // the changes of our firewall tables, whatever elements they affect

	Unrecorded bool // the records do not say what is lost, so repair cannot restore it
}

// Error names each lost thing once, however many elements it has.
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

// Sentence is the beginning of a sentence: what is lost, with its verb.
func (d *Differences) Sentence() string {
	what := d.What()
	if len(what) == 1 {
		return what[0] + " is"
	}
	return enumerate(what) + " are"
}

// What lists what is lost, each once, published ports first. It leaves the owner's mark out
// when something else is lost.
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

// Details lists the lost elements.
func (d *Differences) Details() (details []string) {
	for _, l := range d.Lost {
		details = append(details, l.Detail)
	}
	return details
}

// Any reports whether there is a difference.
func (d *Differences) Any() bool { return len(d.Lost)+len(d.Other)+len(d.Tables) > 0 }

// Add joins the differences of o.
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

// enumerate is "a, b and c".
func enumerate(list []string) string {
	if len(list) < 2 {
		return strings.Join(list, "")
	}
	return strings.Join(list[:len(list)-1], ", ") + " and " + list[len(list)-1]
}

// Diff finds every difference between s and the kernel.
func (s State) Diff(ctx context.Context, env *Env) (*Differences, error) {
	d := new(Differences)
	for _, o := range s {
		if err := d.compare(ctx, env, o); err != nil {
			return d, fmt.Errorf("compare %s: %w", o, err)
		}
	}
	return d, nil
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
	if _, ok := o.(Table); ok && text != "" {
		d.Tables = append(d.Tables, text)
		return err
	}
	if text != "" && err == nil {
		d.Other = append(d.Other, text)
	}
	return err
}

// lostElements looks elements up by key.
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

// Sentence is the text of what one object lost.
func Sentence(lost []Lost, err error) (string, error) {
	d := new(Differences)
	d.lose(lost)
	return d.Error(), err
}

// Found splits the joined errors of a CHECK: the differences that plugins found, which
// become one sentence, and all other errors, each once. For nil it is empty.
func Found(err error) *Differences {
	found := new(Differences)
	sift(err, found)
	return found
}

func sift(err error, into *Differences) {
	var found *Differences
	if several, ok := err.(interface{ Unwrap() []error }); ok { // this one, not one below
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
