// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"fmt"
	"net/netip"

	"github.com/patchbay-net/patchbay/internal/l4"
	"github.com/patchbay-net/patchbay/internal/trace"
)

// length returns the length of the packet, with its IP header.
func (s *shot) length() int { return len(s.bytes()) }

// large sends a packet that is as long as the source's link allows, and must not be fragmented. If it is lost, and no ICMP error tells the
// source so, connections hang as soon as they send much.
func (t *tracer) large(p *packet) error {
	r, err := t.source().route(p.dst, 0, netip.Addr{})
	if err != nil || t.Protocol == l4.UDP {
		return nil //nolint:nilerr // the first probe has passed
	}
	l, err := t.source().conn.LinkAt(r.LinkIndex)
	if err != nil {
		return err
	}
	mtu := l.Attrs().MTU
	if r.MTU > 0 {
		mtu = r.MTU
	}
	pad := min(mtu, 1<<16-1) - len(p.bytes())
	if pad <= 0 || r.LinkIndex == 1 {
		return nil
	}
	s, err := t.again(p, pad)
	if err != nil {
		return err
	}
	back := s.views[0].of
	switch {
	case back[answer].seen() || s.refused != nil:
		return nil
	case back[failed].came("input"):
		t.report.Note("packets of %d bytes are too long for the path; %s tells the sender so, and it sends shorter ones", mtu, back[failed].src)
		return nil
	}
	f := t.ends(s, probe)
	if f == nil || f.Cause != trace.MTU {
		f = finding("on the way", trace.MTU, "", "")
	}
	f.Text = fmt.Sprintf("short packets arrive, but those of %d bytes, the MTU of %s in %s, do not, and nobody tells the sender: %s", mtu, l.Attrs().Name, t.source().name, f.Text)
	f.Fix = fmt.Sprintf("set the MTU of the network to that of the narrowest link on the way (\"mtu\" of its plugin), and attach again; now: %s", t.source().inside(fmt.Sprintf("ip link set %s mtu 1280", l.Attrs().Name)))
	t.report.End(*f)
	t.report.Steps = append(t.report.Steps, t.steps(s)...)
	return nil
}

// tooLong says that a packet is longer than a link allows.
func (t *tracer) tooLong(p *place, link int) *trace.Finding {
	text := "it is too long for what comes behind " + p.link(link)
	if link == 0 {
		text = "it is too long for its link"
	}
	return finding(p.name, trace.MTU, text, "make the MTU of all links on the way the same")
}
