// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package gc

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/internal/nft/iptnft"
)

// Legacy describes rules for dead attachments that the reference plugins left in
// iptables-legacy. netlink cannot reach those rules.
type Legacy struct {
	Commands [][]string // the commands that remove the rules, in order
	Note     string     // why gc cannot run the commands, or ""
	Removed  bool
}

// legacyRules finds the rules of the attachments for which fits returns true. It runs the
// program of iptables-legacy to read the tables nat and filter, if the kernel has them. If the
// program is missing, Note says what to do. It returns nil if there are no rules.
func legacyRules(ctx context.Context, proc string, among []*Candidate, fits func(*Candidate) bool) (*Legacy, error) {
	list := slices.DeleteFunc(slices.Clone(among), func(a *Candidate) bool { return a.ContainerID == "" || !fits(a) })
	tables, err := iptnft.LegacyTables(proc)
	if err != nil || len(list) == 0 {
		return nil, err
	}
	all := new(Legacy)
	for _, f := range [...]struct{ family, program string }{{"ip ", "iptables-legacy"}, {"ip6 ", "ip6tables-legacy"}} {
		for _, table := range [...]string{"nat", "filter"} {
			if !slices.Contains(tables, f.family+table) {
				continue
			}
			save, err := ask(ctx, []string{f.program + "-save", "-t", table})
			if errors.Is(err, errNoProgram) {
				all.Note = f.program + " is not installed; see `" + f.program + "-save` where it is"
				all.Commands = append(all.Commands, blind(f.program, table, list)...)
				continue
			}
			if err != nil {
				return nil, err
			}
			all.Commands = append(all.Commands, planLegacy(f.program, table, string(save), list)...)
		}
	}
	if len(all.Commands) == 0 {
		return nil, nil
	}
	return all, nil
}

// If the program of iptables-legacy is missing here, blind returns commands that an operator can
// run on a machine with that program. gc cannot read the rules, so the commands write the table
// again without the lines of dead attachments.
func blind(program, table string, list []*Candidate) [][]string {
	var patterns []string
	for _, d := range list {
		if table == "nat" {
			patterns = append(patterns, d.inIPTables().LegacyChains()...)
			continue
		}
		for _, a := range d.Addrs {
			if a.Is4() == (program == "iptables-legacy") {
				patterns = append(patterns, fmt.Sprintf("^-A CNI-FORWARD .*%s ", netip.PrefixFrom(a, a.BitLen())))
			}
		}
	}
	if len(patterns) == 0 {
		return nil
	}
	line := program + "-save -t " + table + " | grep -v"
	for _, p := range patterns {
		line += " -e '" + p + "'"
	}
	return [][]string{{"sh", "-c", line + " | " + program + "-restore -T " + table}}
}

// planLegacy parses the output of iptables-save. It deletes the rules that jump to a chain of a
// dead attachment, name the attachment or accept its address. Then it deletes the chains.
func planLegacy(program, table, save string, list []*Candidate) (commands [][]string) {
	chains := make(map[string]bool)
	addrs := make(map[string]bool)
	for _, d := range list {
		for _, c := range d.inIPTables().LegacyChains() {
			chains[c] = true
		}
		for _, a := range d.Addrs {
			addrs[netip.PrefixFrom(a, a.BitLen()).String()] = true
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
		accepts := words[1] == "CNI-FORWARD" && after(words, "-j") == "ACCEPT" && (addrs[after(words, "-s")] || addrs[after(words, "-d")])
		if chains[after(words, "-j")] || accepts || namesDead(words, list) {
			commands = append(commands, append([]string{program, "-t", table, "-D"}, words[1:]...))
		}
	}
	return append(commands, chainCommands(program, present)...)
}

// after returns the word after a flag. If there is none, it returns "".
func after(words []string, flag string) string {
	if i := slices.Index(words, flag); i >= 0 && i+1 < len(words) {
		return words[i+1]
	}
	return ""
}

func namesDead(words []string, list []*Candidate) bool {
	a, ok := iptnft.ParseComment(after(words, "--comment"))
	return ok && slices.ContainsFunc(list, func(d *Candidate) bool {
		return d.Network == a.Network && d.ContainerID == a.ContainerID
	})
}

func chainCommands(program string, chains []string) (commands [][]string) {
	for _, flag := range [...]string{"-F", "-X"} {
		for _, c := range chains {
			commands = append(commands, []string{program, "-t", "nat", flag, c})
		}
	}
	return commands
}

// splitSaved splits a line of iptables-save into words. Blanks separate words, quotes enclose a
// word, and a backslash escapes the next character.
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

// Remove runs all commands. If one fails, it still runs the others.
func (l *Legacy) Remove(ctx context.Context) error {
	if l.Note != "" {
		return nil // the operator must run the commands
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
