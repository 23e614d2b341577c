// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/cli/gc"
	"github.com/patchbay-net/patchbay/spec"
)

const gcLong = `Show what dead containers left. Only --apply removes it.

Without NETWORK, look at the whole node: compare records, cached results of
every runtime, address files, links and firewall rules (also those of the
reference plugins) with the namespaces that exist. An attachment is dead if its
namespace is gone and, with --from, the runtime does not list its container. If
this is not certain, the attachment stays and is shown with the reason.

  patchbay gc                     what would be removed
  patchbay gc --apply --from podman

With NETWORK, show the attachments of NETWORK whose containers are gone, by the
same rules, but without a grace period. With --apply, run the GC of the
specification, which removes them. --valid names the attachments to keep, whether
their namespace exists or not; all others go. --all keeps none: it detaches every
container of the network, as cnitool gc does. An attachment that is made while gc
runs stays.

  patchbay gc mynet
  patchbay gc --apply mynet

With --kube-proxy, show what kube-proxy left in nftables and iptables-nft.
Nothing of it is removed as long as kube-proxy runs, or patchbay does not do
the Services of the node.

  patchbay gc --kube-proxy --apply`

type gcCommand struct {
	app *app
	nodeFlags
	verbosity
	Apply  bool     `long:"apply" description:"remove what is dead; without it only show it"`
	Valid  []string `long:"valid" value-name:"ID[/IFNAME]" description:"keep this attachment and none of the others; may be repeated"`
	All    bool     `long:"all" description:"keep no attachment"`
	IfName string   `long:"ifname" short:"i" value-name:"NAME" env:"CNI_IFNAME" default:"eth0" description:"interface of a --valid that names none"`
	JSON   bool     `long:"json" description:"print a JSON array, or the error as an object"`
	Kube   bool     `long:"kube-proxy" description:"show what kube-proxy left, or with --apply remove it"`
	Args   struct {
		Network networkName `positional-arg-name:"NETWORK"`
	} `positional-args:"yes"`
}

// Execute shows what is dead and, with --apply, removes it.
func (c *gcCommand) Execute([]string) error {
	if c.Kube {
		return c.kubeProxy()
	}
	if c.Args.Network == "" {
		return c.node()
	}
	n, err := c.collectable()
	if err != nil {
		return err
	}
	named, err := c.named()
	if err != nil {
		return err
	}
	j := &judgement{app: c.app, network: n.Name, explicit: c.explicit(), named: named}
	kerr := j.runs(c.Apply)
	if c.Apply {
		err = j.apply(n)
	} else {
		_, err = j.keep(c.app.ctx)
	}
	return errors.Join(c.print(j), kerr, err)
}

// collectable finds the network, and returns an error if gc must not run for it as asked.
func (c *gcCommand) collectable() (*network, error) {
	if c.From != "" {
		return nil, usage("patchbay gc without NETWORK takes it", "--from is for the whole node")
	}
	if c.All && len(c.Valid) > 0 {
		return nil, usage("", "--all and --valid exclude each other")
	}
	n, err := c.app.network(string(c.Args.Network))
	if err == nil && n.DisableGC {
		err = usage("patchbay gc --apply, without NETWORK, removes what is dead on the whole node",
			"network %s sets disableGC, as networks do that several runtimes share: no runtime may run its GC", n.Name)
	}
	return n, err
}

// explicit reports whether the flags list the attachments to keep. Then gc need not find out
// which are alive.
func (c *gcCommand) explicit() bool { return c.All || len(c.Valid) > 0 }

// named returns the attachments that --valid names.
func (c *gcCommand) named() (keep []spec.AttachmentKey, err error) {
	for _, v := range c.Valid {
		id, name, ok := strings.Cut(v, "/")
		if !ok {
			name = ifName(c.IfName)
		}
		if err := cmp.Or(spec.ValidateContainerID(id), spec.ValidateIfName(name)); err != nil {
			return nil, usage("", "--valid %s: %w", v, err)
		}
		keep = append(keep, spec.AttachmentKey{ContainerID: id, IfName: name})
	}
	return keep, nil
}

// print prints what is dead or was removed, in the words of reportText.
func (c *gcCommand) print(j *judgement) error {
	if c.JSON {
		return c.app.printJSON(append(append([]judgedOne{}, j.dead...), j.unsure...))
	}
	for _, s := range j.unsure {
		c.app.warn(fmt.Errorf("%s %s stays: %s", s.Network, s.name(), s.Why))
	}
	if len(j.dead)+len(j.unsure) == 0 {
		return c.app.print("nothing is left over\n")
	}
	for _, s := range j.dead {
		if err := c.app.printf("%s %s %s\n", stateText(s.State, s.Removed, c.Apply), s.Network, s.name()); err != nil {
			return err
		}
	}
	if len(j.dead) > 0 && !c.Apply {
		c.app.hint("%s removes it", shellQuoted(append([]string{"patchbay", "gc", "--apply"}, c.app.args[1:]...)...))
	}
	return nil
}

const statusLong = `Check with every plugin of NETWORK that an ADD would work now. The exit status
is 0 if it would. A second argument is ignored, as by cnitool.`

type statusCommand struct {
	app *app
	verbosity
	JSON bool `long:"json" description:"print the error as the CNI error object, too"`
	Args struct {
		Network networkName `positional-arg-name:"NETWORK" required:"1"`
		Ignored []string    `positional-arg-name:"NETNS"`
	} `positional-args:"yes"`
}

// Execute runs STATUS.
func (c *statusCommand) Execute([]string) error {
	n, err := c.app.network(string(c.Args.Network))
	if err != nil {
		return err
	}
	return c.app.ready(c.app.ctx, n)
}

// judgement holds what gc NETWORK decided about the network's attachments.
type judgement struct {
	app      *app
	network  string
	explicit bool // keep only the attachments in named
	named    []spec.AttachmentKey

	judged       *gc.Judged
	dead, unsure []judgedOne
}

// judgedOne is an attachment that gc NETWORK removes, or keeps because it may be alive.
type judgedOne struct {
	*localAttachment
	State   gc.State `json:"state"`
	Why     string   `json:"why,omitempty"`
	Removed bool     `json:"removed"`
}

// runs adds the attachments of killed runs, whose namespaces still exist. It does nothing if the flags
// list the attachments to keep.
func (j *judgement) runs(apply bool) error {
	if j.explicit {
		return nil
	}
	killed, err := j.app.collectRuns(j.network, apply)
	for _, k := range killed {
		s := &localAttachment{Network: k.Network, ContainerID: k.ContainerID, IfName: k.IfName}
		j.dead = append(j.dead, judgedOne{localAttachment: s, State: k.State, Why: k.Why})
	}
	return err
}

// apply runs the network's GC, and notes what it removed. GC keeps an attachment that is in use
// after all, and warns.
func (j *judgement) apply(n *network) error {
	k := chain.Keep{List: n.List, Now: j.keep, Everyones: true}
	if !j.explicit {
		k.Alive = func(a *chain.Cached) bool { return j.judged.Lives(a) }
	}
	err := j.app.runtime(n).GC(j.app.ctx, k)
	remaining, lerr := j.app.attachments(n.Name)
	for i := range j.dead {
		same := func(s *localAttachment) bool { return s.key() == j.dead[i].key() }
		j.dead[i].Removed = lerr == nil && !slices.ContainsFunc(remaining, same)
	}
	return err
}

// keep lists the attachments to keep, which are all that are not certainly dead. The caller makes
// sure that this runtime runs no ADD. If another runtime attaches a container meanwhile, that
// attachment is newer than the list, so it stays.
func (j *judgement) keep(ctx context.Context) (keep []spec.AttachmentKey, err error) {
	attachments, unread := j.app.attachments(j.network)
	j.app.warn(unread)
	if j.explicit {
		for _, s := range attachments {
			if !slices.Contains(j.named, s.key()) {
				j.dead = append(j.dead, judgedOne{localAttachment: s, State: gc.Dead})
			}
		}
		return j.named, nil
	}
	if j.judged, err = j.app.judge(ctx, j.network); err != nil && unread == nil {
		j.app.warn(err)
	}
	for _, a := range j.judged.Attachments {
		keep = append(keep, j.sort(a, attachments)...)
	}
	return keep, nil
}

// sort stores the decision about one attachment. If the attachment stays, sort returns its names.
// If its container is not known, no list can name the attachment, and sort returns nil.
func (j *judgement) sort(a *gc.Candidate, attachments []*localAttachment) (keep []spec.AttachmentKey) {
	s := of(a, attachments)
	v := judgedOne{localAttachment: s, State: a.State, Why: a.Why}
	switch a.State {
	case gc.Dead:
		j.dead = append(j.dead, v)
		return nil
	case gc.Unsure:
		j.unsure = append(j.unsure, v)
	}
	if a.ContainerID == "" {
		return nil
	}
	return []spec.AttachmentKey{s.key()}
}

// of returns the entry in attachments for the attachment a or, if there is none, a new entry with only
// a's names.
func of(a *gc.Candidate, attachments []*localAttachment) *localAttachment {
	s := &localAttachment{Network: a.Network, ContainerID: cmp.Or(a.ContainerID, "owner "+string(a.Owner)), IfName: a.IfName}
	if i := slices.IndexFunc(attachments, func(x *localAttachment) bool { return x.key() == s.key() }); i >= 0 {
		return attachments[i]
	}
	return s
}

// judge calls gc.Judge without a list from a runtime and without a grace period.
func (a *app) judge(ctx context.Context, network string) (*gc.Judged, error) {
	o, err := a.gcOptions("", 0)
	if err != nil {
		return nil, err
	}
	return gc.Judge(ctx, o, network)
}

// nodeFlags holds the flags of gc without a network.
type nodeFlags struct {
	From  runtimeName   `long:"from" value-name:"crictl|podman|docker|FILE" description:"treat containers that this runtime lists as alive; ids from FILE, one a line"`
	Grace time.Duration `long:"grace" value-name:"DURATION" default:"1m" description:"keep what is younger than this"`
}

// node runs gc for the whole node, without a network.
func (c *gcCommand) node() error {
	if c.All || len(c.Valid) > 0 {
		return usage("without NETWORK, gc looks at the whole node, where it never detaches what lives", "--all and --valid need a NETWORK")
	}
	if c.Grace < 0 {
		return usage("", "--grace %v is negative", c.Grace)
	}
	o, err := c.app.gcOptions(c.From, c.Grace)
	if err != nil {
		return err
	}
	o.Apply, o.Driver = c.Apply, c.From == "docker"
	killed, kerr := c.app.collectRuns("", c.Apply)
	report, err := gc.Run(c.app.ctx, o)
	if report == nil {
		return errors.Join(kerr, err)
	}
	for _, k := range killed {
		report.Bury(k)
	}
	err = errors.Join(kerr, err)
	if c.JSON {
		return errors.Join(c.app.printJSON(reportList(report)), err)
	}
	if perr := c.app.print(reportText(report, c.Apply)); perr != nil {
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

// gcOptions returns the options of all commands that search for dead attachments. It turns off
// the runtime's warnings, because these commands report unreadable files themselves.
func (a *app) gcOptions(from runtimeName, grace time.Duration) (o gc.Options, err error) {
	o = gc.Options{Paths: a.paths, Runtime: a.runtime(nil).With(chain.WithWarn(nil)), NewSession: a.session, Grace: grace, SettleTime: a.settle}
	if from != "" {
		o.Live, err = gc.Containers(a.ctx, string(from), a.stdin)
	}
	return o, err
}

// reportList returns the list that --json prints. An object that belongs to no attachment becomes
// an entry without names. The list leaves out living attachments, because ps lists them.
func reportList(r *gc.Report) []*gc.Candidate {
	list := append([]*gc.Candidate{}, r.Attachments...)
	for _, s := range r.Stray {
		s.Why = s.Reason()
		list = append(list, s)
	}
	if r.Legacy != nil {
		rules := &gc.Candidate{State: gc.Dead, Why: whyLegacy, Removed: r.Legacy.Removed, Error: r.Legacy.Note}
		for _, argv := range r.Legacy.Commands {
			rules.Objects = append(rules.Objects, gc.Object{Kind: "command", Name: shellQuoted(argv...)})
		}
		list = append(list, rules)
	}
	return list
}

// whyLegacy tells the user why gc removes rules of iptables-legacy.
const whyLegacy = "rules of a dead attachment in iptables-legacy"

// reportText returns a table with one row for each object. If a cell would repeat the cell above,
// it is empty.
func reportText(r *gc.Report, applied bool) string {
	t := newTable("STATE", "ATTACHMENT", "WHY", "OBJECT")
	for _, a := range r.All() {
		state, name, why := stateText(a.State, a.Removed, applied), a.Name(), a.Reason()
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
			t.row(stateText(gc.Dead, r.Legacy.Removed, applied), "", whyLegacy, shellQuoted(argv...))
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

// stateText says what becomes or became of something that gc found. What is dead after --apply
// could not be removed.
func stateText(s gc.State, removed, applied bool) string {
	switch {
	case removed:
		return "removed"
	case s == gc.Dead && !applied:
		return "would be removed"
	}
	return string(s)
}

// shellQuoted formats a command line so that a user can paste it into a shell.
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
