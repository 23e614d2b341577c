// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package mesh

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	vnl "github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
)

func nettestVXLAN() nettest.Feature { return nettest.LinkKind("vxlan") }

// quiet checks that one more Sync changes nothing. The kernel must report no change of links,
// addresses, routes, our neighbours, settings or nftables, and no file may be written.
func quiet(t *testing.T, u setup, hosts ...*host) {
	t.Helper()
	settle(t, hosts...)
	for _, h := range hosts {
		files := h.files(t)
		if events := changes(t, u, h, hosts...); len(events) > 0 {
			t.Errorf("host %d: a second Sync changed something: %v", h.number, events)
		}
		if now := h.files(t); now != files {
			t.Errorf("host %d: a second Sync wrote files:\n%s\nwas\n%s", h.number, now, files)
		}
	}
}

// settle waits until the kernels of hosts report no more events. The kernel reports earlier
// changes late, a change of carrier by up to a second (net/core/link_watch.c). The test would
// attribute such an event to the next Sync.
func settle(t *testing.T, hosts ...*host) {
	t.Helper()
	var fds []unix.PollFd
	for _, h := range hosts {
		h.do(func() error {
			s, err := vnl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK)
			if err != nil {
				return err
			}
			t.Cleanup(s.Close)
			fds = append(fds, unix.PollFd{Fd: int32(s.GetFd()), Events: unix.POLLIN})
			return nil
		})
	}
	buf := make([]byte, 1<<16)
	for end := time.Now().Add(patience); time.Now().Before(end); {
		n, err := unix.Poll(fds, 1200)
		if err == nil && n == 0 {
			return
		}
		for _, f := range fds {
			unix.Recvfrom(int(f.Fd), buf, unix.MSG_DONTWAIT) //nolint:errcheck // tried again
		}
	}
	t.Errorf("links still change after %s", patience)
}

// changes returns the kernel's events while h syncs.
func changes(t *testing.T, u setup, h *host, hosts ...*host) (events []string) {
	t.Helper()
	h.do(func() error {
		route, err := vnl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_LINK, unix.RTNLGRP_NEIGH, unix.RTNLGRP_IPV4_ROUTE,
			unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV4_NETCONF, unix.RTNLGRP_IPV6_NETCONF)
		if err != nil {
			return err
		}
		defer route.Close()
		tables, err := vnl.Subscribe(unix.NETLINK_NETFILTER, unix.NFNLGRP_NFTABLES)
		if err != nil {
			return err
		}
		defer tables.Close()
		if err := h.mesh.Apply(ctx, u.self(h), u.peers(h, hosts...)); err != nil {
			return err
		}
		device := h.deviceIndex()
		events = append(messages(t, route, device), messages(t, tables, device)...)
		return nil
	})
	return events
}

// TestChangesArrive checks that the events for which quiet waits do arrive.
func TestChangesArrive(t *testing.T) {
	l := newLab(t)
	h, u := l.hosts[0], setup{Routes, "46"}
	first := changes(t, u, h, l.hosts[:3]...)
	// There are four routes, and more than one message of nftables.
	if len(first) < 6 {
		t.Errorf("the first Sync: %v", first)
	}
	h.do(func() error { return h.mesh.dropRoutes(DefaultProtocol) })
	settle(t, h)
	if again := changes(t, u, h, l.hosts[:3]...); len(again) != 4 {
		t.Errorf("four routes were put back: %v", again)
	}
}

// messages reads the events so far. Of neighbours it reads only those on our device.
func messages(t *testing.T, s *vnl.NetlinkSocket, device int) (events []string) {
	t.Helper()
	buf := make([]byte, 1<<16)
	for {
		n, _, err := unix.Recvfrom(s.GetFd(), buf, unix.MSG_DONTWAIT)
		if err != nil {
			return events
		}
		list, err := syscall.ParseNetlinkMessage(buf[:n])
		must(t, err)
		for _, m := range list {
			if neigh := m.Header.Type == unix.RTM_NEWNEIGH || m.Header.Type == unix.RTM_DELNEIGH; neigh && learned(&m, device) {
				continue
			}
			events = append(events, fmt.Sprintf("type %d of %d bytes", m.Header.Type, len(m.Data)))
		}
	}
}

// learned reports whether an event is of a neighbour that Sync does not make. The kernel learned
// such a neighbour from the lab's packets, or forgot it. The kernel reports each removed
// neighbour as failed, whatever it was.
func learned(m *syscall.NetlinkMessage, device int) bool {
	index, state := int(vnl.NativeEndian().Uint32(m.Data[4:])), vnl.NativeEndian().Uint16(m.Data[8:])
	if m.Header.Type == unix.RTM_DELNEIGH {
		return index != device || state&unix.NUD_NOARP != 0
	}
	return index != device || state&unix.NUD_PERMANENT == 0
}

// files lists the host's run directory with times and inodes.
func (h *host) files(t *testing.T) (out string) {
	t.Helper()
	must(t, filepath.WalkDir(h.paths.Run, func(path string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(path, &st); err != nil {
			return err
		}
		out += fmt.Sprintf("%s inode %d changed %d.%d\n", path, st.Ino, st.Mtim.Sec, st.Mtim.Nsec)
		return nil
	}))
	return out
}

// list returns a host's objects that are ours: routes, neigh, fdb.
func (h *host) list(t *testing.T, what string) (out []string) {
	t.Helper()
	if what == "routes" {
		routes, err := h.mesh.ourRoutes(DefaultProtocol)
		must(t, err)
		for _, r := range routes {
			out = append(out, r.String())
		}
		return out
	}
	link, err := h.conn.Link(DefaultDevice)
	if nl.IsNotFound(err) {
		return nil
	}
	must(t, err)
	if what == "fdb" {
		entries, err := h.conn.FDB(link.Attrs().Index)
		must(t, err)
		for _, e := range entries {
			out = append(out, fmt.Sprint(e))
		}
		return out
	}
	neighs, err := h.mesh.neighbours(link.Attrs().Index)
	must(t, err)
	for a := range neighs {
		out = append(out, a.String())
	}
	return out
}

// deviceIndex returns the index of the device. Without a device it returns 0.
func (h *host) deviceIndex() int {
	link, err := h.conn.Link(DefaultDevice)
	if err != nil {
		return 0
	}
	return link.Attrs().Index
}

// renumber gives a host other underlay addresses. Its gateways stay.
func (h *host) renumber(four, six string) {
	h.t.Helper()
	link := h.link("eth0")
	h.moved4, h.moved6 = four, six
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		addrs, err := h.conn.AddrList(link, family)
		must(h.t, err)
		for _, a := range addrs {
			if a.Scope == unix.RT_SCOPE_UNIVERSE {
				must(h.t, h.conn.AddrDel(link, &a))
			}
		}
	}
	h.addr("eth0", four+"/24", six+"/64")
}

// netlinkRoutes listens to changes of routes.
func netlinkRoutes() (*vnl.NetlinkSocket, error) {
	return vnl.Subscribe(unix.NETLINK_ROUTE, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE)
}
