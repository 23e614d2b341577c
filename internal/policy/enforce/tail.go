// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"errors"
	"fmt"
	"strings"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/policy"
)

// Cause is why a rule drops a packet, as a message to NFLOG says it.
type Cause string

// These are the causes.
const (
	CauseIsolated  Cause = "isolated"  // policies isolate the pod, or its labels are not known, and no rule allows the packet
	CauseDenied    Cause = "denied"    // a rule of a policy denies it
	CauseClosed    Cause = "closed"    // an ADD closed the pod
	CauseMidstream Cause = "midstream" // TCP within a connection that the kernel does not know, or an answer in a flow that ended
	CauseForged    Cause = "forged"    // from an address that is not the pod's
)

// Causes returns the causes that have a tail in each direction. Forged packets have their own (nft.ChainForged).
func Causes() []Cause { return []Cause{CauseIsolated, CauseDenied, CauseClosed, CauseMidstream} }

// words of names and prefixes, by policy.Direction.
func way(d policy.Direction) string { return [...]string{"in", "out"}[d] }

// tailOf names the chain at the end of rules that drop. It counts the packet, has it told, and drops it.
func tailOf(d policy.Direction, c Cause) string { return kindTail + way(d) + "_" + string(c) }

// tellOf names the chain that tells. An ADD makes it without rules, because an ADD does not know the agent's choices.
func tellOf(d policy.Direction, c Cause) string { return kindTell + way(d) + "_" + string(c) }

func ofTail(chain string) bool {
	return strings.HasPrefix(chain, kindTail) || strings.HasPrefix(chain, kindTell)
}

// isTail reports whether a chain drops all packets.
func isTail(chain string) bool { return strings.HasPrefix(chain, kindTail) || chain == nft.ChainForged }

// Prefix returns the prefix of messages about packets that were dropped for a cause.
func Prefix(d policy.Direction, c Cause) string { return "patchbay " + d.String() + " " + string(c) }

// drops makes a line one that drops, for a cause.
func (l line) drops(d policy.Direction, c Cause) line {
	l.verdict, l.chain = expr.VerdictGoto, tailOf(d, c)
	return l
}

// dropping reports whether a line drops.
func (l line) dropping() bool { return l.verdict == expr.VerdictGoto && isTail(l.chain) }

// addTails adds the tails, which only count and drop.
func (c chains) addTails() {
	c.eachTail(func(d policy.Direction, cause Cause) {
		c[tailOf(d, cause)], c[tellOf(d, cause)] = tailLines(d, cause), nil
	})
}

// tell makes the tails tell to a group of NFLOG. With group 0 they do not.
func (c chains) tell(group uint16) {
	if len(c) > 0 {
		c.eachTail(func(d policy.Direction, cause Cause) { c[tellOf(d, cause)] = tellLines(d, cause, group) })
	}
}

func (chains) eachTail(do func(policy.Direction, Cause)) {
	for _, d := range []policy.Direction{policy.Ingress, policy.Egress} {
		for _, cause := range Causes() {
			do(d, cause)
		}
	}
}

func tailLines(d policy.Direction, cause Cause) []line {
	jump := line{what: untold, source: d == policy.Egress, verdict: expr.VerdictJump, chain: tellOf(d, cause)}
	jump4, jump6 := jump, jump
	jump4.family, jump6.family = 4, 6
	return []line{{what: counting, counter: tailOf(d, cause)}, jump4, jump6, {verdict: expr.VerdictDrop}}
}

func tellLines(d policy.Direction, cause Cause, group uint16) (lines []line) {
	if group == 0 {
		return nil
	}
	for _, family := range []int8{4, 6} {
		for _, what := range []what{quiet, limited} {
			lines = append(lines, line{what: what, family: family, source: d == policy.Egress, log: Log{Group: group}, prefix: Prefix(d, cause)})
		}
	}
	return lines
}

// tells returns the expressions of lines in a tail.
func (l line) tells() []expr.Any {
	t, v6, to := nft.PodTeller(0), l.family == 6, nft.Log{Group: l.log.Group, Prefix: l.prefix}
	if l.source {
		t = nft.PodTeller(1)
	}
	switch l.what {
	case untold:
		return t.Untold(v6, l.chain)
	case quiet:
		return t.Quiet(v6, to)
	}
	return t.Limited(v6, to)
}

// ofKernel reports whether only the kernel's rules, and no program, decide what a set has.
func ofKernel(set string) bool { return nft.LearnedSet(set) != nil }

// kernelSets returns the names of the sets of the tails, and of those for flows that ended.
func kernelSets() (names []string) {
	for _, side := range nft.TellSets() {
		for _, kind := range side {
			names = append(names, kind[:]...)
		}
	}
	return append(names, nft.EndedSets()...)
}

// group returns the group of NFLOG to which the tails tell, or 0.
func (e *Enforcer) group() uint16 {
	if e.mute {
		return 0
	}
	return e.opts.Tell
}

// hush makes the tails tell nothing if the kernel refused their rules: without nfnetlink_log it answers ENOENT. Policies
// must be in force anyway. Load tries again after Forget. hush reports whether it changed that.
func (e *Enforcer) hush(err error) bool {
	switch {
	case e.group() == 0:
	case errors.Is(err, unix.ENOENT):
		e.mute, e.muted = true, true
		e.untold(err)
		return true
	case err == nil && e.muted:
		e.muted = false
		e.untold(nil)
	}
	return false
}

func (e *Enforcer) untold(err error) {
	if e.opts.Untold != nil {
		e.opts.Untold(err)
	}
}

// Count is how many packets were dropped for a cause since the tail exists.
type Count struct {
	Direction policy.Direction
	Cause     Cause
	Packets   uint64
}

// Counts returns the counters of all tails that the kernel has. Each dropped packet is in one of them.
func Counts(fw *nft.Conn) (list []Count, err error) {
	counters, err := fw.PolicyCounters()
	if err != nil {
		return nil, fmt.Errorf("read counters of dropped packets: %w", err)
	}
	of := map[string]Count{nft.CountForged: {Direction: policy.Egress, Cause: CauseForged}}
	chains{}.eachTail(func(d policy.Direction, c Cause) { of[tailOf(d, c)] = Count{Direction: d, Cause: c} })
	for _, c := range counters {
		if n, ok := of[c.Name]; ok {
			n.Packets = c.Packets
			list = append(list, n)
		}
	}
	return list, nil
}

// ParsePrefix reads the prefix of a message.
func ParsePrefix(prefix string) (d policy.Direction, c Cause, ok bool) {
	for _, d := range []policy.Direction{policy.Ingress, policy.Egress} {
		if text, found := strings.CutPrefix(prefix, Prefix(d, "")); found {
			return d, Cause(text), true
		}
	}
	return 0, "", false
}
