// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package terminal prints what people read on a terminal: help, versions, and names from other
// programs. Package terminal removes from such names what would disturb the terminal.
package terminal

import (
	"fmt"
	"os"
	"reflect"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"

	"github.com/jessevdk/go-flags"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/spec"
)

// These are the smallest and the largest width of a text, in columns.
const (
	usualWidth = 80
	leastWidth = 60
	mostWidth  = 110
)

// indent comes before a name. names is the width of the column of names; if a name is longer,
// its description starts on the next line.
const (
	indent = "  "
	names  = 24
)

// Width returns the width of a text that is written to f.
func Width(f *os.File) int {
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil || size.Col == 0 {
		return usualWidth
	}
	return min(max(int(size.Col), leastWidth), mostWidth)
}

// ActiveHelp returns the help text of the command that go-flags parsed last. We do not use the
// library's own help. It breaks lines inside words if a flag has a long name, and it lists the
// flags of every parent command before the command's own flags.
func ActiveHelp(root *flags.Command, width int) string {
	chain := []*flags.Command{root}
	for c := root.Active; c != nil; c = c.Active {
		chain = append(chain, c)
	}
	return text(chain, width)
}

// Help returns the help text of the command with this path of words, or an error if there is
// none.
func Help(root *flags.Command, words []string, width int) (string, error) {
	chain := []*flags.Command{root}
	for _, w := range words {
		c := chain[len(chain)-1].Find(w)
		if c == nil {
			return "", UnknownCommand(chain[len(chain)-1], w)
		}
		chain = append(chain, c)
	}
	return text(chain, width), nil
}

// UnknownCommand returns the error for an unknown subcommand. UnknownCommand lists the
// existing subcommands.
func UnknownCommand(c *flags.Command, word string) error {
	var has []string
	for _, sub := range c.Commands() {
		has = append(has, sub.Name)
	}
	if len(has) == 0 {
		return fmt.Errorf("%s has no commands, such as %q", c.Name, word)
	}
	return fmt.Errorf("unknown command %q; use %s", word, strings.Join(has, ", "))
}

func text(chain []*flags.Command, width int) string {
	var b strings.Builder
	c := chain[len(chain)-1]
	path := make([]string, len(chain))
	for i, above := range chain {
		path[i] = above.Name
	}
	fmt.Fprintf(&b, "Usage:\n  %s\n", Usage(path, c))
	if c.LongDescription != "" {
		fmt.Fprintf(&b, "\n%s\n", strings.TrimSpace(c.LongDescription))
	}
	writeArgs(&b, c, width)
	writeGroups(&b, c.Group, "Flags", width)
	if subs := c.Commands(); len(subs) > 0 {
		b.WriteString("\nCommands:\n")
		for _, sub := range subs {
			entry(&b, sub.Name, sub.ShortDescription, width)
		}
		fmt.Fprintf(&b, "\n%s COMMAND --help tells more of one.\n", strings.Join(path, " "))
	}
	for i, above := range slices.Backward(chain[:len(chain)-1]) {
		if list := longNames(above.Group); list != "" {
			text := fmt.Sprintf("With the flags of %s, too: %s.", strings.Join(path[:i+1], " "), list)
			b.WriteString("\n" + strings.Join(wrap(text, width), "\n") + "\n")
		}
	}
	return b.String()
}

// Usage returns the usage line of a command. path has the words that call the command.
func Usage(path []string, c *flags.Command) string { return strings.Join(path, " ") + arguments(c) }

// arguments returns the part of the usage line after the command's name.
func arguments(c *flags.Command) string {
	var b strings.Builder
	if longNames(c.Group) != "" {
		b.WriteString(" [FLAGS]")
	}
	for _, a := range c.Args() {
		name := a.Name
		if a.Required <= 0 {
			name = "[" + name + "]"
		}
		b.WriteString(" " + name)
	}
	switch {
	case len(c.Commands()) == 0:
	case c.SubcommandsOptional:
		b.WriteString(" [COMMAND]")
	default:
		b.WriteString(" COMMAND")
	}
	return b.String()
}

func writeArgs(b *strings.Builder, c *flags.Command, width int) {
	head := "\nArguments:\n"
	for _, a := range c.Args() {
		if a.Description != "" {
			b.WriteString(head)
			entry(b, a.Name, a.Description, width)
			head = ""
		}
	}
}

// writeGroups writes the flags of a group under its title, then those of its subgroups.
// writeGroups leaves out the library's own group, whose only flag is --help; the help text
// mentions that flag elsewhere.
func writeGroups(b *strings.Builder, g *flags.Group, title string, width int) {
	head := "\n" + title + ":\n"
	for _, o := range g.Options() {
		if !shown(o) {
			continue
		}
		b.WriteString(head)
		entry(b, name(o), description(o), width)
		head = ""
	}
	for _, sub := range g.Groups() {
		writeGroups(b, sub, sub.ShortDescription, width)
	}
}

func shown(o *flags.Option) bool { return !o.Hidden && o.LongName != "help" }

// longNames lists the flags of a command, without the flags of its subcommands.
func longNames(g *flags.Group) string {
	var list []string
	for _, o := range g.Options() {
		if shown(o) {
			list = append(list, "--"+o.LongName)
		}
	}
	for _, sub := range g.Groups() {
		if l := longNames(sub); l != "" {
			list = append(list, l)
		}
	}
	return strings.Join(list, ", ")
}

func name(o *flags.Option) string {
	text := "    --" + o.LongName
	if o.ShortName != 0 {
		text = "-" + string(o.ShortName) + ", --" + o.LongName
	}
	kind := o.Field().Type
	if kind.Kind() == reflect.Bool {
		return text
	}
	value := o.ValueName
	if len(o.Choices) > 0 {
		value = strings.Join(o.Choices, "|")
	}
	if o.OptionalArgument {
		return text + "[=" + value + "]"
	}
	return text + "=" + value
}

func description(o *flags.Option) string {
	text := o.Description
	if len(o.Default) > 0 {
		text += " (default: " + strings.Join(o.Default, ", ") + ")"
	}
	if o.EnvDefaultKey != "" {
		text += " [$" + o.EnvDefaultKey + "]"
	}
	return text
}

// entry writes a name and its meaning in two columns.
func entry(b *strings.Builder, name, means string, width int) {
	margin := strings.Repeat(" ", len(indent)+names)
	b.WriteString(indent + name)
	if len(name) > names-len(indent) {
		b.WriteString("\n" + margin)
	} else {
		b.WriteString(strings.Repeat(" ", names-len(name)))
	}
	b.WriteString(strings.Join(wrap(means, width-len(margin)), "\n"+margin) + "\n")
}

// wrap breaks a text between words. A word that is longer than the width gets its own line.
func wrap(text string, width int) (lines []string) {
	line := ""
	for _, word := range strings.Fields(text) {
		switch {
		case line == "":
			line = word
		case len(line)+1+len(word) <= width:
			line += " " + word
		default:
			lines, line = append(lines, line), word
		}
	}
	return append(lines, line)
}

// Printable returns s with all characters escaped that would move the cursor, break the line
// or hide text. Printable writes them as Go does, such as \n and \x1b.
func Printable(s string) string {
	if !strings.ContainsFunc(s, hidden) {
		return s
	}
	var out strings.Builder
	for _, r := range s {
		if hidden(r) {
			out.WriteString(strings.Trim(strconv.QuoteRune(r), "'"))
			continue
		}
		out.WriteRune(r)
	}
	return out.String()
}

// PrintableCells applies Printable to each cell.
func PrintableCells(cells []string) []string {
	out := make([]string, len(cells))
	for i, c := range cells {
		out[i] = Printable(c)
	}
	return out
}

func hidden(r rune) bool { return !strconv.IsPrint(r) }

// Build is what the version command of a program prints.
type Build struct {
	Version  string   `json:"version"`
	Commit   string   `json:"commit,omitempty"`
	Modified bool     `json:"modified,omitempty"` // built from a tree with uncommitted changes
	Go       string   `json:"go"`
	Platform string   `json:"platform"`
	CNI      []string `json:"cniVersions"`
}

// ReadBuild reads the build information that the linker embedded.
func ReadBuild() Build {
	b := Build{Version: "(devel)", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH, CNI: spec.Versions()}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	if info.Main.Version != "" {
		b.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Commit = s.Value
		case "vcs.modified":
			b.Modified = s.Value == "true"
		}
	}
	return b
}

// Text returns the build information in two lines.
func (b Build) Text(program string) string {
	commit := ""
	if b.Commit != "" {
		commit = fmt.Sprintf(" (%.12s)", b.Commit)
	}
	return fmt.Sprintf("%s %s%s %s %s\nCNI %s\n", program, b.Version, commit, b.Go, b.Platform, strings.Join(b.CNI, " "))
}

// AsksVersion reports whether the first argument asks for the version, in any of the usual
// forms.
func AsksVersion(args []string) bool {
	if len(args) == 0 {
		return false
	}
	switch args[0] {
	case "version", "--version", "-version", "-v", "-V":
		return true
	}
	return false
}
