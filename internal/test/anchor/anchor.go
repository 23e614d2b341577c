// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package anchor names the headings of a page as GitHub does, so that a link to a heading works there and on our own site.
package anchor

import (
	"fmt"
	"regexp"
	"strings"
	"unicode"
)

// Page has the anchors of one page so far. Its zero value is an empty page.
type Page map[string]bool

// Add names the next heading of the page, given as Markdown without the leading #: lower case, spaces become -, other
// signs go, and a name that the page has already gets a number.
func (p Page) Add(heading string) string {
	name := strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-', r == '_', unicode.IsLetter(r), unicode.IsDigit(r):
			return unicode.ToLower(r)
		}
		return -1
	}, regexp.MustCompile(`\[([^\]]*)\]\([^)]*\)`).ReplaceAllString(heading, "$1"))
	for again, n := name, 1; ; n++ {
		if !p[again] {
			p[again] = true
			return again
		}
		again = fmt.Sprintf("%s-%d", name, n)
	}
}
