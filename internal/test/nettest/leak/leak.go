// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package leak lists the objects on a node: links, addresses, routes, policy rules, queueing
// disciplines, nftables objects (including those of iptables-nft) and files. A test takes a State
// before it begins and another when it is done. The second must have nothing that the first
// lacks.
//
// Everything is read over netlink from the calling thread's namespace, so a test in another
// namespace locks its thread and enters it first. Each object is one line of text, since
// people read leaks.
package leak

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// State lists the objects on a node. Each has one line, and the lines are sorted. The kind comes
// first, as in "link veth01234567 veth" or "file /run/patchbay/x".
type State []string

// Take reads the state of the calling thread's network namespace, and the files under the given
// directories. If none are given, it reads Dirs.
func Take(dirs ...string) (State, error) {
	if len(dirs) == 0 {
		dirs = Dirs()
	}
	var s State
	for _, read := range []func() (State, error){network, ruleset, func() (State, error) { return files(dirs) }} {
		lines, err := read()
		if err != nil {
			return nil, err
		}
		s = append(s, lines...)
	}
	slices.SortFunc(s, cmp.Compare[string])
	return s, nil
}

// Beyond returns the lines of s that before does not have. If before has a line once and s has it
// twice, Beyond returns it once, because two equal iptables rules are two objects.
func (s State) Beyond(before State) State {
	had := map[string]int{}
	for _, line := range before {
		had[line]++
	}
	var more State
	for _, line := range s {
		if had[line]--; had[line] < 0 {
			more = append(more, line)
		}
	}
	return more
}

// Without returns s without the lines for which stays returns true.
func (s State) Without(stays func(line string) bool) State {
	return slices.DeleteFunc(slices.Clone(s), stays)
}

// Of returns the lines of s whose kind (the first word) is kind.
func (s State) Of(kind string) State {
	return s.Without(func(line string) bool { return !strings.HasPrefix(line, kind+" ") })
}

// String is one indented line for each object, for a test's message.
func (s State) String() string {
	if len(s) == 0 {
		return "  nothing"
	}
	return "  " + strings.Join(s, "\n  ")
}

// Must works like Take for tests. An error ends the test.
func Must(t testing.TB, dirs ...string) State {
	t.Helper()
	s, err := Take(dirs...)
	if err != nil {
		t.Fatalf("read the node's state: %v", err)
	}
	return s
}

// NoLeaks fails t if the node has more objects than before, apart from those that stay by design
// (Standing). It looks again for at most 100 ms, because an nftables element that DEL lets expire
// exists for 1 ms after the commit.
func NoLeaks(t testing.TB, before State, dirs ...string) {
	t.Helper()
	var left State
	for range 10 {
		left = Must(t, dirs...).Beyond(before).Without(Standing)
		if len(left) == 0 {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Errorf("left behind:\n%s", left)
}

// line joins its words with spaces.
func line(words ...any) string {
	return strings.TrimSuffix(fmt.Sprintln(words...), "\n")
}
