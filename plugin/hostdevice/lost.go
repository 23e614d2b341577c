// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hostdevice

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/endpoint"
	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// moved returns the records of moved devices, of every network.
func moved(r *plugin.Request) (list []*record.Record) {
	records, err := kernel.Of(r).Records.List("")
	if err != nil {
		kernel.Warn(r, err)
	}
	for _, rec := range records {
		if rec.Plugin == name && rec.Device != nil {
			list = append(list, rec)
		}
	}
	return list
}

// findHealed finds the device for an ADD. If a container ended without a DEL, its device is on
// the host under the name that it had in the container. Then findHealed first restores the
// original name, because the new record will replace the record with that name.
func findHealed(r *plugin.Request, env *netstate.Env, conf *Conf) (netlink.Link, error) {
	sys := sysfs(r.Session.Paths.Sys)
	link, err := sys.find(conf, env.Host)
	if err == nil && !misnamed(link) || r.Session.Dry != nil {
		return link, err
	}
	for _, rec := range moved(r) {
		if err := heal(r, env.Host, rec); err != nil {
			return nil, err
		}
	}
	return sys.find(conf, env.Host)
}

// misnamed reports whether the link may have had another name before. Its alias would be that name.
func misnamed(link netlink.Link) bool {
	a := link.Attrs()
	return a.Alias != a.Name && spec.ValidateIfName(a.Alias) == nil
}

// heal restores a device that is on the host under a wrong name.
func heal(r *plugin.Request, host *nl.Conn, rec *record.Record) error {
	link, err := search(host, rec.Device, rec.IfName)
	if err != nil || link == nil || link.Attrs().Alias != rec.Device.Name || !misnamed(link) {
		return err
	}
	t := trip{Device: rec.Device, ifName: rec.IfName, host: host}
	if err := t.restore(link); err != nil {
		return err
	}
	return kernel.Of(r).Records.Remove(rec.Network, rec.Owner, rec.Plugin)
}

// earlier finishes a killed ADD of this attachment before its record is replaced. If the device
// is still in a container, earlier returns an error that asks for a DEL.
func earlier(ctx context.Context, r *plugin.Request, host *nl.Conn) error {
	k := kernel.Of(r)
	rec, err := k.Records.Read(r.Network, r.Owner, name)
	if err != nil || rec == nil || rec.Device == nil || r.Session.Dry != nil {
		return nil //nolint:nilerr // a broken record names nothing
	}
	t := trip{Device: rec.Device, ifName: rec.IfName, host: host}
	if in := holder(r, t.Device, rec); in != nil {
		return spec.Errorf(spec.CodeInternal, "failed to move link: device %s of this attachment is in %s", t.Name, rec.NetNS)
	}
	return t.home(ctx)
}

// holder returns the namespace of a record if the device is in it. Otherwise it returns nil.
func holder(r *plugin.Request, d *record.Device, rec *record.Record) *nl.Conn {
	if rec.NetNS == "" {
		return nil
	}
	c, err := kernel.Of(r).Sandbox(rec.NetNS)
	if err != nil {
		return nil // the namespace is gone
	}
	if own, err := c.NS.IsCurrent(); err != nil || own {
		return nil // the path leads to another namespace by now
	}
	if link, err := search(c, d, rec.IfName); err != nil || link == nil {
		return nil
	}
	return c
}

// inUse reports whether the device is in one of our containers.
func inUse(r *plugin.Request, sys sysfs, c *Conf) bool {
	return slices.ContainsFunc(moved(r), func(rec *record.Record) bool { return sys.names(c, rec.Device) })
}

// names reports whether the configuration means a device that is in a container. The caller must
// have called resolve on the configuration.
func (s sysfs) names(c *Conf, d *record.Device) bool {
	at := ""
	switch {
	case c.Device != "":
		return d.Name == c.Device
	case c.hwaddr != nil:
		return d.MAC == c.hwaddr.String()
	case c.KernelPath != "":
		at = s.real(s.kernel(c.KernelPath))
	case c.PCIBusID != "":
		at = s.real(s.pci(c.PCIBusID))
	case c.auxDevice != "":
		at = s.real(s.auxiliary(c.auxDevice))
	}
	return at != "" && (d.Path == at || strings.HasPrefix(d.Path, at+"/"))
}

// unrecorded describes a device without a record. Either the reference plugin moved it, or the
// record is lost. Nothing is known of it but its original name, which is in its alias. If there
// is no such device, or if it may belong to another attachment, unrecorded returns nil.
func unrecorded(r *plugin.Request, host *nl.Conn, at endpoint.Place) (*record.Device, error) {
	if at.Conn == nil {
		return unrecordedOnHost(r, host)
	}
	link, err := at.Conn.Link(r.IfName)
	if nl.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	home := link.Attrs().Alias
	if home == "" && link.Type() == kindOfReal {
		var conf Conf
		if r.Decode(&conf) == nil {
			home = conf.Device
		}
	}
	if spec.ValidateIfName(home) != nil || claimed(r, home) {
		return nil, nil
	}
	return deviceOf(link, home), nil
}

func deviceOf(link netlink.Link, home string) *record.Device {
	a := link.Attrs()
	return &record.Device{Name: home, Index: a.Index, Kind: link.Type(), MAC: a.HardwareAddr.String(), Burnt: a.PermHWAddr.String()}
}

// unrecordedOnHost finds a device without a record after the namespace is gone. If the kernel
// moved the device back to the host, its alias is its original name, which the configuration
// names. Its present name is the one from the container, or devN.
func unrecordedOnHost(r *plugin.Request, host *nl.Conn) (*record.Device, error) {
	conf, sys := plugin.ConfOf[Conf](r), sysfs(r.Session.Paths.Sys)
	if _, err := r.Conf(); err != nil || sys.resolve(conf) != nil || conf.DPDKMode {
		return nil, nil //nolint:nilerr // a configuration that became invalid names nothing
	}
	link, err := sys.lookup(conf, host)
	if conf.Device != "" {
		link, err = host.FindLink(func(l netlink.Link) bool { return l.Attrs().Alias == conf.Device })
	}
	if err != nil || link == nil || link.Type() != kindOfReal {
		return nil, nil //nolint:nilerr // a device that is not found does not exist
	}
	a := link.Attrs()
	returned := a.Name == r.IfName || a.Name == "dev"+strconv.Itoa(a.Index)
	if !returned || !misnamed(link) || claimed(r, a.Alias) {
		return nil, nil
	}
	return deviceOf(link, a.Alias), nil
}

// claimed reports whether the record of another attachment names the device.
func claimed(r *plugin.Request, home string) bool {
	return slices.ContainsFunc(moved(r), func(rec *record.Record) bool { return rec.Device.Name == home })
}

// renamed returns a record that the attachment left under another name of its network, or nil. It
// serves a DEL whose network has no record. A container may be on two networks with the same
// interface name if one of the two ADDs failed. So the configuration must also name the device of
// the record.
func renamed(r *plugin.Request) *record.Record {
	for _, rec := range moved(r) {
		if rec.ContainerID != r.ContainerID || rec.IfName != r.IfName || rec.Network == r.Network {
			continue
		}
		if !means(r, rec.Device) {
			kernel.Warn(r, fmt.Errorf("device %s of this container belongs to network %s and is kept", rec.Device.Name, rec.Network))
			continue
		}
		locked, err := kernel.Of(r).Records.ReadLocked(rec.Network, rec.Owner, name)
		if err != nil {
			kernel.Warn(r, err)
		}
		if locked != nil && locked.Device != nil {
			return locked
		}
	}
	return nil
}

// means reports whether the configuration of the request names a device. A configuration that
// is no longer valid names no device.
func means(r *plugin.Request, d *record.Device) bool {
	_, err := r.Conf()
	conf, sys := plugin.ConfOf[Conf](r), sysfs(r.Session.Paths.Sys)
	return err == nil && sys.resolve(conf) == nil && sys.names(conf, d)
}
