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

// Legacy are rules that the reference plugins left in iptables-legacy, which
// cannot be reached over netlink, for dead attachments.
type Legacy struct {
	Commands [][]string `json:"commands"` // that remove them, in order
	Note     string     `json:"note,omitempty"`
	Removed  bool       `json:"removed"`
}

// dead is whose rules go.
type dead struct {
	iptnft.Attachment
	addrs []netip.Addr
}

// legacyRules looks through the nat and filter tables of iptables-legacy with
// the program itself, where they are in use; nil when nothing is there. Without
// the program the note says what to do.
func legacyRules(ctx context.Context, proc string, list []dead) (*Legacy, error) {
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

// blind is a command for who has the program, when we have not and so cannot
// see the rules: it puts the table back without the lines of dead attachments.
func blind(program, table string, list []dead) [][]string {
	var patterns []string
	for _, d := range list {
		if table == "nat" {
			patterns = append(patterns, d.LegacyChains()...)
			continue
		}
		for _, a := range d.addrs {
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

// planLegacy reads the output of iptables-save: the entries that lead to a dead
// attachment's chains, name it or accept its address go, then the chains.
func planLegacy(program, table, save string, list []dead) (commands [][]string) {
	chains := make(map[string]bool)
	addrs := make(map[string]bool)
	for _, d := range list {
		for _, c := range d.LegacyChains() {
			chains[c] = true
		}
		for _, a := range d.addrs {
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

// after is the word that follows a flag; empty without one.
func after(words []string, flag string) string {
	if i := slices.Index(words, flag); i >= 0 && i+1 < len(words) {
		return words[i+1]
	}
	return ""
}

func namesDead(words []string, list []dead) bool {
	a, ok := iptnft.ParseComment(after(words, "--comment"))
	return ok && slices.ContainsFunc(list, func(d dead) bool {
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
