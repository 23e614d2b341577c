// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package docpage reads the steps of a documentation page: the fenced blocks of commands and
// files, in their order. A block is one of
//
//	```console                  commands after "# " or "$ ", and their output
//	```console wait             the same, but the output may need some time to appear
//	```json title=/etc/x.json   a file, in this or any other language
//	```text                     text without commands
//
// If a command is in any other block, Parse returns an error. So a test runs every command.
package docpage

import (
	"fmt"
	"regexp"
	"strings"
)

// Tested are the pages for users whose commands test/e2e/docs runs.
var Tested = [...]string{"docs/docker.md", "docs/hosts.md"}

// Readme are the first pages. test/e2e/docs runs their commands on a machine without any runtime, one page after the other.
var Readme = [...]string{"README.md", "docs/start.md"}

// Step is one step of the reader: a command, or a file to write.
type Step struct {
	Line    int      // of the page
	Command string   // for a shell; empty: write a file
	Prints  []string // the output that the page shows; nil: anything
	Wait    bool     // it works in a moment
	File    string   // an absolute path
	Text    string   // of the file
}

// fence is a line that begins or ends a block.
const fence = "```"

// command is a line that looks like one.
var command = regexp.MustCompile(`^\s{0,4}([#$] )?(sudo |bin/)?(go|docker|patchbay|patchbayd|patchbay-cnm|systemctl|install|make|ip|nft|podman|crictl|etcdctl|etcd|openssl|mkdir|cp|cat)( |$)`)

// Parse returns the steps of a page. If a block is of no known kind, the error names its line.
func Parse(text string) (steps []Step, err error) {
	lines := strings.Split(text, "\n")
	for i := 0; i < len(lines); i++ {
		info, ok := strings.CutPrefix(strings.TrimSpace(lines[i]), fence)
		if !ok {
			continue
		}
		end := i + 1
		for end < len(lines) && strings.TrimSpace(lines[end]) != fence {
			end++
		}
		if end == len(lines) {
			return nil, fmt.Errorf("line %d: the block does not end", i+1)
		}
		more, err := block(info, lines[i+1:end], i+2)
		if err != nil {
			return nil, err
		}
		steps, i = append(steps, more...), end
	}
	return steps, nil
}

// block returns the steps of one block. line is the number of the block's first line.
func block(info string, lines []string, line int) ([]Step, error) {
	language, title, isFile := strings.Cut(info, " title=")
	switch {
	case isFile && strings.HasPrefix(title, "/"):
		return []Step{{Line: line, File: title, Text: strings.Join(lines, "\n") + "\n"}}, nil
	case language == "console":
		return console(lines, line, false)
	case language == "console wait":
		return console(lines, line, true)
	}
	for i, l := range lines {
		if language == "console" || language == "sh" || language == "bash" || language == "shell" || command.MatchString(l) {
			return nil, fmt.Errorf("line %d: %q is not run by a test: commands belong into a block ```console", line+i, l)
		}
	}
	return nil, nil
}

// console reads commands with what they print. A backslash at the end of a line
// continues it.
func console(lines []string, line int, wait bool) (steps []Step, err error) {
	for i := 0; i < len(lines); i++ {
		l := lines[i]
		if !strings.HasPrefix(l, "# ") && !strings.HasPrefix(l, "$ ") {
			if len(steps) == 0 {
				return nil, fmt.Errorf("line %d: %q comes before any command", line+i, l)
			}
			last := &steps[len(steps)-1]
			last.Prints = append(last.Prints, l)
			continue
		}
		s := Step{Line: line + i, Command: l[2:], Wait: wait}
		for strings.HasSuffix(s.Command, "\\") && i+1 < len(lines) {
			i++
			s.Command += "\n" + lines[i]
		}
		steps = append(steps, s)
	}
	return steps, nil
}
