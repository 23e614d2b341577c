// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hostdevice

import (
	"net"
	"path/filepath"
	"strings"

	"github.com/patchbay-net/patchbay/internal/endpoint"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// Conf is the configuration. Several keys can name the device. The first one that is set, in
// the order below, is used.
type Conf struct {
	// Device is the name of the device on the host.
	// Reference: same.
	Device string `json:"device"`

	// HWAddr is the device's Ethernet address. If virtual devices (a bridge, a VLAN) share it,
	// the real device is used. Reference: the first of all that have it.
	HWAddr string `json:"hwaddr"`

	// KernelPath is the device's directory below /sys/devices/. Reference: same; ".." leads out
	// of it.
	KernelPath string `json:"kernelpath"`

	// PCIBusID is the device's address on the PCI bus, such as 0000:00:1f.6; a virtio device is
	// found behind its PCI device. A device with a driver of user space (vfio-pci,
	// uio_pci_generic, igb_uio) is not moved, but IPAM gives it addresses. Reference: same.
	PCIBusID string `json:"pciBusID"`

	// DPDKMode says that a program in user space drives the device, so nothing is moved. For a
	// device with a PCI address this is detected without dpdkMode. Reference: same, though not
	// documented.
	DPDKMode bool `json:"dpdkMode"`

	// IPAM is the section of the IPAM plugin. Without a type the device gets no addresses.
	// Reference: if IPAM fails, the device stays in the container.
	IPAM struct {
		// Type is the IPAM plugin. The other keys of the section belong to that plugin. Reference:
		// same.
		Type string `json:"type"`
	} `json:"ipam"`

	// DNS replaces IPAM's DNS settings if any of its keys is set. Reference: always replaces
	// IPAM's.
	DNS spec.DNS `json:"dns"`

	RuntimeConfig struct {
		// DeviceID is a device's address on the PCI bus or its name on the auxiliary bus. It overrides
		// pciBusID. Reference: same.
		DeviceID string `json:"deviceID"`
	} `json:"runtimeConfig"`

	hwaddr    net.HardwareAddr
	auxDevice string
}

const noSelector = `specify either "device", "hwaddr", "kernelpath" or "pciBusID"`

// Load validates the configuration. The texts are the reference's.
func (c *Conf) Load(*plugin.Request) (err error) {
	if c.HWAddr != "" {
		if c.hwaddr, err = net.ParseMAC(c.HWAddr); err != nil {
			return spec.Invalid("failed to find host device: failed to parse MAC address %q: %w", c.HWAddr, err)
		}
	}
	if p := c.KernelPath; p != "" && !strings.HasPrefix(filepath.Clean(p), "/sys/devices/") {
		return spec.Invalid("failed to find host device: kernel device path %q must be absolute and begin with /sys/devices/", p)
	}
	for _, id := range []string{c.PCIBusID, c.RuntimeConfig.DeviceID} {
		if id != "" && !filepath.IsLocal(id) || strings.ContainsAny(id, "/*?[\\\x00") {
			return spec.Invalid("invalid device id %q", id)
		}
	}
	return nil
}

// validate checks the configuration against the addresses that IPAM would give. If the
// configuration names no device, it must declare the capability with which the runtime names one.
func validate(r *plugin.Request) error {
	c := plugin.ConfOf[Conf](r)
	if c.Device == "lo" {
		return spec.Invalid("invalid device %q: lo cannot leave the host", c.Device)
	}
	mayName := r.InList == nil || r.InList.Granted["deviceID"] || c.RuntimeConfig.DeviceID != ""
	if !mayName && !c.selects() {
		return spec.Invalid("%s", noSelector)
	}
	if mayName || c.PCIBusID != "" || c.DPDKMode {
		return nil // a program in user space may use any addresses
	}
	return endpoint.ValidateSegment(r, 0)
}

func doubts(r *plugin.Request) []string {
	c := plugin.ConfOf[Conf](r)
	var given []string
	for _, f := range [...][2]string{{"device", c.Device}, {"hwaddr", c.HWAddr}, {"kernelpath", c.KernelPath}, {"pciBusID", c.PCIBusID}} {
		if f[1] != "" {
			given = append(given, f[0])
		}
	}
	if len(given) < 2 {
		return nil
	}
	return []string{given[0] + " alone names the device: " + strings.Join(given[1:], ", ") + " is not looked at"}
}

// selects reports whether the configuration names a device.
func (c *Conf) selects() bool {
	return c.Device != "" || c.HWAddr != "" || c.KernelPath != "" || c.PCIBusID != "" || c.auxDevice != ""
}
