// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hostdevice

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/test/endpointtest"
	"github.com/patchbay-net/patchbay/spec"
)

// tree makes a sysfs. A line is a directory, or a link and its target.
func tree(t *testing.T, lines ...string) sysfs {
	t.Helper()
	root := t.TempDir()
	for _, line := range lines {
		name, target, isLink := strings.Cut(line, " -> ")
		path := filepath.Join(root, name)
		if !isLink {
			endpointtest.Must(t, os.MkdirAll(path, 0o755))
			continue
		}
		endpointtest.Must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		endpointtest.Must(t, os.Symlink(filepath.Join(root, target), path))
	}
	return sysfs(root)
}

// machine makes a node with a card, a virtio card, three cards that programs in user space drive,
// one card without driver, and an auxiliary device.
func machine(t *testing.T) sysfs {
	pci := func(id, driver string) []string {
		dir := "devices/pci0000:00/" + id
		return []string{dir, "bus/pci/drivers/" + driver, dir + "/driver -> bus/pci/drivers/" + driver, "bus/pci/devices/" + id + " -> " + dir}
	}
	lines := []string{
		"devices/pci0000:00/0000:00:01.0/net/hd1", "devices/pci0000:00/0000:00:02.0/virtio3/net/hd1",
		"devices/pci0000:00/0000:00:07.0", "bus/pci/devices/0000:00:07.0 -> devices/pci0000:00/0000:00:07.0",
		"devices/pci0000:00/0000:00:01.0/mlx5_core.sf.4/net/hd1",
		"bus/auxiliary/devices/mlx5_core.sf.4 -> devices/pci0000:00/0000:00:01.0/mlx5_core.sf.4",
		"devices/empty/net", "class/net/hd1/device -> devices/pci0000:00/0000:00:01.0",
	}
	for id, driver := range map[string]string{
		"0000:00:01.0": "e1000e", "0000:00:02.0": "virtio-pci", "0000:00:03.0": "vfio-pci", "0000:00:04.0": "uio_pci_generic",
		"0000:00:05.0": "igb_uio", "0000:00:06.0": "nvme",
	} {
		lines = append(lines, pci(id, driver)...)
	}
	return tree(t, lines...)
}

// TestSelectors uses every way to name a device, and checks which one wins.
func TestSelectors(t *testing.T) {
	w := newWorld(t)
	w.device("hd1", mac1)
	t.Setenv("PATCHBAY_SYS", string(machine(t)))
	endpointtest.Must(t, w.HostConn().LinkAdd(&netlink.Bridge{LinkAttrs: attrs("hbr0")}))
	t.Cleanup(func() { w.Host.Delete("hbr0") })
	n := 0
	for conf, want := range map[string]string{
		`"device": "hd0"`:                                      mac0,
		`"hwaddr": "02:00:00:00:08:02"`:                        mac1,
		`"hwaddr": "02-00-00-00-08-02"`:                        mac1,
		`"HWAddr": "02:00:00:00:08:01"`:                        mac0,
		`"kernelpath": "/sys/devices/pci0000:00/0000:00:01.0"`: mac1,
		`"pciBusID": "0000:00:01.0"`:                           mac1,
		`"pciBusID": "0000:00:02.0"`:                           mac1,
		`"device": "hd0", "hwaddr": "02:00:00:00:08:02", "pciBusID": "0000:00:01.0"`:                     mac0,
		`"hwaddr": "02:00:00:00:08:02", "kernelpath": "/sys/devices/nosuch", "pciBusID": "0000:00:01.0"`: mac1,
		`"runtimeConfig": {"deviceID": "0000:00:01.0"}`:                                                  mac1,
		`"pciBusID": "0000:00:03.0", "runtimeConfig": {"deviceID": "0000:00:02.0"}`:                      mac1,
		`"runtimeConfig": {"deviceID": "mlx5_core.sf.4"}`:                                                mac1,
		`"pciBusID": "0000:00:03.0", "runtimeConfig": {"deviceID": "mlx5_core.sf.4"}`:                    mac1,
		`"pciBusID": "0000:00:03.0"`:                                                                     "", `"pciBusID": "0000:00:04.0"`: "", `"pciBusID": "0000:00:05.0"`: "",
		`"runtimeConfig": {"deviceID": "0000:00:03.0"}`: "", `"device": "hd0", "dpdkMode": true`: "",
		`"dpdkMode": true, "pciBusID": "0000:00:01.0"`: mac1,
	} {
		for _, ipam := range []string{"", ", " + endpointtest.Static("10.9.0.5/24 10.9.0.1")} {
			n++
			p := w.Pod(fmt.Sprint("pod", n), conf+ipam)
			endpointtest.Must(t, p.Do(spec.Add))
			i := p.Result.Interfaces[0]
			if i.Mac != want || i.Name != "eth0" || i.Sandbox != p.Path || (i.MTU == 1400) != (want != "") {
				t.Errorf("%s: %+v, want %s", conf, i, want)
			}
			if len(p.Result.IPs) != strings.Count(ipam, "gateway") {
				t.Errorf("%s: addresses %v", conf, p.Result.IPs)
			}
			endpointtest.Must(t, p.Do(spec.Check))
			if !strings.Contains(conf, ":02.0") && !strings.Contains(conf, "mlx5") { // here hd1 is the only device of 01.0
				endpointtest.Must(t, p.Do(spec.Status))
			}
			endpointtest.Must(t, p.Do(spec.Del))
			w.isHome(conf, "hd0")
			w.isHome(conf, "hd1")
		}
	}
}

func TestNotFound(t *testing.T) {
	w := newWorld(t)
	t.Setenv("PATCHBAY_SYS", string(machine(t)))
	n := 0
	for conf, want := range map[string]string{
		`"x": 1`:                        noSelector,
		`"device": "nosuch"`:            "failed to find host device: find link nosuch: ",
		`"hwaddr": "02:00:00:00:99:99"`: "failed to find host device: failed to find physical interface",
		`"hwaddr": "nonsense"`:          `failed to parse MAC address "nonsense"`,
		`"kernelpath": "/sys/devices/../class/net/hd0"`: "must be absolute and begin with /sys/devices/",
		`"kernelpath": "/sys/devices/nosuch"`:           "failed to read directory",
		`"kernelpath": "/sys/devices/empty"`:            "failed to find network device in path",
		`"pciBusID": "0000:00:06.0"`:                    "no net directory under pci device 0000:00:06.0",
		`"pciBusID": "0000:00:07.0"`:                    "error with host device: ",
		`"pciBusID": "0000:00:09.0"`:                    "error with host device: ",
		`"pciBusID": "0000:00:01.0"`:                    "failed to find host device: find link hd1",
		`"pciBusID": "*"`:                               `invalid device id "*"`,
		`"runtimeConfig": {"deviceID": "nosuch"}`:       "runtime config DeviceID nosuch not found or unsupported",
		`"runtimeConfig": {"deviceID": "../x"}`:         `invalid device id "../x"`,
	} {
		n++
		p := w.Pod(fmt.Sprint("pod", n), conf)
		p.Refused(want)
		err := p.Do(spec.Status)
		if selects := conf != `"x": 1` && !strings.Contains(conf, "deviceID"); (err != nil) != selects && !strings.Contains(conf, "../x") {
			t.Errorf("STATUS %s: %v", conf, err)
		}
		endpointtest.Must(t, p.Do(spec.Del))
		w.isHome(conf, "hd0")
	}
}

// STATUS succeeds if the device is in one of our containers: it is busy, not missing.
func TestStatus(t *testing.T) {
	w := newWorld(t)
	for _, conf := range []string{`"device": "hd0"`, `"hwaddr": "` + mac0 + `"`} {
		p := w.Pod("status"+conf[1:3], conf)
		endpointtest.Must(t, p.Do(spec.Status))
		endpointtest.Must(t, p.Do(spec.Add))
		endpointtest.Must(t, p.Do(spec.Status))
		w.Pod("second"+conf[1:3], conf).Refused("failed to find host device")
		endpointtest.Must(t, p.Do(spec.Del))
	}
	w.Host.Delete("hd0")
	err := w.Pod("gone", `"device": "hd0"`).Do(spec.Status)
	var e *spec.Error
	if !errors.As(err, &e) || e.Code != spec.CodeNotAvailable {
		t.Errorf("STATUS without the device: %v", err)
	}
}

// A bridge takes the address of its port. The port still comes before the bridge.
func TestRealDeviceFirst(t *testing.T) {
	w := newWorld(t)
	links := []netlink.Link{
		&netlink.Bridge{LinkAttrs: attrs("b")}, &netlink.Device{LinkAttrs: attrs("d")}, &netlink.Bridge{LinkAttrs: attrs("c")},
	}
	for _, l := range links {
		l.Attrs().HardwareAddr = mustMAC(mac0)
	}
	conf := &Conf{hwaddr: mustMAC(mac0)}
	if got := pick(links, conf); got != links[1] {
		t.Error(got)
	}
	if got := pick(links[2:], conf); got != links[2] {
		t.Error(got)
	}
	if got := pick(nil, conf); got != nil {
		t.Error(got)
	}
	w.isHome("", "hd0")
}
