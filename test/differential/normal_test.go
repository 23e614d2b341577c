// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package differential

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
)

// chosen matches names that each side chooses by itself: of the host's end of a pair, and of
// bandwidth's ifb.
var chosen = regexp.MustCompile(`^(veth[0-9a-f]{8}|bwp[0-9a-f]{8,12})$`)

var owner = regexp.MustCompile(`patchbay:[a-z0-9]{15}`)

// fixed is the prefix of the hardware addresses that the tests set.
const fixed = "02:00:00:00:"

// normal returns a view in which the names that each side may choose are equal. It numbers links
// in the order of their creation, and names a hardware address after the first link that has it.
// Names from the input do not change.
func normal(v view, macs []mac, input string) view {
	words := map[string]string{}
	numbers := map[string]int{}
	for _, m := range macs {
		name := m.link[strings.Index(m.link, ":")+1:]
		if _, known := words[name]; known || !chosen.MatchString(name) || strings.Contains(input, name) {
			continue
		}
		kind := "veth"
		if strings.HasPrefix(name, "bw") {
			kind = "ifb"
		}
		numbers[kind]++
		words[name] = fmt.Sprintf("%s<%d>", kind, numbers[kind])
	}
	for _, m := range macs {
		if _, known := words[m.addr]; !known && m.addr != "00:00:00:00:00:00" && !strings.HasPrefix(m.addr, fixed) && !strings.Contains(strings.ToLower(input), m.addr) {
			words[m.addr] = "mac(" + rename(m.link, words) + ")"
		}
	}
	out := view{}
	for key, value := range v {
		out.put(rename(key, words), rename(value, words))
	}
	return out
}

var word = regexp.MustCompile(`\b([0-9a-f]{2}(:[0-9a-f]{2}){5}|(veth|bwp)[0-9a-f]+)\b`)

func rename(s string, words map[string]string) string {
	s = owner.ReplaceAllString(s, "patchbay:<owner>")
	return word.ReplaceAllStringFunc(s, func(w string) string {
		if to, ok := words[w]; ok {
			return to
		}
		return w
	})
}

// differences lists the facts that only one of two views has, sorted. If one side attached and
// the other refused, that is the only difference.
func differences(ref, ours view) (out []string) {
	if isDone(ref["ADD"]) != isDone(ours["ADD"]) {
		return []string{"ADD: " + ref["ADD"] + " → " + ours["ADD"]}
	}
	for _, key := range slices.Sorted(maps.Keys(union(ref, ours))) {
		theirs, had := ref[key]
		got, has := ours[key]
		switch {
		case had && has && equal(theirs, got), key != linkOf(key, ref, ours):
		case !has:
			out = append(out, key+": "+theirs+" → nothing")
		case !had:
			out = append(out, key+": nothing → "+got)
		default:
			out = append(out, key+": "+theirs+" → "+got)
		}
	}
	return out
}

func isDone(outcome string) bool { return outcome == "done" }

func union(a, b view) view {
	all := maps.Clone(a)
	maps.Copy(all, b)
	return all
}

// linkOf returns, for a fact about a link that only one side has, one fact that represents the
// whole link. For any other fact it returns the key itself.
func linkOf(key string, ref, ours view) string {
	for _, w := range nameInFact.FindAllString(key, -1) {
		for _, place := range []string{" host ", " container "} {
			when, _, found := strings.Cut(key, place)
			fact := when + place + "link " + strings.Trim(w, " /") + " type"
			_, a := ref[fact]
			if _, b := ours[fact]; found && a != b {
				return fact
			}
		}
	}
	return key
}

// nameInFact finds what may be the name of a link in a key.
var nameInFact = regexp.MustCompile(`[^ /]+`)

// refused splits the value of a verb that failed.
var refused = regexp.MustCompile(`^refused (-?[0-9]+): (?s)(.*)$`)

// equal compares two values. Two errors are of one class if the same part of a call returns them.
// The check of the call's environment has its own codes, and both sides must return the same one.
// For the plugin's own work the reference has only the code 999, and ours may have a more precise
// one. test/refuse tests our texts.
func equal(theirs, ours string) bool {
	a, b := refused.FindStringSubmatch(theirs), refused.FindStringSubmatch(ours)
	switch {
	case a == nil || b == nil:
		return theirs == ours
	case a[1] == "999":
		return b[1] != "-1"
	}
	x, y := gist(a[2]), gist(b[2])
	return a[1] == b[1] && (strings.Contains(x, y) || strings.Contains(y, x))
}

// decoder matches encoding/json's text about Go types, which differ between the sides.
var decoder = regexp.MustCompile(`.*json: cannot unmarshal (\w+)( \S+)? into Go .*`)

func gist(msg string) string { return decoder.ReplaceAllString(msg, "json: cannot unmarshal $1") }
