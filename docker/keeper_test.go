// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"strings"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/test/dhcptest"
)

const dhcpNet = `{"cniVersion":"1.1.0","name":"lan","plugins":[{"type":"bridge","bridge":"br-t9","ipam":{"type":"dhcp","daemonSocketPath":"/run/keeper/s"}}]}`

// Docker moves the interface. Its DHCP lease is renewed there, and in the end released from the
// holding namespace.
func TestDHCPLease(t *testing.T) {
	both(t, func(t *testing.T, old bool) {
		n := newNode(t, dhcpNet)
		n.old = old
		dhcptest.LAN(t, "br-t9", "10.77.0.1/24")
		dhcptest.Kea(t, "kea-dhcp4", "br-t9", `"renew-timer": 1, "rebind-timer": 40, "valid-lifetime": 60, "calculate-tee-times": false,
			"authoritative": true, "subnet4": [{"subnet": "10.77.0.0/24", "pools": [{"pool": "10.77.0.10 - 10.77.0.10"}]}]`)
		log := dhcptest.Serve(t, "/run/keeper/s")
		network := n.network("lan")
		for range 2 { // there is one address, so the second container gets the one that the first released
			renewed := strings.Count(log.String(), "lease renewed")
			c := n.mustStart(run{network: network})
			dhcptest.Eventually(t, "renewals", func() bool { return strings.Count(log.String(), "lease renewed") >= renewed+2 })
			c.stop(true)
		}

		c := n.mustStart(run{network: network}) // the driver is killed while Docker moves the interface
		n.stop()
		n.boot()
		n.sweep(0)
		renewed := strings.Count(log.String(), "lease renewed")
		dhcptest.Eventually(t, "a renewal", func() bool { return strings.Count(log.String(), "lease renewed") > renewed })
		c.stop(true)
		for _, bad := range []string{"failed to release", "lease dropped"} {
			if strings.Contains(log.String(), bad) {
				t.Errorf("%s:\n%s", bad, log)
			}
		}
		time.Sleep(300 * time.Millisecond) // meanwhile the keeper looks again
	})
}
