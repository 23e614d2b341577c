// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/daemons/cnm"
	"github.com/patchbay-net/patchbay/daemons/docker/state"
	"github.com/patchbay-net/patchbay/internal/nft"
)

// This is the range of random ports. If Docker cannot read the kernel's range of ephemeral
// ports, it uses the same range.
const (
	firstRandom = 49153
	lastRandom  = 65535
)

// usedPorts holds the ports that endpoints have published.
type usedPorts struct{ list []usedPort }

type usedPort struct {
	state.Port
	by string // the container's name or id; "" for the endpoint that asks
}

func (t *usedPorts) add(list []state.Port, by string) {
	for _, p := range list {
		t.list = append(t.list, usedPort{p, by})
	}
}

// has reports whether a container publishes the port on an overlapping address, and names that container.
func (t *usedPorts) has(proto uint8, ip netip.Addr, port uint16) (by string, has bool) {
	for _, p := range t.list {
		if p.Proto == proto && p.HostPort == port && overlap(p.HostIP, ip) {
			return p.by, true
		}
	}
	return "", false
}

// overlap reports whether two addresses of the host may receive the same packet. An invalid
// address means every address.
func overlap(a, b netip.Addr) bool {
	switch {
	case !a.IsValid() || !b.IsValid():
		return true
	case a.Is4() != b.Is4():
		return false
	}
	return a == b || a.IsUnspecified() || b.IsUnspecified()
}

// choose decides which ports of the host to publish. If Docker's port is 0 or a range, the driver
// may choose. If a program listens on a fixed port, choose refuses the port, like Docker's own
// drivers: portmap would take that program's connections.
func choose(asked []cnm.PortBinding, used *usedPorts, try int) (out []state.Port, err error) {
	for _, b := range asked {
		p := state.Port{Proto: b.Proto, Port: b.Port, HostPort: b.HostPort}
		if b.HostIP != "" {
			if p.HostIP, err = hostAddress(b); err != nil {
				return nil, err
			}
		}
		first, last := b.HostPort, max(b.HostPort, b.HostPortEnd)
		if first == 0 {
			first, last = firstRandom, lastRandom
		}
		if p.Chosen = first != last; p.Chosen {
			if p.HostPort, err = free(&p, first, last, used, start(b, first, last, try)); err != nil {
				return nil, err
			}
		}
		switch by, has := used.has(p.Proto, p.HostIP, p.HostPort); {
		case has && by == "":
			return nil, fmt.Errorf("publish port %d: host port %d/%s is published twice", b.Port, p.HostPort, nft.ProtocolName(p.Proto))
		case has:
			return nil, fmt.Errorf("publish port %d: host port %d/%s is another container's, %s (patchbayd docker ps)", b.Port, p.HostPort, nft.ProtocolName(p.Proto), by)
		}
		used.add([]state.Port{p}, "")
		if err := bind(p.Proto, p.HostIP, p.HostPort); !p.Chosen && errors.Is(err, unix.EADDRINUSE) {
			return nil, fmt.Errorf("publish port %d: host port %d/%s is in use by a program of this host: %w", b.Port, p.HostPort, nft.ProtocolName(p.Proto), err)
		}
		out = append(out, p)
	}
	return out, nil
}

// hostAddress parses the host address of a binding. It refuses an address that the host does
// not have, because no packet would reach the port. With the sysctl ip_nonlocal_bind it accepts
// any address.
func hostAddress(b cnm.PortBinding) (netip.Addr, error) {
	ip, err := netip.ParseAddr(b.HostIP)
	if err != nil {
		return ip, fmt.Errorf("publish port %d: host address: %w", b.Port, err)
	}
	ip = ip.Unmap()
	if err := bind(unix.IPPROTO_UDP, ip, 0); errors.Is(err, unix.EADDRNOTAVAIL) {
		return ip, fmt.Errorf("publish port %d: host address %s is not an address of this host: %w", b.Port, ip, err)
	}
	return ip, nil
}

// checkFamilies refuses a host address if the container has no address of its family.
func checkFamilies(asked []cnm.PortBinding, network string, has []netip.Prefix) error {
	for _, b := range asked {
		ip, err := netip.ParseAddr(b.HostIP)
		if err != nil || slices.ContainsFunc(has, func(a netip.Prefix) bool { return a.Addr().Is4() == ip.Unmap().Is4() }) {
			continue // no address, or one that choose will refuse
		}
		family := "IPv6"
		if ip.Unmap().Is4() {
			family = "IPv4"
		}
		return fmt.Errorf("publish port %[1]d: host address %[2]s is of %[3]s, and the container has no %[3]s address on network %[4]s", b.Port, ip, family, network)
	}
	return nil
}

// start returns the offset in first to last at which the search for a port begins. For a range it is the number of the
// try, so the first try begins at the first port, as in Docker. If the binding names no port, the offset is random in each try.
func start(b cnm.PortBinding, first, last uint16, try int) int {
	size := int(last) - int(first) + 1
	if b.HostPort == 0 {
		return rand.IntN(size)
	}
	return try % size
}

// free finds the next port that is not published and on which no program listens.
func free(p *state.Port, first, last uint16, used *usedPorts, from int) (uint16, error) {
	size := int(last) - int(first) + 1
	for i := range size {
		port := uint16(int(first) + (from+i)%size)
		if _, has := used.has(p.Proto, p.HostIP, port); !has && bind(p.Proto, p.HostIP, port) == nil {
			return port, nil
		}
	}
	return 0, fmt.Errorf("publish port %d: no host port of %d-%d is free", p.Port, first, last)
}

// bind checks whether a program has the port: it binds the port itself. For SCTP it cannot check.
func bind(proto uint8, ip netip.Addr, port uint16) error {
	host := ""
	if ip.IsValid() {
		host = ip.String()
	}
	at := net.JoinHostPort(host, strconv.Itoa(int(port)))
	var conf net.ListenConfig
	switch proto {
	case unix.IPPROTO_TCP:
		l, err := conf.Listen(context.Background(), "tcp", at)
		if err != nil {
			return err
		}
		return l.Close()
	case unix.IPPROTO_UDP:
		l, err := conf.ListenPacket(context.Background(), "udp", at)
		if err != nil {
			return err
		}
		return l.Close()
	}
	return nil
}

// portList is a list of published ports that prints as in `docker ps`.
type portList []state.Port

// String returns text such as "0.0.0.0:8080->80/tcp".
func (list portList) String() string {
	out := make([]string, len(list))
	for i, p := range list {
		host := "*"
		if p.HostIP.IsValid() {
			host = p.HostIP.String()
		}
		out[i] = fmt.Sprintf("%s->%d/%s", net.JoinHostPort(host, strconv.Itoa(int(p.HostPort))), p.Port, nft.ProtocolName(p.Proto))
	}
	return strings.Join(out, ", ")
}
