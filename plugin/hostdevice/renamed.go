// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hostdevice

import (
	"fmt"

	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/kernel"
)

// renamed is the record that an attachment left under another name of its network, for a
// DEL whose network has none; nil when there is none. A container may be on two networks
// with one interface name, when one of the two ADDs failed: so the configuration must name
// the device too, or the record is kept.
func renamed(r *plugin.Request) *record.Record {
	for _, rec := range moved(r) {
		if rec.ContainerID != r.ContainerID || rec.IfName != r.IfName || rec.Network == r.Network {
			continue
		}
		if !means(r, rec.Device) {
			kernel.Warn(r, fmt.Errorf("device %s of this container belongs to network %s and is kept", rec.Device.Name, rec.Network))
			continue
		}
		taken, err := kernel.Of(r).Records.Take(rec.Network, rec.Owner, name)
		if err != nil {
			kernel.Warn(r, err)
		}
		if taken != nil && taken.Device != nil {
			return taken
		}
	}
	return nil
}

// means reports whether the configuration of the request names a device. A configuration that
// became invalid names nothing.
func means(r *plugin.Request, d *record.Device) bool {
	_, err := r.Conf()
	conf, sys := plugin.ConfOf[Conf](r), sysfs(r.Session.Paths.Sys)
	return err == nil && sys.resolve(conf) == nil && sys.names(conf, d)
}

// forget removes the record of the network's other name. The caller removes that of this
// name.
func forget(r *plugin.Request, rec *record.Record) error {
	if rec.Network == r.Network {
		return nil
	}
	return kernel.Of(r).Records.Remove(rec.Network, rec.Owner, name)
}
