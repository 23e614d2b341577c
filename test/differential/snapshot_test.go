// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package differential

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// view is all that can be seen of one side, as keys and values.
type view map[string]string

// put adds one fact. If there is a fact of the same name, the new one gets a number.
func (v view) put(key string, value any) {
	s := fmt.Sprint(value)
	if old, twice := v[key]; twice {
		s = old + " and " + s
	}
	v[key] = s
}

// flatten adds one fact for each leaf of a decoded JSON value.
func (v view) flatten(key string, value any) {
	switch value := value.(type) {
	case map[string]any:
		for k, e := range value {
			v.flatten(key+"."+k, e)
		}
	case []any:
		for i, e := range value {
			v.flatten(fmt.Sprintf("%s[%d]", key, i), e)
		}
	case nil:
	default:
		v.put(key, value)
	}
}

// scene reads one network namespace, the calling thread's.
type scene struct {
	view
	prefix string
	h      *netlink.Handle
	names  map[int]string
	links  []netlink.Link
}

// look reads both namespaces and the files. Its facts get a prefix that names the moment.
func (w *world) look(v view, when string) ([]mac, error) {
	var macs []mac
	for _, side := range []string{"host", "container"} {
		ns := w.host
		if side == "container" {
			ns = w.container
		}
		s := &scene{view: v, prefix: when + " " + side + " ", names: map[int]string{}}
		if err := w.enter(ns, s.read); err != nil {
			return nil, fmt.Errorf("look at the %s: %w", side, err)
		}
		for _, l := range s.links {
			if a := l.Attrs(); len(a.HardwareAddr) > 0 {
				macs = append(macs, mac{a.HardwareAddr.String(), side + ":" + a.Name})
			}
		}
	}
	return macs, files(v, when)
}

func (s *scene) read() error {
	var err error
	if s.h, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		return err
	}
	defer s.h.Close()
	for _, part := range []func() error{s.readLinks, s.addresses, s.routes, s.rules, s.neighbours, s.qdiscs, s.vlans, s.sysctls} {
		if err := part(); err != nil {
			return err
		}
	}
	return nil
}

// fact adds a fact of this namespace.
func (s *scene) fact(value any, words ...any) {
	s.put(s.prefix+strings.TrimSuffix(fmt.Sprintln(words...), "\n"), value)
}

// seenFlags are the flags of a link that programs set. The kernel derives the others.
const seenFlags = unix.IFF_UP | unix.IFF_NOARP | unix.IFF_PROMISC | unix.IFF_ALLMULTI

// readLinks adds every link with all attributes of its type.
func (s *scene) readLinks() error {
	links, err := s.h.LinkList()
	if err != nil {
		return err
	}
	slices.SortFunc(links, func(a, b netlink.Link) int { return a.Attrs().Index - b.Attrs().Index })
	s.links = links
	for _, l := range links {
		s.names[l.Attrs().Index] = l.Attrs().Name
	}
	for _, l := range links {
		a := l.Attrs()
		for what, value := range map[string]any{
			"type": l.Type(), "mac": a.HardwareAddr, "mtu": a.MTU, "txqlen": a.TxQLen, "alias": a.Alias, "master": s.names[a.MasterIndex],
			"flags": fmt.Sprintf("%#x", a.RawFlags&seenFlags), "promiscuity": a.Promisc, "group": a.Group,
			"txqueues": a.NumTxQueues, "rxqueues": a.NumRxQueues,
		} {
			s.fact(value, "link", a.Name, what)
		}
		s.ofType(a.Name, l)
	}
	return nil
}

// ofType adds the fields of one type of link: a bridge's, a VLAN's, a tap's.
func (s *scene) ofType(name string, l netlink.Link) {
	raw, err := json.Marshal(l)
	var fields map[string]any
	if err != nil || json.Unmarshal(raw, &fields) != nil {
		return
	}
	for k, value := range fields {
		switch k {
		case "Name", "Index", "Fds", "PeerHardwareAddr", "PeerName", "PeerNamespace":
		default:
			if _, common := commonAttrs[k]; !common {
				s.flatten(s.prefix+"link "+name+" "+k, value)
			}
		}
	}
	if p, err := s.h.LinkGetProtinfo(l); err == nil && l.Attrs().MasterIndex != 0 {
		s.fact(strings.TrimSpace(p.String()), "link", name, "port")
	}
}

// commonAttrs are the names of the attributes that every link has.
var commonAttrs = func() map[string]any {
	raw, _ := json.Marshal(netlink.LinkAttrs{})
	var m map[string]any
	_ = json.Unmarshal(raw, &m)
	return m
}()

func (s *scene) addresses() error {
	list, err := s.h.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return err
	}
	for _, a := range list {
		if a.IP.IsLinkLocalUnicast() && a.IP.To4() == nil {
			continue // the kernel sets it at a time of its own
		}
		// The flag "tentative" goes away by itself.
		s.fact(fmt.Sprintf("scope %d flags %#x label %q peer %v broadcast %v valid %d", a.Scope, a.Flags&^unix.IFA_F_TENTATIVE, a.Label, a.Peer, a.Broadcast, a.ValidLft),
			"address", a.IPNet, "dev", s.names[a.LinkIndex])
	}
	return nil
}

func (s *scene) routes() error {
	list, err := s.h.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return err
	}
	for _, r := range list {
		if r.Table == unix.RT_TABLE_LOCAL || r.Dst != nil && r.Dst.IP.To4() == nil && (r.Dst.IP.IsLinkLocalUnicast() || r.Dst.IP.IsMulticast()) {
			continue // the kernel made it
		}
		hops := ""
		for _, hop := range r.MultiPath {
			hops += fmt.Sprintf(" %v dev %s", hop.Gw, s.names[hop.LinkIndex])
		}
		s.fact(fmt.Sprintf("src %v scope %v proto %v type %d mtu %d advmss %d%s", r.Src, r.Scope, r.Protocol, r.Type, r.MTU, r.AdvMSS, hops),
			"route", r.Dst, "via", r.Gw, "dev", s.names[r.LinkIndex], "table", r.Table, "metric", r.Priority)
	}
	return nil
}

func (s *scene) rules() error {
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		list, err := s.h.RuleList(family)
		if err != nil {
			return err
		}
		for _, r := range list {
			s.fact("there", "rule", family, r)
		}
	}
	return nil
}

// neighbours adds permanent entries.
func (s *scene) neighbours() error {
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6, unix.AF_BRIDGE} {
		list, err := s.h.NeighList(0, family)
		if err != nil {
			return err
		}
		for _, n := range list {
			if n.State&netlink.NUD_PERMANENT == 0 || len(n.HardwareAddr) > 0 && n.HardwareAddr[0]&1 != 0 {
				continue // learned, or a multicast group's
			}
			s.fact(fmt.Sprintf("flags %#x vlan %d", n.Flags, n.Vlan), "neighbour", family, n.IP, n.HardwareAddr, "dev", s.names[n.LinkIndex])
		}
	}
	return nil
}

func (s *scene) vlans() error {
	list, err := s.h.BridgeVlanList()
	if err != nil {
		return err
	}
	for index, vlans := range list {
		for _, vlan := range vlans {
			s.fact(fmt.Sprintf("%#x", vlan.Flags), "vlan", s.names[int(index)], vlan.Vid)
		}
	}
	return nil
}

func (s *scene) qdiscs() error {
	for _, l := range s.links {
		list, err := s.h.QdiscList(l)
		if err != nil {
			return err
		}
		for _, q := range list {
			a := q.Attrs()
			name := fmt.Sprintf("%sqdisc %s %s %s", s.prefix, l.Attrs().Name, q.Type(), netlink.HandleStr(a.Handle))
			s.put(name, "parent "+netlink.HandleStr(a.Parent))
			s.dump(name, q, "Statistics", "LinkIndex", "Refcnt", "Handle", "Parent")
			if a.Handle == 0 {
				continue
			}
			filters, err := s.h.FilterList(l, a.Handle)
			if err != nil {
				return err
			}
			for _, f := range filters {
				s.dump(fmt.Sprintf("%sfilter %s %s", s.prefix, l.Attrs().Name, f.Type()), f, "LinkIndex", "Timestamp", "Statistics", "Handle", "Index")
			}
		}
	}
	return nil
}

// dump adds all fields of a value except those in less. It replaces indexes of links by their names.
func (s *scene) dump(key string, value any, less ...string) {
	raw, err := json.Marshal(value)
	if err != nil {
		return
	}
	var tree any
	if json.Unmarshal(raw, &tree) == nil {
		s.flatten(key, s.prune(tree, less))
	}
}

func (s *scene) prune(tree any, less []string) any {
	switch tree := tree.(type) {
	case map[string]any:
		for k, v := range tree {
			if slices.Contains(less, k) {
				delete(tree, k)
			} else if index, ok := v.(float64); ok && k == "Ifindex" {
				tree[k] = s.names[int(index)]
			} else {
				tree[k] = s.prune(v, less)
			}
		}
	case []any:
		for i := range tree {
			tree[i] = s.prune(tree[i], less)
		}
	}
	return tree
}

// moving are parts of the paths of sysctls that change by themselves, cannot be read, or are changed
// by no plugin.
var moving = []string{"fastopen_key", "stable_secret", "/nf_conntrack_count", "/nf_log/", ".old", "/route/flush", "/all/promote", "mc_forwarding"}

// sysctls adds the namespace's sysctls, more than a thousand. So it reads them without os.File, which
// would ask epoll for each.
func (s *scene) sysctls() error {
	buffer := make([]byte, 64<<10)
	return filepath.WalkDir("/proc/sys/net", func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return nil // the sysctls of a link go when the link is deleted
		case d.IsDir() && d.Name() == "neigh":
			return filepath.SkipDir
		case d.IsDir() || slices.ContainsFunc(moving, func(part string) bool { return strings.Contains(path, part) }):
			return nil
		}
		if value, err := readSysctl(path, buffer); err == nil {
			s.put(s.prefix+"sysctl "+strings.TrimPrefix(path, "/proc/sys/"), value)
		}
		return nil
	})
}

func readSysctl(path string, buffer []byte) (value string, err error) {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return "", err
	}
	defer unix.Close(fd) //nolint:errcheck // read only
	n, err := unix.Read(fd, buffer)
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(string(buffer[:n])), nil
}

// files adds the files on which other programs rely: host-local's addresses, and the backups of
// tuning and sbr.
func files(v view, when string) error {
	for _, dir := range []string{"/var/lib/cni/networks", "/run/cni"} {
		err := filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return nil // the first plugin that needs the directory makes it
			}
			raw, err := os.ReadFile(path)
			if err == nil {
				info, _ := d.Info()
				v.put(when+" file "+path, fmt.Sprintf("%v %q", info.Mode(), raw))
			}
			return err
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// mac is the hardware address of a link.
type mac struct{ addr, link string }
