// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package trace

import (
	"fmt"
	"strings"
)

// Text returns the report as a person reads it: where the packet ends and what mends it, then how that is known.
func (r *Report) Text() string {
	var b strings.Builder
	b.WriteString(r.Headline() + "\n")
	if r.Disagreement != "" {
		fmt.Fprintf(&b, "DISAGREEMENT: %s\n", r.Disagreement)
	}
	fmt.Fprintf(&b, "evaluation, without a packet:\n")
	for _, l := range r.Evaluation {
		mark := "ok"
		if !l.OK {
			mark = "ENDS"
		}
		fmt.Fprintf(&b, "  %-4s in %s: %s\n", mark, l.Where, l.Text)
	}
	if len(r.Steps) > 0 {
		b.WriteString("probe, one real packet:\n")
	}
	for _, s := range r.Steps {
		b.WriteString(s.text())
	}
	for _, n := range r.Notes {
		fmt.Fprintf(&b, "note: %s\n", n)
	}
	return b.String()
}

// Headline is the first line.
func (r *Report) Headline() string {
	what := fmt.Sprintf("%s -> %s, %s", r.From, r.To, r.Port)
	f := r.Finding
	switch {
	case r.Verdict == Arrives:
		return "arrives, and is answered: " + what
	case r.Verdict == Left && f == nil:
		return "leaves this node: " + what
	case f == nil:
		return string(r.Verdict) + ": " + what
	}
	head := fmt.Sprintf("%s in %s: %s", r.Verdict, f.Where, f.Text)
	switch r.Verdict {
	case Refused:
		head = "refused: " + f.Text
	case Left:
		head = "leaves this node: " + f.Text
	}
	return head + "; to mend it: " + f.Fix
}

func (s Step) text() string {
	if s.Rule == "" {
		return fmt.Sprintf("  %s in %s: %s [%s]\n", s.Packet, s.Where, s.Hook, s.Addrs)
	}
	comment := ""
	if s.Comment != "" {
		comment = fmt.Sprintf(" %q", s.Comment)
	}
	return fmt.Sprintf("    %s: %s: %s%s\n", s.Hook, s.Rule, s.Verdict, comment)
}
