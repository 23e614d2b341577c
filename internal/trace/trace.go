// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package trace has the question and the report of `patchbay trace`: values, without I/O. patchbay finds the ends of the packet and
// asks the network policies; patchbayd sends the packet (daemons/probe), because patchbay has no room for it.
package trace

import (
	"fmt"
	"net/netip"

	"github.com/patchbay-net/patchbay/internal/l4"
)

// End is one end of a packet.
type End struct {
	Word  string     `json:"word"` // as it was asked
	Addr  netip.Addr `json:"addr,omitzero"`
	Local bool       `json:"local,omitempty"` // it is the host, or a container of this node
	NS    string     `json:"ns,omitempty"`    // the path of a container's namespace
}

// Container reports whether the end is a container of this node.
func (e End) Container() bool { return e.NS != "" }

// Question is what is asked. With protocol l4.ICMP it is about an echo request.
type Question struct {
	From     End         `json:"from"`
	To       End         `json:"to"`
	Protocol l4.Protocol `json:"protocol"`
	Port     uint16      `json:"port,omitempty"`

	Translated bool       `json:"translated,omitempty"` // the host replaces the address of To by another, such as a Service's
	Mute       bool       `json:"mute,omitempty"`       // nobody has the address of To, so no answer is to be expected
	Policies   *Judgement `json:"policies,omitempty"`   // nil if none judges the packet
	Containers []End      `json:"containers,omitempty"` // of this node, to which the host may translate
}

// Judgement is what the network policies do with the packet.
type Judgement struct {
	Text    string `json:"text"`
	Allowed bool   `json:"allowed"`
}

// Service returns "80/tcp" or "icmp".
func (q *Question) Service() string {
	if q.Port == 0 {
		return q.Protocol.String()
	}
	return fmt.Sprintf("%d/%s", q.Port, q.Protocol)
}

// Verdict is what became of the packet.
type Verdict string

// These are the verdicts. A packet that left the node, and whose answer cannot be expected, is Left.
const (
	Arrives Verdict = "arrives"
	Refused Verdict = "refused"
	Ends    Verdict = "ends"
	Left    Verdict = "left"
)

// Finding is where a packet ends, why, and what mends it.
type Finding struct {
	Where string `json:"where"`
	Cause Cause  `json:"cause"`
	Text  string `json:"text"`
	Fix   string `json:"fix,omitempty"`
}

// Expectation is one step of the evaluation.
type Expectation struct {
	Where string `json:"where"`
	Text  string `json:"text"`
	OK    bool   `json:"ok"`
}

// Step is what one rule, or the policy of a chain, did with a packet.
type Step struct {
	Where   string `json:"where"`
	Packet  string `json:"packet"` // "probe", "answer" or "error"
	Hook    string `json:"hook"`
	Rule    string `json:"rule,omitempty"` // "ip filter FORWARD rule 7"
	Verdict string `json:"verdict,omitempty"`
	Comment string `json:"comment,omitempty"`
	Addrs   string `json:"addrs,omitempty"` // "10.1.0.2 -> 10.1.0.3", where the hook begins
}

// Report is the answer.
type Report struct {
	From         string        `json:"from"`
	To           string        `json:"to"`
	Port         string        `json:"port"`
	Verdict      Verdict       `json:"verdict"`
	Finding      *Finding      `json:"finding,omitempty"`
	Evaluation   []Expectation `json:"evaluation"`
	Disagreement string        `json:"disagreement,omitempty"` // of evaluation and probe
	Steps        []Step        `json:"steps"`
	Notes        []string      `json:"notes,omitempty"`
}

// Note adds a remark.
func (r *Report) Note(format string, args ...any) {
	r.Notes = append(r.Notes, fmt.Sprintf(format, args...))
}

// End makes the finding the verdict.
func (r *Report) End(f Finding) { r.Verdict, r.Finding = Ends, &f }
