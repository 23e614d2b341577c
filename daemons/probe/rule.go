// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"fmt"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/trace"
)

// chainName returns "ip filter FORWARD".
func (e *event) chainName() string { return chainName(&e.TraceEvent) }

func chainName(e *nft.TraceEvent) string {
	return nft.FamilyName(e.Family) + " " + e.Table + " " + e.Chain
}

// find returns the number of a rule in its chain, counted from 1, and its comment.
func (p *place) find(e *nft.TraceEvent) (number int, comment string) {
	t := p.table(e)
	if t == nil {
		return 0, ""
	}
	i := slices.IndexFunc(t.Rules[e.Chain], func(x nft.Rule) bool { return x.Handle == e.Handle })
	if i < 0 {
		return 0, ""
	}
	return i + 1, t.Rules[e.Chain][i].Comment()
}

// table returns a table as it is when it is first asked for, or nil if it cannot be read.
func (p *place) table(e *nft.TraceEvent) *nft.Table {
	name := nft.FamilyName(e.Family) + " " + e.Table
	t, ok := p.tables[name]
	if ok {
		return t
	}
	_ = p.conn.Do(func() error { // without it, rules have handles alone
		fw := nft.Open("")
		defer fw.Close() //nolint:errcheck // read only
		var err error
		t, err = fw.ReadTable(e.Family, e.Table)
		return err
	})
	if p.tables == nil {
		p.tables = make(map[string]*nft.Table)
	}
	p.tables[name] = t
	return t
}

// steps returns what was seen, in the order in which the packets came by.
func (t *tracer) steps(s *shot) []trace.Step {
	list := []trace.Step{}
	for k := probe; k < kinds; k++ {
		views := slices.Clone(s.views)
		if k != probe {
			slices.Reverse(views)
		}
		for _, v := range views {
			list = append(list, v.steps(k)...)
		}
	}
	return list
}

func (v *view) steps(k kind) (list []trace.Step) {
	hooks := v.of[k].passed
	if len(hooks) > 0 {
		list = append(list, trace.Step{Where: v.at.name, Packet: k.String(), Hook: pathText(hooks), Addrs: fmt.Sprintf("%s -> %s", v.of[k].src, v.of[k].dst)})
	}
	for _, e := range v.events {
		if e.kind != k {
			continue
		}
		st := trace.Step{Where: v.at.name, Packet: k.String(), Hook: e.hook, Rule: e.chainName() + " policy", Verdict: verdictText(e.Code, e.To)}
		if e.Handle != 0 {
			st.Rule, st.Comment = v.at.ruleText(&e.TraceEvent)
		}
		list = append(list, st)
	}
	return list
}

func (p *place) ruleText(e *nft.TraceEvent) (text, comment string) {
	n, comment := p.find(e)
	if text = fmt.Sprintf("%s handle %d", chainName(e), e.Handle); n > 0 {
		text = fmt.Sprintf("%s rule %d (handle %d)", chainName(e), n, e.Handle)
	}
	return text, nft.CleanComment(comment)
}

// pathText returns "prerouting, forward, postrouting".
func pathText(list []mark) string {
	var names []string
	for _, m := range list {
		name := m.hook
		if m.bridge {
			name = "bridge " + name
		}
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return strings.Join(names, ", ")
}

func verdictText(code int32, to string) string {
	switch code {
	case drop:
		return "drop"
	case 1:
		return "accept"
	case unix.NFT_CONTINUE:
		return "continue"
	case unix.NFT_BREAK:
		return "break"
	case unix.NFT_JUMP:
		return "jump " + to
	case unix.NFT_GOTO:
		return "goto " + to
	case unix.NFT_RETURN:
		return "return"
	}
	return fmt.Sprintf("verdict %d", code&0xff)
}

// dropped explains a drop by a rule or a policy of a chain of nftables.
func (t *tracer) dropped(v *view, k kind) *trace.Finding {
	of := &v.of[k]
	e := of.drop
	what, comment := chainName(e)+" drops by its policy", ""
	if e.Handle != 0 {
		what, comment = v.at.ruleText(e)
		what += " drops it"
	}
	if comment != "" {
		what += fmt.Sprintf(" (%q)", comment)
	}
	f := &trace.Finding{Where: v.at.name, Cause: trace.Rule, Text: what}
	if v.at != t.host() {
		f.Cause = trace.OwnFirewall
	}
	f.Fix = t.accept(v, e, of)
	if v.at == t.host() && (e.Table == nft.TableName || e.Table == nft.ServicesTable) {
		f.Cause = trace.Policy
		if t.expected != nil && t.expected.Cause == trace.Policy {
			f.Text += "; " + t.expected.Text
		}
	}
	return f
}

// accept says what lets the packet pass.
func (t *tracer) accept(v *view, e *nft.TraceEvent, of *sight) string {
	in, out := v.at.link(of.in), v.at.link(of.out)
	iptables := e.Table == "filter" && strings.ToUpper(e.Chain) == e.Chain
	program := "iptables"
	if of.dst.Is6() {
		program = "ip6tables"
	}
	switch {
	case v.at != t.host():
	case e.Table == nft.TableName && strings.HasPrefix(e.Chain, "policy"):
		return fmt.Sprintf("patchbay why %s %s:%s names the policy: allow the packet there", t.From.Word, t.To.Word, t.report.Port)
	case e.Table == nft.TableName:
		return "the networks are kept apart on purpose (isolation, internal): put both containers into one network, or publish the port; docs/plugins/firewall.md"
	case iptables && strings.HasPrefix(e.Chain, "DOCKER") || iptables && v.at.hasChain(e, "DOCKER-USER"):
		return fmt.Sprintf(`add {"type": "firewall"} to the plugins of the network and attach again, or %s -I DOCKER-USER -i %s -o %s -j ACCEPT, and the same for answers`, program, in, out)
	case iptables && e.Chain == "FORWARD":
		return fmt.Sprintf(`add {"type": "firewall"} to the plugins of the network and attach again, or %s -I FORWARD -i %s -o %s -j ACCEPT, and the same for answers`, program, in, out)
	case e.Table == "firewalld":
		return fmt.Sprintf(`add {"type": "firewall"} to the plugins of the network and attach again, or firewall-cmd --zone=trusted --add-source=%s`, of.src)
	case strings.HasPrefix(e.Chain, "KUBE"):
		return "kube-proxy made it: see that the Service has endpoints that are ready, and its ranges of sources"
	}
	family := "ip"
	if of.dst.Is6() {
		family = "ip6"
	}
	place := ""
	if e.Handle != 0 {
		place = fmt.Sprintf(" position %d", e.Handle)
	}
	return v.at.inside(fmt.Sprintf("nft insert rule %s%s %s saddr %s %s daddr %s accept", chainName(e), place, family, of.src, family, of.dst)) + ", or remove what drops"
}

// hasChain reports whether the table of an event has a chain.
func (p *place) hasChain(e *nft.TraceEvent, name string) bool {
	t := p.table(e)
	return t != nil && slices.ContainsFunc(t.Chains, func(c nft.Chain) bool { return c.Name == name })
}
