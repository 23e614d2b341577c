// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/patchbay-net/patchbay/invoke"
	"github.com/patchbay-net/patchbay/spec"
)

// Probe completes the description of a program by asking it: which versions it supports, whether it makes an interface,
// changes one or gives addresses, whether a second ADD succeeds, and whether it keeps anything. s needs a Type and,
// unless the plugin needs none, a Conf. What Probe found is in said, one sentence each. As for Check, the process
// must have a network of its own.
func Probe(s Subject, path []string) (out Subject, said []string, err error) {
	return ask(s, path, (*question).ask)
}

// Versions completes the versions that a subject leaves open by those that the program says it supports: it may be an
// older release. If its VERSION fails, the subject stays as it is, and the rules say so.
func Versions(s Subject, path []string) (out Subject, said []string) {
	asked, said, err := ask(s, path, (*question).versions)
	if err != nil {
		return s, nil
	}
	out = s
	if s.MinVersion == "" && spec.AtLeast(asked.MinVersion, s.minVersion()) {
		out.MinVersion = asked.MinVersion
	}
	if s.MaxVersion == "" {
		out.MaxVersion = asked.MaxVersion
	}
	if out.MinVersion == s.MinVersion && out.MaxVersion == s.MaxVersion {
		said = nil // nothing new
	}
	return out, said
}

// ask runs questions as a trial, and returns what they learned.
func ask(s Subject, path []string, questions func(*question, tester) error) (Subject, []string, error) {
	q := &question{s: s, path: path}
	root := &trial{done: func(t *trial) {
		if t.failed && q.err == nil {
			q.err = errors.New(strings.TrimSpace(t.log.String()))
		}
	}}
	root.sub("probe", func(t tester) { q.err = questions(q, t) })
	return q.s, q.said, q.err
}

// question is what Probe asks and learned.
type question struct {
	s    Subject
	path []string
	said []string
	err  error
}

func (q *question) says(format string, args ...any) {
	q.said = append(q.said, fmt.Sprintf(format, args...))
}

// anyPrev is what a chained plugin gets from the plugin before, unless the subject says something else.
func anyPrev() *Prev {
	return &Prev{
		Addresses: []netip.Prefix{netip.MustParsePrefix("10.95.0.2/24"), netip.MustParsePrefix("fd95::2/64")},
		Gateways:  []netip.Addr{netip.MustParseAddr("10.95.0.1"), netip.MustParseAddr("fd95::1")},
	}
}

func (q *question) ask(t tester) error {
	if err := q.versions(t); err != nil {
		return err
	}
	given := q.s.Kind
	if given == "" && q.s.delegate() == q.s.Type {
		given = "ipam"
	}
	var errs []error
	for _, kind := range []string{"interface", "chained"} {
		if given != "" {
			kind = given
		}
		q.s.Kind = kind
		if kind == "chained" && q.s.Prev == nil {
			q.s.Prev = anyPrev()
		}
		err := q.add(t)
		if err == nil {
			return nil
		}
		errs = append(errs, fmt.Errorf("as a plugin of kind %s: %w", kind, err))
		if given != "" {
			break
		}
	}
	return fmt.Errorf("ADD fails: %w", errors.Join(errs...))
}

// world makes attachments for a call.
func (q *question) world(t tester) *World {
	s := &Suite{Subject: q.s, Path: q.path, Invoker: &invoke.Exec{Stderr: nowhere{}}, dirs: everywhere(), settle: time.Second, most: 10 * time.Second}
	return newWorld(t, s, q.s.newest())
}

func (q *question) versions(t tester) error {
	q.s.Kind, q.s.MaxVersion = orKind(q.s.Kind), ""
	w := q.world(t)
	defer w.Close()
	out, err := w.callFirst(spec.Version)
	if err != nil {
		return fmt.Errorf("VERSION fails: %w", err)
	}
	list, err := spec.ParseVersions(out)
	if err != nil {
		return fmt.Errorf("VERSION: %w: %s", err, out)
	}
	known := slices.DeleteFunc(spec.Versions(), func(v string) bool { return !slices.Contains(list.SupportedVersions, v) })
	if len(known) == 0 {
		return fmt.Errorf("VERSION lists no version that this suite knows: %s", out)
	}
	q.s.MinVersion = known[0]
	if last := known[len(known)-1]; last != spec.Current {
		q.s.MaxVersion = last
	}
	q.says("it supports the versions %s", strings.Join(known, ", "))
	if q.s.Kind == unknownKind {
		q.s.Kind = ""
	}
	return nil
}

// unknownKind is a kind for which nothing is prepared.
const unknownKind = "unknown"

func orKind(kind string) string {
	if kind == "" {
		return unknownKind
	}
	return kind
}

// add makes an ADD and learns from it.
func (q *question) add(t tester) error {
	w := q.world(t)
	defer w.Close()
	_, err := w.callFirst(spec.Add)
	var wrong *verdict
	if err != nil && !errors.As(err, &wrong) {
		return err
	}
	p := w.places["first"]
	left, serr := w.leftovers()
	if serr != nil {
		return serr
	}
	made := strings.Contains(left.String(), "first sandbox: link")
	if q.s.Kind == "interface" && !made && (p.Result == nil || len(p.Result.Interfaces) == 0) {
		q.s.Kind = "ipam"
	}
	q.says("it is a plugin of kind %s", q.s.Kind)
	if wrong != nil {
		q.says("the result of its ADD is wrong: %v", wrong)
		return nil
	}
	if q.s.L2 = len(p.Result.IPs) == 0 && q.s.Kind != "chained"; q.s.L2 {
		q.says("its result has no addresses")
	}
	if q.s.Kind != "interface" {
		q.again(w, len(left) == 0)
	}
	_, _ = w.runFor(p, &request{verb: spec.Del}) // the rules are about DEL
	return nil
}

// again calls ADD a second time. An interface plugin must refuse it, so this is not asked of one.
func (q *question) again(w *World, nothing bool) {
	first := w.places["first"].Result
	if q.s.Stateless = nothing; nothing {
		q.s.Unchecked = true
		q.says("its ADD leaves nothing on the node that the suite can see: if it does, name the directories in \"state\", and remove \"stateless\" and \"unchecked\"")
	}
	ctx, cancel := context.WithTimeout(context.Background(), w.suite.limit())
	defer cancel()
	_, err := w.Call(ctx, spec.Add)
	q.s.Again = err == nil && same(first, w.places["first"].Result)
	if q.s.Again {
		q.says("a second ADD of the same attachment gives the same again")
	}
}

func same(a, b *spec.Result) bool {
	one, err1 := a.Encode(spec.Current)
	two, err2 := b.Encode(spec.Current)
	return err1 == nil && err2 == nil && string(one) == string(two)
}
