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

// ports finds the port of a network's bridge behind which an address is. It uses two tables of
// the kernel: the neighbour table has the Ethernet address, and the bridge's forwarding table has
// the port for that. So a container with many addresses still has one port. If a query comes from
// another host, or from an address for which no neighbour answers, it has no port.
type ports struct {
	proc   string
	report func(subject string, err error)

	mu  sync.Mutex
	now map[string]seenPorts // by network
}

// seenPorts is the result of one read of these tables.
type seenPorts struct {
	at time.Time
	of map[netip.Addr]int // link index
}

// The tables are read again after these times: portsKnown if the last read has the address,
// portsUnknown if it lacks it. A read takes longer with more containers on the network, and any
// container can send queries with any source address.
const portsKnown, portsUnknown = time.Second, 100 * time.Millisecond

// of implements the field Ports of names.Server.
func (p *ports) of(network string, addr netip.Addr) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := p.now[network]
	port, known := h.of[addr]
	if age := time.Since(h.at); age < portsUnknown || known && age < portsKnown {
		return port
	}
	of, err := p.read(bridgeName(network))
	p.report("containers' ports of "+network, err)
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
