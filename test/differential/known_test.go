// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package differential

import (
	_ "embed"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
)

//go:embed known.txt
var knownText string

// known is one listed difference. It has the plugins, the lines, and optionally the inputs to
// which it applies.
type known struct {
	plugins []string
	when    *regexp.Regexp // a pattern of the input; nil matches any
	differs []*regexp.Regexp
	rare    []bool // which of differs need not occur
	because string
	line    int
	seen    []int // how often each line in differs matched
}

// parseKnown reads the file. Stanzas of "key: value" lines have an empty line between them. A
// stanza may have several lines "differs" and "rarely".
func parseKnown(text string) (list []*known, err error) {
	var k *known
	for i, line := range strings.Split(text, "\n") {
		key, value, _ := strings.Cut(line, ": ")
		switch {
		case strings.HasPrefix(line, "#"):
			continue
		case line == "":
			k = nil
			continue
		case k == nil:
			k = &known{line: i + 1}
			list = append(list, k)
		}
		switch key {
		case "plugins":
			k.plugins = strings.Fields(value)
		case "because":
			k.because = value
		case "when":
			k.when, err = regexp.Compile(value)
		case "differs", "rarely":
			var re *regexp.Regexp
			re, err = regexp.Compile("(?s)^(?:" + value + ")$")
			k.differs, k.rare = append(k.differs, re), append(k.rare, key == "rarely")
			k.seen = append(k.seen, 0)
		default:
			err = fmt.Errorf("unknown key %q", key)
		}
		if err != nil {
			return nil, fmt.Errorf("known.txt:%d: %w", i+1, err)
		}
	}
	for _, k := range list {
		if k.because == "" || len(k.plugins) == 0 || len(k.differs) == 0 {
			return nil, fmt.Errorf("known.txt:%d: an entry says plugins, differs and because", k.line)
		}
	}
	return list, nil
}

func readKnown(t *testing.T) []*known {
	t.Helper()
	list, err := parseKnown(knownText)
	if err != nil {
		t.Fatal(err)
	}
	return list
}

// lists reports whether some entry lists a difference of this plugin and input.
func lists(list []*known, plugin, input, difference string) (found bool) {
	for _, k := range list {
		if !slices.Contains(k.plugins, plugin) && k.plugins[0] != "all" || k.when != nil && !k.when.MatchString(input) {
			continue
		}
		for i, re := range k.differs {
			if re.MatchString(difference) {
				k.seen[i]++
				found = true
			}
		}
	}
	return found
}
