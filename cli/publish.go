// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/patchbay-net/patchbay/internal/order"
)

// portMapping is an entry of the capability portMappings (CONVENTIONS.md).
type portMapping struct {
	HostPort      uint16 `json:"hostPort"`
	ContainerPort uint16 `json:"containerPort"`
	Protocol      string `json:"protocol"`
	HostIP        string `json:"hostIP,omitempty"`
}

// parsePorts reads [IP:]HOST:CONTAINER[/PROTO], in which HOST and CONTAINER are
// ports, or ranges FIRST-LAST of the same length. An IPv6 address is in brackets.
func parsePorts(s string) (list []portMapping, err error) {
	bad := func(why string) ([]portMapping, error) {
		return nil, usage("such as 8080:80, 127.0.0.1:8080:80/tcp, [2001:db8::1]:53:53/udp, 8000-8010:8000-8010", "--publish %s: %s", s, why)
	}
	rest, proto, ok := strings.Cut(s, "/")
	if proto = strings.ToLower(proto); !ok {
		proto = "tcp"
	}
	if !slices.Contains([]string{"tcp", "udp", "sctp"}, proto) {
		return bad("the protocol is tcp, udp or sctp")
	}
	i := strings.LastIndexByte(rest, ':')
	if i < 0 || strings.HasSuffix(rest, "]") {
		return bad("the host's port is missing")
	}
	host, container := rest[:i], rest[i+1:]
	addr := ""
	if i = strings.LastIndexByte(host, ':'); i >= 0 {
		if addr, err = hostAddress(host[:i]); err != nil {
			return bad(err.Error())
		}
		host = host[i+1:]
	}
	from, n, err := portRange(host)
	to, m, cerr := portRange(container)
	switch {
	case cmp.Or(err, cerr) != nil:
		return bad(cmp.Or(err, cerr).Error())
	case n != m:
		return bad(fmt.Sprintf("%d ports of the host for %d of the container", n, m))
	}
	for k := range n {
		list = append(list, portMapping{from + uint16(k), to + uint16(k), proto, addr})
	}
	return list, nil
}

// hostAddress parses an address; IPv6 needs brackets, since it has colons of its own.
func hostAddress(s string) (string, error) {
	inside, bracket := strings.CutPrefix(s, "[")
	inside, closed := strings.CutSuffix(inside, "]")
	addr, err := netip.ParseAddr(inside)
	switch {
	case err != nil || bracket != closed:
		return "", fmt.Errorf("the host's address is not an IP address")
	case addr.Is6() != bracket:
		return "", fmt.Errorf("brackets are for IPv6 addresses, which need them")
	}
	return addr.String(), nil
}

// portRange reads PORT or FIRST-LAST.
func portRange(s string) (first uint16, n int, err error) {
	low, high, ranged := strings.Cut(s, "-")
	if !ranged {
		high = low
	}
	a, aerr := parsePortNumber(low)
	b, berr := parsePortNumber(high)
	switch {
	case aerr != nil || berr != nil:
		return 0, 0, fmt.Errorf("a port is a number from 1 to 65535, a range two of them: 8000-8010")
	case b < a:
		return 0, 0, fmt.Errorf("the range %s ends before it begins", s)
	}
	return a, int(b-a) + 1, nil
}

func parsePortNumber(s string) (uint16, error) {
	n, err := strconv.ParseUint(s, 10, 16)
	if err == nil && n == 0 {
		err = strconv.ErrRange
	}
	return uint16(n), err
}

// portsText formats ports as podman does: 0.0.0.0:8080->80/tcp, adjacent ones as one
// range.
func portsText(ports []portMapping) string {
	ports = slices.Clone(ports)
	order.By(ports, func(x, y portMapping) int {
		return cmp.Or(cmp.Compare(x.HostIP, y.HostIP), cmp.Compare(x.Protocol, y.Protocol), cmp.Compare(x.HostPort, y.HostPort))
	})
	var words []string
	for len(ports) > 0 {
		n := 1
		for n < len(ports) && ports[n] == ports[0].next(n) {
			n++
		}
		words = append(words, ports[0].text(n))
		ports = ports[n:]
	}
	return strings.Join(words, ", ")
}

// next is the mapping n ports higher.
func (p portMapping) next(n int) portMapping {
	p.HostPort, p.ContainerPort = p.HostPort+uint16(n), p.ContainerPort+uint16(n)
	return p
}

// text formats n adjacent ports.
func (p portMapping) text(n int) string {
	at := cmp.Or(p.HostIP, "0.0.0.0")
	if strings.Contains(at, ":") {
		at = "[" + at + "]"
	}
	span := func(first uint16) string {
		if n == 1 {
			return strconv.Itoa(int(first))
		}
		return fmt.Sprintf("%d-%d", first, int(first)+n-1)
	}
	return fmt.Sprintf("%s:%s->%s/%s", at, span(p.HostPort), span(p.ContainerPort), p.Protocol)
}
