// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/internal/results"
)

// mostNamed is how many attachments one finding lists by name.
const mostNamed = 3

// liveAttachments returns the attachments of this node whose namespace exists. The check of leftovers
// covers the others.
func (n *Node) liveAttachments() (inspector *Inspector, list []*Attached, err error) {
	inspector = NewInspector(n.Kernel, n.Paths.Proc)
	all, err := inspector.List(n.Runtime)
	for _, a := range all {
		if a.NetNS != "" && !a.NetNSDeleted() {
			list = append(list, a)
		}
	}
	return inspector, list, err
}

// attachments compares the interface, addresses and routes of every container with the result of
// its ADD. Containers that differ in the same way share a finding. Then it runs our plugins' CHECK, because the container also needs a bridge, a gateway,
// a master or forwarding.
func attachments(ctx context.Context, n *Node) (found []Finding, err error) {
	inspector, list, err := n.liveAttachments()
	broken, err := brokenFiles(err)
	for _, b := range broken {
		found = append(found, warning(b.Error()+": its objects are neither checked nor repaired", "start the container again (patchbay del and add); patchbay gc --apply removes what is dead"))
	}
	var lost, uncached []string
	var different groups
	for _, a := range list {
		diffs, lerr := inspector.links(ctx, a)
		if lerr == nil && len(diffs) == 0 {
			diffs = n.ask(ctx, a).Other
		}
		if a.NetNSDeleted() { // the container ended meanwhile
			continue
		}
		if lerr != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", a.Name(), lerr))
		}
		if len(diffs) > 0 {
			different.add(strings.Join(diffs, "; "), a.Name())
		}
		if inspector.Unrecorded(a) {
			lost = append(lost, a.Name())
		}
		if a.Uncached(n.Paths) {
			uncached = append(uncached, a.Name())
		}
	}
	for _, what := range different.order {
		found = append(found, problem(several(different.names[what])+": "+what, "patchbay repair restores what is missing on the host, and says what it cannot; patchbay del and add restore what is missing in the container, and start it again"))
	}
	if len(uncached) > 0 {
		found = append(found, warning(fmt.Sprintf("%s: no result of the ADD is left below %s, so its addresses and routes are unknown", several(uncached), results.Dir(n.Paths.CNI)),
			"start the container again, when it suits"))
	}
	if len(lost) > 0 {
		found = append(found, warning(fmt.Sprintf("%s: no record of ours is left below %s, so patchbay repair could restore nothing", several(lost), n.Paths.Run),
			"start the container again, when it suits"))
	}
	return found, err
}

// brokenFiles splits joined errors into two groups: errors of unreadable records and results, and
// all others.
func brokenFiles(err error) (broken []error, others error) {
	several, ok := err.(interface{ Unwrap() []error })
	if ok && !slices.ContainsFunc(several.Unwrap(), func(e error) bool { return e == record.ErrBroken || e == chain.ErrBrokenCache }) { //nolint:errorlint // err itself, not a wrapped one
		for _, e := range several.Unwrap() {
			b, o := brokenFiles(e)
			broken, others = append(broken, b...), errors.Join(others, o)
		}
		return broken, others
	}
	if errors.Is(err, record.ErrBroken) || errors.Is(err, chain.ErrBrokenCache) {
		return []error{err}, nil
	}
	return nil, err
}

// ask runs our plugins' CHECK once per attachment, and returns the differences it found. If no
// runtime has cached the configuration, it returns none.
func (n *Node) ask(ctx context.Context, a *Attached) *netstate.Differences {
	key := a.Owner()
	if d := n.asked[key]; d != nil {
		return d
	}
	if n.asked == nil {
		n.asked = make(map[owner.Key]*netstate.Differences)
	}
	d := new(netstate.Differences)
	if list, err := chain.ParseCached(a.Config); err == nil {
		s := n.NewSession()
		defer s.Close()
		d = netstate.Found(Inspect(ctx, n.Runtime, s, list, a.Attachment))
	}
	n.asked[key] = d
	return d
}

// missing reports the attachments that lack firewall elements. Attachments that lack the same
// elements share a finding.
func (n *Node) missing(ctx context.Context) (found []Finding, err error) {
	inspector, list, err := n.liveAttachments()
	_, err = brokenFiles(err) // the check of attachments reports broken files
	var recorded, lost lacks
	for _, a := range list {
		switch has, lerr := inspector.Firewall(ctx, a); {
		case lerr != nil:
			err = errors.Join(err, lerr)
		case len(has) > 0:
			recorded.add(a, has)
		case !a.NetNSDeleted(): // a record may be lost, so ask our plugins, which derive the elements from the configuration
			lost.add(a, n.ask(ctx, a).Lost)
		}
	}
	found = recorded.findings("patchbay repair; docs/cli.md has a hook that calls it when the firewall restarts")
	return append(found, lost.findings("start the container again: its records are lost, so patchbay repair cannot restore these elements")...), err
}

// lacks groups attachments by the elements that they lack.
type lacks struct {
	groups
	counts map[string]int
}

func (l *lacks) add(a *Attached, lost []netstate.Lost) {
	if len(lost) == 0 {
		return
	}
	if l.counts == nil {
		l.counts = make(map[string]int)
	}
	d := netstate.Differences{Lost: lost}
	what := d.Sentence()
	l.groups.add(what, a.Name())
	l.counts[what] += len(lost)
}

func (l *lacks) findings(fix string) (found []Finding) {
	for _, what := range l.order {
		text := fmt.Sprintf("%s: %s missing from the firewall (%d elements)", several(l.names[what]), what, l.counts[what])
		found = append(found, problem(text, "%s", fix))
	}
	return found
}

// several names the first attachments of a list and counts the others.
func several(names []string) string {
	if len(names) <= mostNamed {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:mostNamed], ", "), len(names)-mostNamed)
}
