// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hostdevice

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/spec"
)

// kindOfReal is the library's kind of a device without a kind. The kernel does not destroy
// such devices with a namespace but moves them to the first one.
const kindOfReal = "device"

// sysfs is the mount point of sysfs: /sys, or a test's.
type sysfs string

func (s sysfs) pci(id string) string { return filepath.Join(string(s), "bus/pci/devices", id) }

func (s sysfs) auxiliary(id string) string {
	return filepath.Join(string(s), "bus/auxiliary/devices", id)
}

// resolve finds the bus of a runtime's device id, and whether the device has a driver in
// user space.
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

// find looks the device up on the host.
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

// pciNet is the directory with the devices of a PCI function. Those of virtio are one level
// down.
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

// pick prefers a real device: bridges, bonds and VLANs share the address of the device
// below.
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

// kernel is the place of a path below /sys.
func (s sysfs) kernel(path string) string {
	return filepath.Join(string(s), strings.TrimPrefix(filepath.Clean(path), "/sys"))
}

// path is the place of a device's hardware below /sys/devices; empty for a virtual device.
func (s sysfs) path(name string) string {
	return s.real(filepath.Join(string(s), "class/net", name, "device"))
}

// real follows links; empty when the path does not exist.
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
