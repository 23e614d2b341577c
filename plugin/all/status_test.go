// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package all_test

import (
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/all"
	"github.com/patchbay-net/patchbay/spec"
)

// If the kernel lacks something that ADD needs, STATUS fails; otherwise it succeeds. STATUS makes
// nothing.
func TestStatusOfTheKernel(t *testing.T) {
	const ipam = `"ipam": {"type": "static", "addresses": [{"address": "10.9.0.5/24"}]}`
	inv := plugin.Builtin{NewSession: func() *plugin.Session { return plugin.NewSession(all.Plugins()) }}
	for name, c := range map[string]struct {
		plugin, conf string
		kernel       nettest.Feature
	}{
		"macvlan": {"macvlan", `"linkInContainer": true, "master": "m0", ` + ipam, nettest.LinkKind("macvlan")},
		"ipvlan":  {"ipvlan", `"linkInContainer": true, "master": "m0", ` + ipam, nettest.LinkKind("ipvlan")},
		"vlan":    {"vlan", `"linkInContainer": true, "master": "m0", "vlanId": 5, ` + ipam, nettest.LinkKind("vlan")},
		"dummy":   {"dummy", ipam, nettest.Dummy()},
		"vrf":     {"vrf", `"vrfname": "blue"`, nettest.LinkKind("vrf")},
		"tap":     {"tap", ipam, nettest.Tun()},
		"bridge":  {"bridge", `"bridge": "tbr0", "vlan": 100, ` + ipam, nettest.VLANFiltering()},
		"trunk":   {"bridge", `"bridge": "tbr0", "vlanTrunk": [{"id": 100}], ` + ipam, nettest.VLANFiltering()},
		"plain":   {"bridge", `"bridge": "tbr0", ` + ipam, nettest.LinkKind("bridge")},
	} {
		t.Run(name, func(t *testing.T) {
			call := &spec.Call{Verb: spec.Status, Path: []string{"/nonexistent"}, Config: []byte(`{"cniVersion": "1.1.0", "name": "net", "type": "` + c.plugin + `", ` + c.conf + `}`)}
			before := count(t)
			_, err := inv.Invoke(t.Context(), c.plugin, call)
			if after := count(t); after != before {
				t.Errorf("%d links, before %d", after, before)
			}
			lacks := c.kernel.Probe()
			if (err == nil) != (lacks == nil) || err != nil && spec.ErrorCode(err) != spec.CodeNotAvailable {
				t.Errorf("STATUS: %v; the kernel: %v", err, lacks)
			}
		})
	}
}

func count(t *testing.T) int {
	links, err := nl.Retry(netlink.LinkList)
	if err != nil {
		t.Fatal(err)
	}
	return len(links)
}
