// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hostdevice

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/prefix"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/spec"
)

// kindOfReal is the netlink library's name for a device without a kind. When a namespace ends,
// the kernel does not delete such devices but moves them to the first namespace.
const kindOfReal = "device"

// sysfs is the path where sysfs is mounted: /sys, or another path in a test.
type sysfs string

func (s sysfs) pci(id string) string { return filepath.Join(string(s), "bus/pci/devices", id) }

func (s sysfs) auxiliary(id string) string {
	return filepath.Join(string(s), "bus/auxiliary/devices", id)
}

// resolve finds out on which bus a runtime's device id is, and whether the device has a driver
// in user space.
func (s sysfs) resolve(c *Conf) error {
	if id := c.RuntimeConfig.DeviceID; id != "" {
		switch {
		case exists(s.pci(id)):
			c.PCIBusID = id
		case exists(s.auxiliary(id)):
			c.PCIBusID, c.auxDevice = "", id
		default:
			return spec.Invalid("runtime config DeviceID %s not found or unsupported", id)
		}
	}
	if !c.selects() {
		return spec.Invalid("%s", noSelector)
	}
	if c.PCIBusID == "" {
		return nil
	}
	driver, err := os.Readlink(filepath.Join(s.pci(c.PCIBusID), "driver"))
	if err != nil {
		return spec.Invalid("error with host device: %w", err)
	}
	switch filepath.Base(driver) {
	case "vfio-pci", "uio_pci_generic", "igb_uio":
		c.DPDKMode = true
	default:
		c.DPDKMode = false
	}
	return nil
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// find returns the device on the host.
func (s sysfs) find(c *Conf, host *nl.Conn) (netlink.Link, error) {
	link, err := s.lookup(c, host)
	if err != nil {
		return nil, spec.Invalid("failed to find host device: %w", err)
	}
	return link, nil
}

func (s sysfs) lookup(c *Conf, host *nl.Conn) (netlink.Link, error) {
	dir := ""
	switch {
	case c.Device != "":
		return host.Link(c.Device)
	case c.hwaddr != nil:
		return byAddress(c, host)
	case c.KernelPath != "":
		dir = filepath.Join(s.kernel(c.KernelPath), "net")
	case c.PCIBusID != "":
		var err error
		if dir, err = s.pciNet(c.PCIBusID); err != nil {
			return nil, err
		}
	default:
		dir = filepath.Join(s.auxiliary(c.auxDevice), "net")
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("failed to read directory %s: %w", dir, err)
	}
	if len(entries) == 0 {
		return nil, fmt.Errorf("failed to find network device in path %s", dir)
	}
	return host.Link(entries[0].Name())
}

// pciNet returns the directory with the network devices of a PCI function. Virtio devices are
// one level deeper.
func (s sysfs) pciNet(id string) (string, error) {
	dir := filepath.Join(s.pci(id), "net")
	if exists(dir) {
		return dir, nil
	}
	dirs, err := filepath.Glob(filepath.Join(s.pci(id), "virtio*", "net"))
	if err != nil || len(dirs) == 0 {
		return "", fmt.Errorf("no net directory under pci device %s", id)
	}
	return dirs[0], nil
}

func byAddress(c *Conf, host *nl.Conn) (netlink.Link, error) {
	links, err := host.LinkList()
	if err != nil {
		return nil, fmt.Errorf("failed to list node links: %w", err)
	}
	found := pick(links, c)
	if found == nil {
		return nil, errors.New("failed to find physical interface")
	}
	return found, nil
}

// pick prefers a real device, because bridges, bonds and VLANs have the address of the device
// below them.
func pick(links []netlink.Link, c *Conf) (found netlink.Link) {
	for _, l := range links {
		switch {
		case !bytes.Equal(l.Attrs().HardwareAddr, c.hwaddr):
		case l.Type() == kindOfReal:
			return l
		case found == nil:
			found = l
		}
	}
	return found
}

// kernel returns the real path of a path in /sys.
func (s sysfs) kernel(path string) string {
	return filepath.Join(string(s), strings.TrimPrefix(filepath.Clean(path), "/sys"))
}

// path returns the path of a device's hardware in /sys/devices, or "" for a virtual device.
func (s sysfs) path(name string) string {
	return s.real(filepath.Join(string(s), "class/net", name, "device"))
}

// real follows symbolic links. real returns "" if the path does not exist.
func (s sysfs) real(path string) string {
	path, err := filepath.EvalSymlinks(path)
	if err != nil {
		return ""
	}
	return path
}

// unplugged reports whether the hardware at a path is gone.
func unplugged(path string) bool {
	_, err := os.Lstat(path)
	return path != "" && errors.Is(err, fs.ErrNotExist)
}

// describe reads the properties of a device before the device leaves the host.
func describe(host *nl.Conn, sys sysfs, link netlink.Link) (*record.Device, error) {
	a := link.Attrs()
	d := &record.Device{
		Name: a.Name, Index: a.Index, Kind: link.Type(), MTU: a.MTU, Up: a.Flags&net.FlagUp != 0,
		MAC: a.HardwareAddr.String(), Burnt: a.PermHWAddr.String(), Path: sys.path(a.Name), Alias: a.Alias,
	}
	if d.Alias == d.Name {
		d.Alias = "" // a killed ADD left this mark
	}
	if a.MasterIndex != 0 {
		master, err := host.LinkAt(a.MasterIndex)
		if err != nil {
			return nil, fmt.Errorf("look up the master of %s: %w", a.Name, err)
		}
		d.Master = master.Attrs().Name
	}
	var err error
	if d.Addrs, err = addresses(host, link); err != nil || !d.Up {
		return d, err // no routes, because the link is down
	}
	d.Routes, err = routes(host, a.Index)
	return d, err
}

// addresses returns the addresses that no other program would restore. addresses skips
// addresses that the kernel makes (link-local) and addresses that expire (DHCP, router
// advertisements).
func addresses(host *nl.Conn, link netlink.Link) (list []record.DeviceAddr, err error) {
	few, err := host.Addrs(link.Attrs().Index) // the library would read the addresses of all links
	if err != nil || !slices.ContainsFunc(few, func(a nl.Addr) bool { return persists(a.Prefix, int(a.Flags)) }) {
		return nil, err
	}
	addrs, err := host.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list addresses of %s: %w", link.Attrs().Name, err)
	}
	for _, a := range addrs {
		prefix := nl.PrefixOf(a.IPNet)
		if !persists(prefix, a.Flags) {
			continue
		}
		list = append(list, record.DeviceAddr{
			Prefix: prefix, Peer: nl.PrefixOf(a.Peer), Label: a.Label, Scope: a.Scope,
			Flags: a.Flags & (unix.IFA_F_NOPREFIXROUTE | unix.IFA_F_NODAD),
		})
	}
	return list, nil
}

func persists(p netip.Prefix, flags int) bool {
	return flags&unix.IFA_F_PERMANENT != 0 && !prefix.IsLinkLocal(p.Addr())
}

// routes returns the routes that the kernel does not derive from the addresses.
func routes(host *nl.Conn, index int) (list []record.DeviceRoute, err error) {
	filter := &netlink.Route{LinkIndex: index, Table: unix.RT_TABLE_UNSPEC}
	found, err := host.RouteListFiltered(netlink.FAMILY_ALL, filter, netlink.RT_FILTER_OIF|netlink.RT_FILTER_TABLE)
	if err != nil {
		return nil, fmt.Errorf("list routes of link %d: %w", index, err)
	}
	for _, r := range found {
		if r.Protocol == unix.RTPROT_KERNEL || r.Protocol == unix.RTPROT_RA || r.Type != unix.RTN_UNICAST {
			continue
		}
		list = append(list, record.DeviceRoute{
			Dst: nl.PrefixOf(r.Dst), Gateway: nl.AddrOf(r.Gw), Src: nl.AddrOf(r.Src), Table: r.Table, Priority: r.Priority,
			Scope: int(r.Scope), Protocol: int(r.Protocol), MTU: r.MTU, AdvMSS: r.AdvMSS, Flags: r.Flags & int(netlink.FLAG_ONLINK),
		})
	}
	return list, nil
}

// ipNet returns nil for the invalid prefix, which means no peer or a default route.
func ipNet(p netip.Prefix) *net.IPNet {
	if !p.IsValid() {
		return nil
	}
	return nl.IPNet(p)
}

// is reports whether a link is the device. The move changes name and namespace. It may change
// index and address, and the container may remove the alias, which has the device's old name. So
// two properties must agree, and one of them must be an address. Name and index are not enough,
// because other containers have an eth0 with a low index too.
func is(d *record.Device, link netlink.Link, ifName string) bool {
	a := link.Attrs()
	mac := d.MAC != "" && a.HardwareAddr.String() == d.MAC
	burnt := d.Burnt != "" && a.PermHWAddr.String() == d.Burnt
	index, name := a.Index == d.Index, a.Name == ifName
	switch {
	case link.Type() != d.Kind:
		return false
	case a.Alias == d.Name:
		return mac || burnt || index || name
	}
	return mac && (burnt || index || name) || burnt && (index || name)
}

// search finds the device in a namespace under any name. search returns nil if the device is
// not there.
func search(c *nl.Conn, d *record.Device, ifName string) (netlink.Link, error) {
	for _, name := range []string{ifName, d.Name} {
		link, err := c.Link(name)
		if err == nil && is(d, link, ifName) {
			return link, nil
		}
		if err != nil && !nl.IsNotFound(err) {
			return nil, err
		}
	}
	return c.FindLink(func(l netlink.Link) bool { return is(d, l, ifName) })
}
