// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"strings"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/daemons/dhcp"
	"github.com/patchbay-net/patchbay/daemons/test/dhcptest"
)

const dhcpNet = `{"cniVersion":"1.1.0","name":"lan","plugins":[{"type":"bridge","bridge":"br-t9","ipam":{"type":"dhcp","daemonSocketPath":"/run/keeper/s"}}]}`

// keeper is our keeper of DHCP leases. The test moves its clock.
type keeper struct {
	*testing.T
	*dhcp.Keeper
	clock *dhcptest.Clock
	log   *dhcptest.Log
}

// newKeeper serves a keeper at a path until the test ends.
func newKeeper(t *testing.T, socket string) *keeper {
	t.Helper()
	k := &keeper{T: t, clock: dhcptest.NewClock()}
	k.Keeper, k.log = dhcptest.ServeWith(t, socket, func(o *dhcp.Options) { o.Watch, o.Clock = time.Minute, k.clock })
	return k
}

// renews waits until the only lease was renewed some times. Whenever both goroutines of the lease
// sleep, the clock jumps: one renews it, the other looks whether the interface still exists. While
// Docker moves the interface, only one goroutine sleeps.
func (k *keeper) renews(times int) {
	k.Helper()
	count := func() int { return strings.Count(k.log.String(), "lease renewed") }
	before := count()
	dhcptest.Eventually(k, "renewals", func() bool {
		if k.clock.Asleep() == 2 {
			k.clock.Jump()
		}
		return count() >= before+times
	})
}

// ended checks that the keeper has given all leases back, and that nothing is left in it which could
// look for an interface again.
func (k *keeper) ended() {
	k.Helper()
	if n := k.Attachments(); n > 0 {
		k.Errorf("%d leases are held", n)
	}
	dhcptest.Eventually(k, "no goroutine sleeps", func() bool { return k.clock.Asleep() == 0 })
	for _, bad := range []string{"failed to release", "lease dropped"} {
		if strings.Contains(k.log.String(), bad) {
			k.Errorf("%s:\n%s", bad, k.log)
		}
	}
}

// Docker moves the interface. Its DHCP lease is renewed there, and in the end released from the
// holding namespace.
func TestDHCPLease(t *testing.T) {
	both(t, func(t *testing.T, old bool) {
		n := newNode(t, dhcpNet)
		n.old = old
		dhcptest.LAN(t, "br-t9", "10.77.0.1/24")
		dhcptest.Kea(t, "kea-dhcp4", "br-t9", `"renew-timer": 38, "rebind-timer": 40, "valid-lifetime": 120, "calculate-tee-times": false,
			"authoritative": true, "subnet4": [{"subnet": "10.77.0.0/24", "pools": [{"pool": "10.77.0.10 - 10.77.0.10"}]}]`)
		k := newKeeper(t, "/run/keeper/s")
		network := n.network("lan")
		for range 2 { // there is one address, so the second container gets the one that the first released
			c := n.mustStart(run{network: network})
			k.renews(2)
			c.stop(true)
			k.ended()
		}

		c := n.mustStart(run{network: network}) // the driver is killed while Docker moves the interface
		n.stop()
		n.boot()
		n.sweep(0)
		k.renews(1)
		c.stop(true)
		k.ended()
	})
}
