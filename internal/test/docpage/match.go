// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docpage

import (
	"regexp"
	"strings"
)

// Matches reports whether a command has printed what the page shows. Columns may have any width.
// "…" matches any text, or any number of lines if it is alone on its line. Each id, MAC address,
// time and random port matches any value of its kind.
func (s Step) Matches(printed string) bool {
	if s.Prints == nil {
		return true
	}
	return regexp.MustCompile(`^\s*` + s.pattern() + `\s*$`).MatchString(printed)
}

func (s Step) pattern() string {
	var out strings.Builder
	open := true // nothing, or any lines, before
	for _, line := range s.Prints {
		if strings.TrimSpace(line) == "…" {
			out.WriteString(`(?s:.*)`)
			open = true
			continue
		}
		if !open {
			out.WriteString(`[ \t]*\n\s*`)
		}
		words := strings.Fields(line)
		for i, w := range words {
			words[i] = word(w)
		}
		out.WriteString(strings.Join(words, `[ \t]+`))
		open = false
	}
	return out.String()
}

// kinds are the words that differ from one run to the next.
var kinds = []struct{ shown, any *regexp.Regexp }{
	{regexp.MustCompile(`([0-9a-f]{2}:){5}[0-9a-f]{2}`), regexp.MustCompile(`([0-9a-f]{2}:){5}[0-9a-f]{2}`)},
	{regexp.MustCompile(`\b[0-9a-f]{12,64}\b`), regexp.MustCompile(`[0-9a-f]{12,64}`)},
	{regexp.MustCompile(`\d{4}-\d\d-\d\dT\S+`), regexp.MustCompile(`\d{4}-\d\d-\d\dT\S+`)},
	{regexp.MustCompile(`\b(3[2-9]|4\d|5\d|6[0-5])\d{3}\b`), regexp.MustCompile(`\d{5}`)},
	{regexp.MustCompile(`…`), regexp.MustCompile(`.*`)},
}

// word is the pattern of one word: the first kind that it contains, and its ends.
func word(w string) string {
	for _, k := range kinds {
		if at := k.shown.FindStringIndex(w); at != nil {
			return word(w[:at[0]]) + k.any.String() + word(w[at[1]:])
		}
	}
	return regexp.QuoteMeta(w)
}
