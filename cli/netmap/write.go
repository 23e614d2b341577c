// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package netmap

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/patchbay-net/patchbay/internal/terminal"
)

// markup is text that is HTML or SVG already. Only this package makes it.
type markup string

// writer collects a document.
type writer struct{ strings.Builder }

// put appends a format whose arguments are escaped, unless they are numbers or markup. The format must quote
// attributes.
func (w *writer) put(format string, args ...any) {
	for i, a := range args {
		if s, ok := a.(string); ok {
			args[i] = escaped(s)
		}
	}
	fmt.Fprintf(w, format, args...) //nolint:errcheck // memory
}

// escaped makes text of any bytes harmless in HTML and in XML: markup, characters that hide or reorder text, and bytes
// that are no UTF-8, which end an XML document. It is not html.EscapeString, because that package allocates before main
// in every plugin process.
func escaped(s string) string {
	s = terminal.Printable(strings.ToValidUTF8(s, "\uFFFD"))
	if !strings.ContainsAny(s, `&<>"'`) {
		return s
	}
	return strings.NewReplacer("&", "&amp;", "<", "&lt;", ">", "&gt;", `"`, "&#34;", "'", "&#39;").Replace(s)
}

// counted is a number with its noun: "1 network", "2 networks".
func counted(n int, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return strconv.Itoa(n) + " " + noun
}

// text says in words how bad something is: colour alone would tell nothing to many.
func (s state) text() string {
	var words []string
	if s.broken > 0 {
		words = append(words, "⚠ "+counted(s.broken, "problem"))
	}
	if s.warned > 0 {
		words = append(words, counted(s.warned, "warning"))
	}
	return strings.Join(words, ", ")
}
