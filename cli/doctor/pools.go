// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"net/netip"
	"strings"
	"time"

	"github.com/patchbay-net/patchbay/cli/gc"
	"github.com/patchbay-net/patchbay/internal/traces"
	"github.com/patchbay-net/patchbay/ipam"
)

// pools warns about address pools that are nearly full, and reports full ones.
func pools(ctx context.Context, n *Node) (found []Finding, err error) {
	for _, net := range n.Networks {
		for i := range net.Members {
			if m := &net.Members[i]; len(m.sets()) > 0 {
				more, perr := n.pool(ctx, net, m)
				found, err = append(found, more...), errors.Join(err, perr)
			}
		}
	}
	return found, err
}

func (n *Node) pool(ctx context.Context, net *Network, m *Member) (found []Finding, err error) {
	held, err := traces.Reserved(ctx, traces.Pool(n.Paths, net.Name, m.IPAM.DataDir), ipam.Holder{})
	if err != nil {
		return nil, err
	}
	for _, set := range m.sets() {
		used := 0
		for _, r := range held {
			if set.Contains(r.Addr) {
				used++
			}
		}
		found = append(found, fill(net.Name, set, used)...)
	}
	return found, nil
}

// fill returns a finding if a range set is full or nearly full.
func fill(network string, set ipam.RangeSet, used int) []Finding {
	total := size(set)
	what := fmt.Sprintf("%d of %d addresses of network %s (%s) are taken", used, total, network, set)
	const fix = "patchbay gc shows what is dead; a larger or a second range otherwise"
	switch {
	case used >= total:
		return []Finding{problem(what+": no container can be attached", fix)}
	case used >= total-total/10:
		return []Finding{warning(what, fix)}
	}
	return nil
}

// size counts the addresses that can be assigned, which excludes the gateways. It returns at most
// many, a number that no node can use up.
func size(set ipam.RangeSet) int {
	const many = math.MaxInt / 2
	total := 0
	for _, r := range set {
		total += span(r.Start, r.End, many)
		if r.Contains(r.Gateway) {
			total--
		}
		if total >= many {
			return many
		}
	}
	return total
}

// span counts the addresses from first to last. It returns at most most.
func span(first, last netip.Addr, most int) int {
	a, b := first.As16(), last.As16()
	low := binary.BigEndian.Uint64(b[8:]) - binary.BigEndian.Uint64(a[8:])
	if !bytes.Equal(a[:8], b[:8]) || low >= uint64(most) {
		return most
	}
	return int(low) + 1
}

// leftovers reports what gc would remove, and what gc is unsure about.
func leftovers(ctx context.Context, n *Node) (found []Finding, err error) {
	o := n.GC
	o.Apply = false
	o.LockTime = 10 * time.Second // a check should not wait longer
	report, err := gc.Run(ctx, o)
	if report == nil {
		return nil, err
	}
	var dead, unsure []string
	addresses := 0
	for _, a := range report.Attachments {
		switch {
		case a.State == gc.Dead:
			dead = append(dead, a.Name())
			addresses += len(a.Addrs)
		case !a.Young:
			unsure = append(unsure, a.Name()+": "+a.Why)
		}
	}
	if len(dead) > 0 {
		found = append(found, warning(fmt.Sprintf("not removed yet: %s with %s: %s", count(len(dead), "dead attachment"), count(addresses, "address"), some(dead)),
			"patchbay gc shows it, patchbay gc --apply removes it"))
	}
	if len(unsure) > 0 {
		found = append(found, warning(fmt.Sprintf("%s may be dead: %s", count(len(unsure), "attachment"), some(unsure)), "patchbay gc --from RUNTIME decides by the runtime's list"))
	}
	for _, s := range report.Stray {
		if fix := s.Fix(); fix != "" {
			found = append(found, warning(s.Name()+": "+s.Why, "%s", fix))
		}
	}
	if l := report.Legacy; l != nil {
		found = append(found, warning(fmt.Sprintf("%s of dead attachments in iptables-legacy", count(len(l.Commands), "rule or chain")), "%s", legacyFix(l)))
	}
	return found, err
}

func legacyFix(l *gc.Legacy) string {
	if l.Note == "" {
		return "patchbay gc --apply"
	}
	lines := []string{l.Note}
	for _, argv := range l.Commands { // if Note is set, a user must run these commands
		lines = append(lines, argv[len(argv)-1])
	}
	return strings.Join(lines, "; ")
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	if strings.HasSuffix(what, "s") {
		what += "e"
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// some names at most three elements of a list.
func some(list []string) string {
	if len(list) > 3 {
		return strings.Join(list[:3], "; ") + fmt.Sprintf("; and %d more", len(list)-3)
	}
	return strings.Join(list, "; ")
}
