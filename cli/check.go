// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/cli/doctor"
	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/results"
	"github.com/patchbay-net/patchbay/spec"
)

const checkLong = `Check with every plugin of NETWORK that the attachment is still as ADD made it.
The exit status is 0 if it is. Otherwise the error lists every difference.
--verbose also lists the missing elements of the firewall.

  patchbay check mynet blue
  patchbay check --all          every attachment of this node`

type checkCommand struct {
	All     bool `long:"all" description:"check every attachment of this node"`
	Verbose bool `long:"verbose" short:"v" description:"list the missing firewall elements, and report each plugin's outcome on standard error"`
	JSON    bool `long:"json" description:"print what was found as JSON"`
	target
	Args struct {
		Network networkName `positional-arg-name:"NETWORK"`
		NetNS   nsName      `positional-arg-name:"NETNS"`
	} `positional-args:"yes"`
}

// Execute checks one attachment, or all of them.
func (c *checkCommand) Execute([]string) error {
	switch given := c.Args.NetNS != ""; {
	case c.All && (c.Args.Network != "" || c.ID != nil):
		return usage("patchbay check --all, or patchbay check NETWORK NETNS", "--all checks every attachment, but one is named")
	case c.All:
		return c.all()
	case !given:
		return usage("patchbay check NETWORK NETNS, or patchbay check --all", "a network and a namespace are needed")
	}
	return c.one()
}

func (c *checkCommand) one() error {
	n, a, err := c.resolve(c.Args.Network, c.Args.NetNS)
	if err != nil {
		return err
	}
	f := c.app.checkOne(c.app.runtime(n), n.List, a)
	if c.ID == nil {
		f.name = called(n.Name, string(c.Args.NetNS), a.IfName)
	}
	return c.tell(f)
}

// finding is the outcome of CHECK for one attachment.
type finding struct {
	Network     string   `json:"network"`
	ContainerID string   `json:"containerID"`
	IfName      string   `json:"ifname"`
	NetNS       string   `json:"netns,omitempty"`
	OK          bool     `json:"ok"`
	Missing     []string `json:"missing,omitempty"`     // firewall elements, described for a user
	Details     []string `json:"details,omitempty"`     // the same elements, in the syntax of nft
	Differences []string `json:"differences,omitempty"` // differences outside the firewall

	name  string
	cause error
	found *netstate.Differences
}

// checkOne runs CHECK. If plugins fail because the attachment has no cached result, checkOne
// reports the missing result.
func (a *app) checkOne(rt *chain.Runtime, list *chain.List, at chain.Attachment) *finding {
	f := newFinding(list.Name, at).fill(rt.Check(a.ctx, list, at))
	cached, err := rt.Cached(list.Name, at)
	if f.OK || err != nil || cached != nil && cached.Result != nil {
		return f
	}
	return f.fill(spec.Errorf(spec.ErrorCode(f.cause), "%s", a.uncached()))
}

// uncached returns the text of the error for an attachment without a cached result.
func (a *app) uncached() string {
	return fmt.Sprintf("no result of its ADD is below %s, so what it should have is not known (patchbay del and add)", results.Dir(a.paths.CNI))
}

func newFinding(network string, at chain.Attachment) *finding {
	where := at.ContainerID
	if at.ContainerID == containerID(at.NetNS) {
		where = at.NetNS
	}
	return &finding{
		Network: network, ContainerID: at.ContainerID, IfName: at.IfName, NetNS: at.NetNS, name: called(network, where, at.IfName),
	}
}

// called names an attachment in messages as network/container. For a container id that cnitool
// derived from the namespace's path, called uses the last part of that path.
func called(network, where, ifName string) string {
	name := network + "/" + filepath.Base(where)
	if ifName != "eth0" {
		name += "/" + ifName
	}
	return name
}

func (f *finding) fill(err error) *finding {
	f.cause, f.OK, f.found = err, err == nil, netstate.Found(err)
	f.Missing, f.Details, f.Differences = f.found.What(), f.found.Details(), slices.Concat(f.found.Other, f.found.Tables)
	return f
}

// text returns one line for all that is missing, and one line for each other difference.
func (f *finding) text(verbose bool) string {
	text := f.name + ": " + f.found.Error()
	if verbose && len(f.Details) > 0 {
		text += "\n" + strings.Join(f.Details, "\n")
	}
	return text
}

// tell returns an error if CHECK found something. Otherwise it returns nil. The error has the
// code of the first failing plugin. With --json, its details list the missing firewall elements.
func (c *checkCommand) tell(f *finding) error {
	err := f.err(c.Verbose)
	if err == nil || !c.JSON {
		return err
	}
	e := *spec.AsError(err)
	e.CNIVersion = spec.Current
	return errors.Join(c.app.printJSON(e.WithDetails("%s", strings.Join(f.Details, "; "))), err)
}

// err returns an error if CHECK found something. Otherwise it returns nil.
func (f *finding) err(verbose bool) error {
	if f.OK {
		return nil
	}
	return &failure{err: spec.Errorf(spec.ErrorCode(f.cause), "%s", f.text(verbose)), code: exitFailure, hint: cmp.Or(hintFor(f.cause), f.hint())}
}

// onHost is the advice for differences outside the firewall. The text about the firewall has its own.
const onHost = "patchbay repair restores what is missing on the host, and says what it cannot"

func (f *finding) hint() string {
	if f.OK || len(f.found.Other) == 0 {
		return ""
	}
	return onHost
}

// all checks the attachments that runtimes have cached, and those that have only a record.
func (c *checkCommand) all() error {
	found, unseen := c.app.checkAll()
	if unseen != nil {
		unseen = rootless("check --all", fmt.Errorf("not all could be checked: %w", unseen))
	}
	bad, hint := 0, ""
	for _, f := range found {
		if !f.OK {
			bad++
			hint = cmp.Or(hint, f.hint())
		}
	}
	err := c.app.show(found, c.report(found, bad))
	if hint != "" && !c.JSON {
		c.app.hint("%s", hint)
	}
	if err == nil && unseen == nil && bad > 0 {
		return exit(exitFailure)
	}
	return errors.Join(unseen, err)
}

func (c *checkCommand) report(found []*finding, bad int) string {
	var b strings.Builder
	for _, f := range found {
		if !f.OK {
			b.WriteString(strings.ReplaceAll(f.text(c.Verbose), "\n", "\n  ") + "\n")
		}
	}
	fmt.Fprintf(&b, "%d of %d attachments are as ADD made them\n", len(found)-bad, len(found))
	return b.String()
}

// checkAll runs CHECK for every attachment with a cached configuration. For the others it
// compares only their records with the kernel. It skips an attachment whose namespace is gone.
func (a *app) checkAll() ([]*finding, error) {
	s := a.session()
	defer s.Close()
	inspector := doctor.NewInspector(kernel.OfSession(s), a.paths.Proc)
	rt := a.runtime(nil)
	list, err := inspector.List(rt)
	found := make([]*finding, 0, len(list))
	for _, at := range list {
		list, lerr := chain.ParseCached(at.Config)
		f := newFinding(at.Network, at.Attachment)
		switch {
		case at.NetNSDeleted():
			f.fill(fmt.Errorf("its namespace %s is gone (patchbay gc --apply removes what is left)", at.NetNS))
		case lerr == nil && at.Result != nil && spec.AtLeast(list.CNIVersion, "0.4.0"):
			f.fill(rt.Check(a.ctx, list, at.Attachment))
		default:
			diffs, derr := inspector.Compare(a.ctx, at)
			if at.Uncached(a.paths) {
				diffs.Other = append(diffs.Other, a.uncached())
			}
			if diffs.Any() {
				derr = errors.Join(diffs, derr)
			}
			f.fill(derr)
		}
		found = append(found, f)
	}
	return found, err
}
