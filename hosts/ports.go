// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nl"
)

// ports tells at which port of a network's bridge an address is, by what the kernel
// has heard: the neighbour's Ethernet address, and where the bridge has seen that.
// A container that answers for many addresses is at one port. What comes with an
// address that nobody answers for has none, nor has what comes from other hosts.
type ports struct {
	proc string
	tell func(about string, err error)

	mu  sync.Mutex
	now map[string]seenPorts // by network
}

// seenPorts is one look at the tables.
type seenPorts struct {
	at time.Time
	of map[netip.Addr]int // link index
}

// How old a look may be for an address that it has, and for one that it has not:
// looking costs as much as the network has containers, and anybody can ask with any
// address.
const portsKnown, portsUnknown = time.Second, 100 * time.Millisecond

// of is names.Server's Ports.
func (p *ports) of(network string, addr netip.Addr) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.now[network]
	port, known := h.of[addr]
	if age := time.Since(h.at); age < portsUnknown || known && age < portsKnown {
		return port
	}
	of, err := p.read(bridgeName(network))
	p.tell("containers' ports of "+network, err)
	if p.now == nil {
		p.now = map[string]seenPorts{}
	}
	if err != nil {
		of = h.of
	}
	p.now[network] = seenPorts{time.Now(), of}
	return of[addr]
}

func (p *ports) read(bridge string) (map[netip.Addr]int, error) {
	conn, err := nl.Host(p.proc)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	link, err := conn.Link(bridge)
	if nl.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	index := link.Attrs().Index
	entries, err := conn.NeighList(0, unix.AF_BRIDGE)
	if err != nil {
		return nil, fmt.Errorf("list forwarding database: %w", err)
	}
	at := map[string]int{}
	for _, e := range entries {
		if e.MasterIndex == index && e.LinkIndex != index {
			at[e.HardwareAddr.String()] = e.LinkIndex
		}
	}
	neighbours, err := conn.NeighList(index, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list neighbours: %w", err)
	}
	out := map[netip.Addr]int{}
	for _, n := range neighbours {
		if len(n.HardwareAddr) > 0 {
			out[nl.AddrOf(n.IP)] = at[n.HardwareAddr.String()]
		}
	}
	return out, nil
}
