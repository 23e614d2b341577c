// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"strings"
	"unicode/utf8"

	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/policy"
)

// Log sends packets that policies deny to a group of NFLOG, where tcpdump or ulogd reads them. Each rule
// that denies has a rule before it, which sends at most PerSecond packets. Packets that are denied
// because an ADD closed a pod are not logged, because an ADD does not know the agent's choices.
type Log struct {
	Group     uint16
	PerSecond uint32
}

// maxPrefix is the length of the longest prefix, without the zero byte (NF_LOG_PREFIXLEN).
const maxPrefix = 127

// wanted returns what a program needs in the kernel with this Enforcer's choices.
func (e *Enforcer) wanted(p *policy.Program, base bool) *wanted {
	w := stateOf(p, base)
	w.lines.logging(e.opts.Log)
	w.lines.tell(e.group())
	return w
}

// logging adds the rules that log to the chains of a program.
func (c chains) logging(l *Log) {
	if l == nil {
		return
	}
	for name, lines := range c {
		if !isBase(name) && !ofTail(name) {
			c[name] = logged(name, lines, *l)
		}
	}
}

// logged returns the rules of one chain.
func logged(chain string, lines []line, l Log) (out []line) {
	jumps := make(map[string]string) // policies by their chains
	var by []string
	for _, line := range lines {
		switch {
		case line.verdict == expr.VerdictJump:
			jumps[line.chain] = line.comment
		case line.what == counting:
			by = append(by, jumps[line.counter])
		case line.what == matching && line.dropping():
			log := line
			log.what, log.log, log.counter, log.comment = reporting, l, "", ""
			log.prefix = prefixOf(chain, line, by)
			out = append(out, log)
		}
		out = append(out, line)
	}
	return out
}

// prefixOf says who denies: "guard ingress[0]", or "shop/db is isolated by shop/a, ingress".
func prefixOf(chain string, l line, by []string) string {
	text := l.comment
	if ofPod(chain) {
		direction := policy.Egress
		if strings.HasPrefix(chain, kindPod[policy.Ingress]) {
			direction = policy.Ingress
		}
		text += ", " + direction.String()
		if len(by) > 0 {
			text += ", by " + strings.Join(by, " ")
		}
	}
	return cutAt(nft.CleanComment("patchbay: "+text), maxPrefix)
}

// cutAt cuts a text after a complete rune.
func cutAt(s string, most int) string {
	if len(s) <= most {
		return s
	}
	for !utf8.RuneStart(s[most]) {
		most--
	}
	return s[:most]
}

// report returns the expressions of a rule that logs, after its conditions.
func (l line) report() []expr.Any {
	return []expr.Any{
		&expr.Limit{Type: expr.LimitTypePkts, Rate: uint64(l.log.PerSecond), Unit: expr.LimitTimeSecond, Burst: l.log.PerSecond},
		&expr.Log{Key: 1<<unix.NFTA_LOG_GROUP | 1<<unix.NFTA_LOG_PREFIX, Group: l.log.Group, Data: []byte(l.prefix)},
	}
}
