// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package terminal

import (
	"strings"

	"github.com/jessevdk/go-flags"
)

// Mistake says what is wrong with a command line, in the words of our other errors: go-flags quotes names as `this'.
func Mistake(e *flags.Error) string {
	text := quoted(e.Message)
	if e.Type != flags.ErrUnknownCommand {
		return text
	}
	text = "no command" + strings.TrimPrefix(text, "Unknown command")
	text = strings.Replace(text, ". Please specify one command of: ", "; the commands are ", 1)
	text = strings.Replace(text, ". You should use the ", "; use the ", 1)
	return strings.Replace(text, ", did you mean ", "; did you mean ", 1)
}

// quoted makes "this" of `this' and of `this`.
func quoted(text string) string {
	var b strings.Builder
	for {
		before, rest, ok := strings.Cut(text, "`")
		end := strings.IndexAny(rest, "`'")
		if !ok || end < 0 {
			b.WriteString(text)
			return b.String()
		}
		b.WriteString(before + `"` + rest[:end] + `"`)
		text = rest[end+1:]
	}
}
