// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package why

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/patchbay-net/patchbay/internal/services"
	svc "github.com/patchbay-net/patchbay/internal/services/enforce"
)

// Service is what a Service, or an address, shows to its clients.
type Service struct {
	Service   string   `json:"service"` // as it was asked
	Frontends []Front  `json:"frontends"`
	Cautions  []string `json:"cautions,omitempty"`
}

// Front is what one frontend shows to its clients.
type Front struct {
	Frontend    string   `json:"frontend"`
	Service     string   `json:"service,omitempty"` // "shop/web http, cluster IP", if the agent knows it
	Inside      Clients  `json:"inside"`            // to this node and its pods
	Outside     Clients  `json:"outside"`           // to all others
	Affinity    uint32   `json:"affinitySeconds,omitempty"`
	Masquerades string   `json:"masquerades"` // whose packets get a source address of the node
	Sources     []string `json:"sourceRanges,omitempty"`
}

// Clients is what clients of one side find.
type Clients struct {
	Action    string   `json:"action"` // "translated", "rejected", "dropped" or "unknown"
	Text      string   `json:"text"`
	Endpoints []string `json:"endpoints,omitempty"`
}

// Show says what frontends show. Without a table, or with one that is not understood, it fails. choose returns the frontends.
func (h Host) Show(word string, choose func(*svc.View) ([]services.Frontend, error)) (s *Service, err error) {
	known, err := h.names()
	if err != nil {
		return nil, err
	}
	err = svc.WithView(h.FW, func(v *svc.View) error {
		s = &Service{Service: word, Frontends: []Front{}}
		if err := v.Readable(); err != nil {
			return err
		}
		list, err := choose(v)
		if err != nil {
			return err
		}
		table, err := v.Around(list...)
		if err != nil {
			return err
		}
		for _, f := range list {
			s.add(&serviceQuestion{known: known}, table, f)
		}
		return nil
	})
	return s, err
}

// add adds a frontend, unless the kernel has none of this name.
func (s *Service) add(q *serviceQuestion, t services.Table, f services.Frontend) {
	shown, ok := t.Show(f)
	if !ok {
		s.Cautions = append(s.Cautions, fmt.Sprintf("the kernel has no frontend %s: the agent has not loaded it, or another Service has it", FrontendText(f)))
		return
	}
	front := Front{
		Frontend: FrontendText(f), Service: q.owner(f), Inside: clients(shown.Inside, false), Outside: clients(shown.Outside, shown.Split()),
		Affinity: shown.Affinity, Masquerades: masquerades(t, shown),
	}
	if shown.Ranged {
		front.Sources = []string{}
		for _, r := range shown.Sources {
			front.Sources = append(front.Sources, r.String())
		}
	}
	s.Frontends = append(s.Frontends, front)
}

func clients(side services.Side, outside bool) Clients {
	c := Clients{Action: side.Answer.String(), Text: answerText(side.Cause, outside)}
	if side.Cause == services.Torn {
		c.Action = "unknown"
	}
	if side.Answer != services.Translated {
		return c
	}
	for _, e := range slices.SortedFunc(slices.Values(side.Endpoints), netip.AddrPort.Compare) {
		c.Endpoints = append(c.Endpoints, e.String())
	}
	if c.Text = "to its only endpoint"; len(c.Endpoints) > 1 {
		c.Text = fmt.Sprintf("to one of %d endpoints", len(c.Endpoints))
	}
	return c
}

// masquerades says whose packets get a source address of the node.
func masquerades(t services.Table, s services.Shown) string {
	switch {
	case s.Hides:
		return "all clients"
	case s.ClusterIP && t.KeepsAll(s.Frontend.Addr.Is6()):
		return "who comes back to itself"
	case s.ClusterIP:
		return "all clients but pods of this node, and who comes back to itself"
	}
	return "this node itself, and who comes back to itself"
}

// Status returns the verdict as the exit status has it: Allowed if a frontend leads somewhere, Dropped if none does, and Unknown.
func (s *Service) Status() Verdict {
	v := Unknown
	for _, f := range s.Frontends {
		for _, c := range []Clients{f.Inside, f.Outside} {
			switch {
			case len(c.Endpoints) > 0:
				return Allowed
			case c.Action != "unknown":
				v = Dropped
			}
		}
	}
	return v
}

// Text returns the answer as a person reads it.
func (s *Service) Text() string {
	var b strings.Builder
	for _, f := range s.Frontends {
		b.WriteString(f.text())
	}
	for _, c := range s.Cautions {
		fmt.Fprintf(&b, "note: %s\n", c)
	}
	return b.String()
}

func (f *Front) text() string {
	var b strings.Builder
	b.WriteString(f.Frontend)
	if f.Service != "" {
		b.WriteString(", " + f.Service)
	}
	b.WriteString("\n")
	if inside, outside := f.Inside.text(), f.Outside.text(); inside == outside {
		fmt.Fprintf(&b, "  all clients: %s\n", inside)
	} else {
		fmt.Fprintf(&b, "  this node and its pods: %s\n  other clients: %s\n", inside, outside)
	}
	if f.Sources != nil {
		fmt.Fprintf(&b, "  only from: %s\n", strings.Join(f.Sources, " "))
	}
	if len(f.Inside.Endpoints)+len(f.Outside.Endpoints) > 0 {
		fmt.Fprintf(&b, "  masquerade: %s\n", f.Masquerades)
	}
	if f.Affinity > 0 {
		fmt.Fprintf(&b, "  affinity: %v after the last new connection\n", time.Duration(f.Affinity)*time.Second)
	}
	return b.String()
}

func (c *Clients) text() string {
	return strings.TrimSpace(c.Action + ", " + c.Text + " " + strings.Join(c.Endpoints, " "))
}
