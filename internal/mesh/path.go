// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/patchbay-net/patchbay/internal/nl"
)

// found is what Probe has found. mu protects the fields.
type found struct {
	again chan bool // all paths are probed again

	mu     sync.Mutex
	uplink int                // MTU of the uplink at the last Observe
	ends   []netip.Addr       // of the last State
	inner  []tunnelEnd        // of the last State
	mtu    map[netip.Addr]int // see Facts.Paths

	directs []direct            // of the last State
	detours map[netip.Addr]bool // see Observed.Detours; nil: not read yet
}

// pathMTUs returns the path MTUs that Probe has found. If the uplink's MTU has changed, Probe starts
// again.
func (f *found) pathMTUs(uplink int) map[netip.Addr]int {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.uplink != uplink {
		f.uplink = uplink
		f.stir()
	}
	return maps.Clone(f.mtu)
}

// want stores the ends and the direct routes that Probe must probe.
func (f *found) want(ends []netip.Addr, inner []tunnelEnd, directs []direct) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !slices.Equal(f.ends, ends) || !slices.Equal(f.inner, inner) || !slices.Equal(f.directs, directs) {
		f.ends, f.inner, f.directs = ends, inner, directs
		f.stir()
	}
}

// stir makes Probe start again.
func (f *found) stir() {
	select {
	case f.again <- true:
	default: // Probe has not yet seen an earlier signal
	}
}

// probes returns a probe for each end.
func (f *found) probes() (list []*probe) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, a := range f.ends {
		if f.uplink > leastPath(a) {
			list = append(list, newProbe(a, f.uplink))
		}
	}
	return list
}

// tunnels returns the ends of tunnels to test.
func (f *found) tunnels() []tunnelEnd {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.inner
}

// note stores the results. It reports whether a path differs from before. If a probe has no result,
// its path keeps the known value, because the peer may be down.
func (f *found) note(list []*probe) (changed bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	mtu := make(map[netip.Addr]int)
	for _, a := range f.ends {
		if was, ok := f.mtu[a]; ok {
			mtu[a] = was
		}
	}
	for _, p := range list {
		if p.verdict == works && slices.Contains(f.ends, p.to) {
			mtu[p.to] = p.mtu()
		}
	}
	changed = !maps.Equal(mtu, f.mtu)
	f.mtu = mtu
	return changed
}

// probeEvery is the time between two probes of the same path, unless a link changes.
const probeEvery = 10 * time.Minute

// Probe finds the path MTU to the underlay addresses of the peers. If a path MTU has changed,
// Probe calls changed, and the caller then calls Apply. It probes when Sync has a new peer, when
// Watch reports a link, and every ten minutes. It returns when ctx ends, or with an error if this
// program may not send echo requests. It may run at the same time as Sync and Watch, on a thread
// in the same namespace.
//
// The kernel's own path MTU discovery needs an ICMP error from the router in the middle, which
// many networks drop. So Probe sends echo requests that no router may fragment, and the peer's
// kernel answers them. If the peer answers none, its path stays unknown.
//
// Probe also tests once for each peer whether TCP passes through the VXLAN device. If the
// checksum offload of the device is the reason why it does not, Probe turns the offload off
// (docs/adr/0049).
func (m *Mesh) Probe(ctx context.Context, changed func()) error {
	s, err := openEcho(m.waits)
	if err != nil {
		return fmt.Errorf("probe paths: %w", err)
	}
	defer s.close()
	conn, err := nl.Host(m.opts.Paths.Proc) // Sync uses the other one at the same time
	if err != nil {
		return fmt.Errorf("probe paths: %w", err)
	}
	defer conn.Close()
	tunnels := &offloads{conn: conn, warn: m.opts.Warn, echo: s, tested: make(map[testedEnd]bool)}
	directs := &directTests{conn: conn, warn: m.opts.Warn, echo: s, changed: changed}
	tick := time.NewTicker(probeEvery)
	defer tick.Stop()
	for all := true; ; {
		if all {
			list := m.paths.probes()
			s.run(ctx, list)
			if ctx.Err() == nil && m.paths.note(list) {
				changed()
			}
		}
		directs.run(ctx, &m.paths, all)
		tunnels.run(ctx, m.paths.tunnels())
		select {
		case <-ctx.Done():
			return nil
		case <-directs.again():
			all = false
		case <-m.paths.again:
			all = true
		case <-tick.C:
			all = true
		}
	}
}

// probe is the search for one path MTU. Each round sends two packets: one of the size to try, and
// then a small one. If only the small one is answered in three rounds, the size is too large. So a
// busy host or one lost packet changes no result.
type probe struct {
	to      netip.Addr
	zone    int  // index of the link, of a link-local address
	fd      int  // the socket that sends; 0: that of the address's family
	loose   bool // answers may come from another address
	uplink  int  // MTU in bytes, the first size to try
	low     int  // known to work, or the least size
	high    int  // the largest that may work
	votes   int  // rounds in which only the small packet was answered
	losses  int  // rounds without an answer
	verdict verdict

	sequence     uint16 // of the round's first packet
	large, small bool   // answers in this round
}

type verdict int

const (
	searching verdict = iota
	works
	unknown
)

// rounds is the number of missing answers that decides.
const rounds = 3

// leastPath returns the least path MTU for which Probe looks. IPv6 guarantees it, and every IPv4
// host accepts it.
func leastPath(to netip.Addr) int {
	if to.Is4() {
		return 576
	}
	return minMTU
}

func newProbe(to netip.Addr, uplink int) *probe {
	return &probe{to: to, uplink: uplink, low: leastPath(to), high: uplink}
}

// size returns the size to try. At first it is the uplink's MTU, which nearly always works.
func (p *probe) size() int {
	if p.high == p.uplink {
		return p.high
	}
	return (p.low + p.high + 1) / 2
}

// tooLarge notes that the size does not work.
func (p *probe) tooLarge() {
	p.high, p.votes = p.size()-1, 0
	p.settle()
}

// end ends a round.
func (p *probe) end() {
	switch {
	case p.verdict != searching:
	case p.large:
		p.low, p.votes, p.losses = p.size(), 0, 0
	case p.small:
		if p.votes++; p.votes == rounds {
			p.tooLarge()
		}
	default:
		if p.losses++; p.losses == rounds {
			p.verdict = unknown
		}
	}
	p.settle()
}

func (p *probe) settle() {
	if p.verdict == searching && p.low >= p.high {
		p.verdict = works
	}
}

// mtu returns the result. 0 means the uplink's MTU.
func (p *probe) mtu() int {
	if p.low >= p.uplink {
		return 0
	}
	return p.low
}
