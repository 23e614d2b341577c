// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"context"
	"fmt"
	"slices"

	"github.com/patchbay-net/patchbay/internal/conntrack"
	"github.com/patchbay-net/patchbay/internal/l4"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/policy"
)

// addEnded adds the chains that drop the answers in flows that ended (internal/nft/ended.go). The chain of a pod with a
// policy in one direction asks them in the other one, where the answers pass.
func (c chains) addEnded() {
	for _, d := range []policy.Direction{policy.Ingress, policy.Egress} {
		c[endedChain(d)] = endedLines(d)
	}
}

func endedLines(d policy.Direction) (lines []line) {
	for _, set := range nft.EndedSets() {
		lines = append(lines, line{what: ended, pods: set}.drops(d, CauseMidstream))
	}
	return lines
}

// answerIn returns what the end that answers sends in a flow: from its own address, not from that of a Service, and to
// the end that began the flow, as the pod's chain sees it. ok is false if an answer cannot begin a flow: one of TCP shows
// what it is, and for an answer of ICMP conntrack makes no entry.
func answerIn(f conntrack.Flow) (a nft.Answer, ok bool) {
	a = nft.Answer{From: f.Reply.Src.Addr(), To: f.Orig.Src.Addr(), Protocol: l4.Protocol(f.Orig.Protocol)}
	if a.Protocol.HasPorts() {
		a.Port = f.Reply.Src.Port()
	}
	return a, a.Protocol != l4.TCP && a.Protocol != l4.ICMP && a.Protocol != l4.ICMPv6
}

// over reports whether an answer need not be dropped any more: the program allows its flow, or a pod has left one of the
// addresses.
func (c *Cut) over(a nft.Answer) bool {
	v, _ := c.program.Allows(a.To, a.From, a.Protocol, a.Port)
	return v != policy.Deny || c.vacated[a.From] || c.vacated[a.To]
}

// hold makes the kernel drop the answers in flows that will end, and no more those that are over. It returns the flows
// that may end now: without room for its answers, or after an error, a flow would go on by its next answer.
func (c *Cut) hold(flows []conntrack.Flow) (may []conntrack.Flow, err error) {
	var answers []nft.Answer
	for _, f := range flows {
		if a, ok := answerIn(f); ok && !c.over(a) {
			answers = append(answers, a)
		}
	}
	fw := c.fw.Another()
	defer fw.Close() //nolint:errcheck // committed
	work := nft.EndAnswers(answers, c.over)
	fw.Queue(work)
	err = fw.Commit(context.Background()) // light work waits for no lock
	may = slices.DeleteFunc(flows, func(f conntrack.Flow) bool {
		a, ok := answerIn(f)
		return ok && !c.over(a) && (err != nil || work.NoRoom()[a])
	})
	if n := len(work.NoRoom()); err == nil && n > 0 {
		err = fmt.Errorf("%d flows and those like them go on, because the kernel's sets of flows that ended are full: they end when others have been silent for some minutes", n)
	}
	return may, err
}
