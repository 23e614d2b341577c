// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// A published port silently takes the traffic away from a server of the host, as with the
// reference's portmap. The plugin keeps that behaviour for runtimes, which know their
// host; a user who types a port gets an error first. CAP_ARGS comes from a runtime and is
// not checked.

// free refuses a --publish of a port on which this host listens itself.
func (w *capabilityFlags) free(a *app) error {
	wanted, err := w.flags()
	if err != nil {
		return err
	}
	ports, _ := wanted["portMappings"].([]portMapping)
	if len(ports) == 0 {
		return nil
	}
	served := hostSockets(a.paths.Proc)
	for _, p := range ports {
		for _, s := range served {
			if s.serves(p) {
				return hinted(fmt.Errorf("port %d/%s is served on this host already, by %s", p.HostPort, p.Protocol, s.holderOf(a.paths.Proc)),
					"publish another port of the host, or stop that process: it would get no more traffic")
			}
		}
	}
	return nil
}

// socket is a socket of the host that receives on a port.
type socket struct {
	proto string
	at    netip.AddrPort
	inode string
}

// serves reports whether the socket may receive traffic for a published port. A socket on
// [::] may receive IPv4 too.
func (s socket) serves(p portMapping) bool {
	if s.proto != p.Protocol || s.at.Port() != p.HostPort {
		return false
	}
	want, err := netip.ParseAddr(p.HostIP)
	have := s.at.Addr()
	switch {
	case err != nil || want == have || have == netip.IPv6Unspecified(): // without an address, every one
		return true
	case want.Is4() != have.Is4():
		return false
	}
	return want.IsUnspecified() || have.IsUnspecified()
}

// hostSockets reads /proc/net. A file that cannot be read counts as empty: that must not
// keep a container from its port.
func hostSockets(proc string) (out []socket) {
	for _, table := range [...]struct{ proto, file, state string }{
		{"tcp", "tcp", "0A"}, {"tcp", "tcp6", "0A"}, // TCP_LISTEN
		{"udp", "udp", "07"}, {"udp", "udp6", "07"}, // TCP_CLOSE: it has no peer
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

// procAddress parses the kernel's 0100007F:1F90: words in the machine's byte order.
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

// holderOf names a process that has the socket, if /proc shows it.
func (s socket) holderOf(proc string) string {
	fds, _ := filepath.Glob(filepath.Join(proc, "[0-9]*/fd/*")) // the pattern is right
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
