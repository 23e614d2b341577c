// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/patchbay-net/patchbay/cli/gc"
)

// nodeFlags are those of gc without a network.
type nodeFlags struct {
	Apply bool          `long:"apply" description:"remove what is dead; without it only list it"`
	From  runtimeName   `long:"from" value-name:"crictl|podman|docker|FILE" description:"treat containers that this runtime lists as alive; ids from FILE, one a line"`
	Grace time.Duration `long:"grace" value-name:"DURATION" default:"1m" description:"keep what is younger"`
}

// node is gc without a network.
func (c *gcCommand) node() error {
	if c.All || len(c.Valid) > 0 || c.DryRun {
		return usage("without NETWORK, gc looks at the whole node; --apply removes", "--all, --valid and --dry-run need a NETWORK")
	}
	if c.Grace < 0 {
		return usage("", "--grace %v is negative", c.Grace)
	}
	o, err := c.app.gcOptions(c.From, c.Grace)
	if err != nil {
		return err
	}
	o.Apply, o.Driver = c.Apply, c.From == "docker"
	report, err := gc.Run(c.app.ctx, o)
	if report == nil {
		return err
	}
	if c.JSON {
		return errors.Join(c.app.printJSON(reportList(report)), err)
	}
	if perr := c.app.print(reportText(report)); perr != nil {
		return perr
	}
	if l := report.Legacy; l != nil && l.Note != "" {
		c.app.hint("%s; run the commands above where iptables-legacy is", l.Note)
	}
	if n := report.Dead(); n > 0 && !c.Apply {
		c.app.hint("patchbay gc --apply removes what is dead")
	}
	return err
}

// gcOptions are for all that looks for what is dead. The callers report what cannot be read.
func (a *app) gcOptions(from runtimeName, grace time.Duration) (o gc.Options, err error) {
	o = gc.Options{Paths: a.paths, Runtime: a.runtime(nil), NewSession: a.session, Grace: grace}
	o.Runtime.Warn = nil
	if from != "" {
		o.Live, err = gc.Containers(a.ctx, string(from), a.stdin)
	}
	return o, err
}

// reportList is the report as --json prints it. Objects without an attachment become
// attachments without names. Living attachments are left to ps.
func reportList(r *gc.Report) []*gc.Attachment {
	list := append([]*gc.Attachment{}, r.Attachments...)
	for _, s := range r.Stray {
		s.Why = s.Said()
		list = append(list, s)
	}
	if r.Legacy != nil {
		rules := &gc.Attachment{State: gc.Dead, Why: whyLegacy, Removed: r.Legacy.Removed, Error: r.Legacy.Note}
		for _, argv := range r.Legacy.Commands {
			rules.Objects = append(rules.Objects, gc.Object{Kind: "command", Name: shellQuoted(argv...)})
		}
		list = append(list, rules)
	}
	return list
}

// whyLegacy is the reason for removing rules of iptables-legacy.
const whyLegacy = "rules of a dead attachment in iptables-legacy"

// reportText is a table with a row per object; a cell that repeats the one above is empty.
func reportText(r *gc.Report) string {
	t := newTable("STATE", "ATTACHMENT", "WHY", "OBJECT")
	for _, a := range r.All() {
		state, name, why := stateText(a.State, a.Removed), a.Name(), a.Said()
		if a.Stray() {
			name = ""
		}
		for _, o := range a.Objects {
			t.row(state, name, why, o.Kind+" "+o.Name)
			state, name, why = "", "", ""
		}
	}
	if r.Legacy != nil {
		for _, argv := range r.Legacy.Commands {
			t.row(stateText(gc.Dead, r.Legacy.Removed), "", whyLegacy, shellQuoted(argv...))
		}
	}
	if len(r.All()) == 0 && r.Legacy == nil {
		return fmt.Sprintf("nothing is left over; %s\n", living(r.Alive))
	}
	return t.String() + living(r.Alive) + "\n"
}

func living(n int) string {
	if n == 1 {
		return "1 attachment lives"
	}
	return fmt.Sprintf("%d attachments live", n)
}

func stateText(s gc.State, removed bool) string {
	if removed {
		return "removed"
	}
	return string(s)
}

// shellQuoted is a command line that can be pasted into a shell.
func shellQuoted(argv ...string) string {
	out := make([]string, len(argv))
	for i, w := range argv {
		out[i] = w
		if strings.ContainsAny(w, " \t\"'\\$`!*?[](){}<>|&;#~") || w == "" {
			out[i] = "'" + strings.ReplaceAll(w, "'", `'\''`) + "'"
		}
	}
	return strings.Join(out, " ")
}
