// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package all lists the plugins of this program. To add a plugin, add its folder and one line
// here. A test fails and names the line if it is missing.
package all

import (
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/bandwidth"
	"github.com/patchbay-net/patchbay/plugin/bridge"
	"github.com/patchbay-net/patchbay/plugin/dhcp"
	"github.com/patchbay-net/patchbay/plugin/dummy"
	"github.com/patchbay-net/patchbay/plugin/firewall"
	"github.com/patchbay-net/patchbay/plugin/hostdevice"
	"github.com/patchbay-net/patchbay/plugin/hostlocal"
	"github.com/patchbay-net/patchbay/plugin/ipvlan"
	"github.com/patchbay-net/patchbay/plugin/loopback"
	"github.com/patchbay-net/patchbay/plugin/macvlan"
	"github.com/patchbay-net/patchbay/plugin/networks"
	"github.com/patchbay-net/patchbay/plugin/patchbay"
	"github.com/patchbay-net/patchbay/plugin/policy"
	"github.com/patchbay-net/patchbay/plugin/portmap"
	"github.com/patchbay-net/patchbay/plugin/ptp"
	"github.com/patchbay-net/patchbay/plugin/sbr"
	"github.com/patchbay-net/patchbay/plugin/static"
	"github.com/patchbay-net/patchbay/plugin/tap"
	"github.com/patchbay-net/patchbay/plugin/tuning"
	"github.com/patchbay-net/patchbay/plugin/vlan"
	"github.com/patchbay-net/patchbay/plugin/vrf"
	"github.com/patchbay-net/patchbay/plugin/wrap"
)

// The list is an array of pointers. The linker can build it, so nothing fills it before main.
var list = [...]*plugin.Plugin{
	&bandwidth.Plugin,
	&bridge.Plugin,
	&dhcp.Plugin,
	&dummy.Plugin,
	&firewall.Plugin,
	&hostdevice.Plugin,
	&hostlocal.Plugin,
	&ipvlan.Plugin,
	&loopback.Plugin,
	&macvlan.Plugin,
	&networks.Plugin,
	&patchbay.Plugin,
	&policy.Plugin,
	&portmap.Plugin,
	&ptp.Plugin,
	&sbr.Plugin,
	&static.Plugin,
	&tap.Plugin,
	&tuning.Plugin,
	&vlan.Plugin,
	&vrf.Plugin,
	&wrap.Plugin,
}

// Plugins returns every plugin.
func Plugins() []*plugin.Plugin { return list[:] }

// Find returns the plugin of a type. If there is none, Find returns nil.
func Find(pluginType string) *plugin.Plugin {
	for _, p := range list {
		if p.Name == pluginType {
			return p
		}
	}
	return nil
}
