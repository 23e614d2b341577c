// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"cmp"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/patchbay-net/patchbay/internal/order"
	"github.com/patchbay-net/patchbay/spec"
)

// parsePorts parses [IP:]HOST:CONTAINER[/PROTO]. HOST and CONTAINER are ports, or ranges
// FIRST-LAST of the same length. An IPv6 address is in brackets.
func parsePorts(s string) (list []spec.PortMapping, err error) {
	bad := func(why string) ([]spec.PortMapping, error) {
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
	var addr netip.Addr
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
		return bad(fmt.Sprintf("%d ports of the host, but %d of the container", n, m))
	}
	for k := range n {
		list = append(list, shifted(spec.PortMapping{HostPort: from, ContainerPort: to, Protocol: proto, HostIP: addr}, k))
	}
	return list, nil
}

// hostAddress parses an address. An IPv6 address must be in brackets, because it contains
// colons.
func hostAddress(s string) (netip.Addr, error) {
	inside, bracket := strings.CutPrefix(s, "[")
	inside, closed := strings.CutSuffix(inside, "]")
	addr, err := netip.ParseAddr(inside)
	switch {
	case err != nil || bracket != closed:
		return netip.Addr{}, fmt.Errorf("the host's address is not an IP address")
	case addr.Is6() != bracket:
		return netip.Addr{}, fmt.Errorf("an IPv6 address needs brackets, and no other address may have them")
	}
	return addr, nil
}

// portRange parses PORT or FIRST-LAST.
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

// portsText formats ports as podman does, such as 0.0.0.0:8080->80/tcp. It prints adjacent
// ports as one range.
func portsText(ports []spec.PortMapping) string { return strings.Join(portRanges(ports), ", ") }

// portRanges returns the words of portsText.
func portRanges(ports []spec.PortMapping) (words []string) {
	ports = slices.Clone(ports)
	order.By(ports, func(x, y spec.PortMapping) int {
		return cmp.Or(x.HostIP.Compare(y.HostIP), cmp.Compare(x.Protocol, y.Protocol), cmp.Compare(x.HostPort, y.HostPort))
	})
	for len(ports) > 0 {
		n := 1
		for n < len(ports) && ports[n] == shifted(ports[0], n) {
			n++
		}
		words = append(words, portText(ports[0], n))
		ports = ports[n:]
	}
	return words
}

// shifted returns the mapping whose two ports are higher by n.
func shifted(p spec.PortMapping, n int) spec.PortMapping {
	p.HostPort, p.ContainerPort = p.HostPort+uint16(n), p.ContainerPort+uint16(n)
	return p
}

// portText formats n adjacent ports, of which p is the first.
func portText(p spec.PortMapping, n int) string {
	at := "0.0.0.0"
	if p.HostIP.IsValid() {
		at = p.HostIP.String()
	}
	if p.HostIP.Is6() {
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

// capabilityFlags holds flags that set a container's capabilities. A plugin of the network must
// declare each capability that is used.
type capabilityFlags struct {
	Ports []string `long:"publish" short:"p" value-name:"[IP:]HOST:CONTAINER[/PROTO]" description:"publish a port of the container, or a range FIRST-LAST of them; may be repeated"`
	IPs   []string `long:"ip" value-name:"ADDRESS[/BITS]" description:"give the container this address; may be repeated"`
	MAC   string   `long:"mac" value-name:"MAC" description:"give the container's interface this hardware address"`
}

// capabilities returns the capabilities in CAP_ARGS. A capability that a flag sets replaces the
// one in CAP_ARGS. The function refuses a flag whose capability no plugin declares, because the
// container would start without it.
func (w *capabilityFlags) capabilities(a *app, n *network) (map[string]any, error) {
	given, err := capArgs(a.getenv("CAP_ARGS"))
	if err != nil {
		return nil, err
	}
	own, err := w.flags()
	if err != nil {
		return nil, err
	}
	flags := own.Map()
	for name := range flags {
		if !n.capability(name) {
			return nil, hinted(fmt.Errorf("network %s: no plugin declares the capability %s", n.Name, name),
				`set "capabilities": {"%s": true} in the plugin that has it`, name)
		}
	}
	if given == nil {
		return flags, nil
	}
	maps.Copy(given, flags)
	return given, nil
}

func (w *capabilityFlags) flags() (out spec.Capabilities, err error) {
	out.IPs, out.MAC = w.IPs, w.MAC
	for _, p := range w.Ports {
		list, err := parsePorts(p)
		if err != nil {
			return out, err
		}
		out.PortMappings = append(out.PortMappings, list...)
	}
	for _, ip := range w.IPs {
		if _, err := netip.ParsePrefix(ip); err != nil {
			if _, err := netip.ParseAddr(ip); err != nil {
				return out, usage("", "--ip %s: %v", ip, err)
			}
		}
	}
	if mac, err := net.ParseMAC(w.MAC); w.MAC != "" && (err != nil || len(mac) != 6) {
		return out, usage("", "--mac %s: want six bytes, such as 02:00:00:00:00:01", w.MAC)
	}
	return out, nil
}

// If a server of the host listens on a port that is published, the server gets no more requests,
// and there is no message. The reference's portmap does the same, and runtimes expect it, so the
// plugin does not check the port. But for a user who types such a port, the command fails. Ports in
// CAP_ARGS come from a runtime, so they are not checked.

// free returns an error if a process of this host listens on a port of --publish.
func (w *capabilityFlags) free(a *app) error {
	wanted, err := w.flags()
	if err != nil {
		return err
	}
	if len(wanted.PortMappings) == 0 {
		return nil
	}
	served := hostSockets(a.paths.Proc)
	for _, p := range wanted.PortMappings {
		for _, s := range served {
			if s.serves(p) {
				return hinted(fmt.Errorf("port %d/%s is served on this host already, by %s", p.HostPort, p.Protocol, s.holderOf(a.paths.Proc)),
					"publish another port of the host, or stop that process: it would get no more traffic")
			}
		}
	}
	return nil
}

// socket is a socket of the host that receives traffic on a port.
type socket struct {
	proto string
	at    netip.AddrPort
	inode string
}

// serves reports whether the socket may receive traffic for a published port. A socket on [::]
// may receive IPv4, too.
func (s socket) serves(p spec.PortMapping) bool {
	if s.proto != p.Protocol || s.at.Port() != p.HostPort {
		return false
	}
	want, have := p.HostIP, s.at.Addr()
	switch {
	case !want.IsValid() || want == have || have == netip.IPv6Unspecified(): // a socket or mapping without an address means every address
		return true
	case want.Is4() != have.Is4():
		return false
	}
	return want.IsUnspecified() || have.IsUnspecified()
}

// hostSockets reads /proc/net. If it cannot read a file, it treats the file as empty. The
// container must start all the same.
func hostSockets(proc string) (out []socket) {
	for _, table := range [...]struct{ proto, file, state string }{
		{"tcp", "tcp", "0A"}, {"tcp", "tcp6", "0A"}, // TCP_LISTEN
		{"udp", "udp", "07"}, {"udp", "udp6", "07"}, // TCP_CLOSE: a UDP socket without a peer
	} {
		text, err := os.ReadFile(filepath.Join(proc, "net", table.file))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			const local, state, inode, fields = 1, 3, 9, 10
			f := strings.Fields(line)
			if len(f) < fields || f[state] != table.state {
				continue
			}
			if at, ok := procAddress(f[local]); ok {
				out = append(out, socket{table.proto, at, f[inode]})
			}
		}
	}
	return out
}

// procAddress parses the kernel's form of an address and port, such as 0100007F:1F90. The
// address is in words of the machine's byte order.
func procAddress(s string) (at netip.AddrPort, ok bool) {
	host, port, _ := strings.Cut(s, ":")
	words, err := hex.DecodeString(host)
	n, perr := strconv.ParseUint(port, 16, 16)
	if err != nil || perr != nil || len(words)%4 != 0 {
		return at, false
	}
	for i := 0; i < len(words); i += 4 {
		binary.NativeEndian.PutUint32(words[i:], binary.BigEndian.Uint32(words[i:]))
	}
	addr, ok := netip.AddrFromSlice(words)
	return netip.AddrPortFrom(addr.Unmap(), uint16(n)), ok
}

// holderOf returns the name of a process that has the socket open, if /proc shows one.
func (s socket) holderOf(proc string) string {
	fds, _ := filepath.Glob(filepath.Join(proc, "[0-9]*/fd/*")) // cannot fail: the pattern is valid
	for _, fd := range fds {
		if to, err := os.Readlink(fd); err != nil || to != "socket:["+s.inode+"]" {
			continue
		}
		dir := filepath.Dir(filepath.Dir(fd))
		if comm, err := os.ReadFile(filepath.Join(dir, "comm")); err == nil {
			return fmt.Sprintf("%s (process %s, on %s)", strings.TrimSpace(string(comm)), filepath.Base(dir), s.at)
		}
	}
	return fmt.Sprintf("a socket on %s", s.at)
}
