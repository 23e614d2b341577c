// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/internal/nft/iptnft"
)

// Legacy are rules that the reference plugins left in iptables-legacy, which
// cannot be reached over netlink, for dead attachments.
type Legacy struct {
	Commands [][]string `json:"commands"` // that remove them, in order
	Note     string     `json:"note,omitempty"`
	Removed  bool       `json:"removed"`
}

// LegacyRules looks through the nat table of iptables-legacy with the program
// itself, when the table is in use; nil when nothing is there. dead are the
// attachments whose rules go. Without the program the note says what to do.
func LegacyRules(ctx context.Context, proc string, dead []iptnft.Attachment) (*Legacy, error) {
	tables, err := iptnft.LegacyTables(proc)
	if err != nil || len(dead) == 0 {
		return nil, err
	}
	all := new(Legacy)
	for _, f := range [...]struct{ table, program string }{{"ip nat", "iptables-legacy"}, {"ip6 nat", "ip6tables-legacy"}} {
		if !slices.Contains(tables, f.table) {
			continue
		}
		save, err := ask(ctx, []string{f.program + "-save", "-t", "nat"})
		if errors.Is(err, errNoProgram) {
			all.Note = fmt.Sprintf("%s is not installed; see `%s-save -t nat` where it is", f.program, f.program)
			for _, a := range dead {
				all.Commands = append(all.Commands, chainCommands(f.program, a.LegacyChains(), nil)...)
			}
			continue
		}
		if err != nil {
			return nil, err
		}
		all.Commands = append(all.Commands, planLegacy(f.program, string(save), dead)...)
	}
	if len(all.Commands) == 0 {
		return nil, nil
	}
	return all, nil
}

// planLegacy reads the output of iptables-save: the entries that lead to a dead
// attachment's chains or name it go, then the chains.
func planLegacy(program, save string, dead []iptnft.Attachment) (commands [][]string) {
	chains := make(map[string]bool)
	for _, a := range dead {
		for _, c := range a.LegacyChains() {
			chains[c] = true
		}
	}
	var present []string
	for line := range strings.Lines(save) {
		if name, _, ok := strings.Cut(strings.TrimPrefix(line, ":"), " "); ok && line[0] == ':' && chains[name] {
			present = append(present, name)
		}
		words := splitSaved(strings.TrimSpace(line))
		if len(words) < 2 || words[0] != "-A" || chains[words[1]] {
			continue
		}
		if i := slices.Index(words, "-j"); i > 0 && i+1 < len(words) && chains[words[i+1]] || namesDead(words, dead) {
			commands = append(commands, append([]string{program, "-t", "nat", "-D"}, words[1:]...))
		}
	}
	return append(commands, chainCommands(program, present, nil)...)
}

func namesDead(words []string, dead []iptnft.Attachment) bool {
	i := slices.Index(words, "--comment")
	if i < 0 || i+1 >= len(words) {
		return false
	}
	a, ok := iptnft.ParseComment(words[i+1])
	return ok && slices.ContainsFunc(dead, func(d iptnft.Attachment) bool {
		return d.Network == a.Network && d.ContainerID == a.ContainerID
	})
}

func chainCommands(program string, chains []string, commands [][]string) [][]string {
	for _, flag := range [...]string{"-F", "-X"} {
		for _, c := range chains {
			commands = append(commands, []string{program, "-t", "nat", flag, c})
		}
	}
	return commands
}

// splitSaved splits a line of iptables-save: blanks separate, quotes enclose, a
// backslash keeps the next character.
func splitSaved(line string) (words []string) {
	var word strings.Builder
	quoted, begun := false, false
	for i := 0; i < len(line); i++ {
		switch c := line[i]; {
		case c == '\\' && i+1 < len(line):
			i++
			word.WriteByte(line[i])
			begun = true
		case c == '"':
			quoted, begun = !quoted, true
		case c == ' ' && !quoted:
			if begun {
				words = append(words, word.String())
			}
			word.Reset()
			begun = false
		default:
			word.WriteByte(c)
			begun = true
		}
	}
	if begun {
		words = append(words, word.String())
	}
	return words
}

// Remove runs the commands. Each is tried whatever the others say.
func (l *Legacy) Remove(ctx context.Context) error {
	if l.Note != "" {
		return nil // they are for the operator
	}
	var errs []error
	for _, argv := range l.Commands {
		_, err := ask(ctx, argv)
		errs = append(errs, err)
	}
	err := errors.Join(errs...)
	l.Removed = err == nil
	return err
}
