// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package tuning

import (
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/spec"
)

// ADD and CHECK report an interface that sends larger packets than its other end accepts.
func TestLargerThanTheHostsEnd(t *testing.T) {
	w := newWorld(t)
	const conf = `,"mtu":9000}`
	if _, err := w.call(spec.Add, conf, options{}); err != nil {
		t.Fatal(err)
	}
	const want = "eth0 has mtu 9000, but the host's end of its pair, hostend, has 1500: larger packets are lost"
	if _, err := w.call(spec.Check, conf, options{}); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("CHECK: %v", err)
	}
	end, err := netlink.LinkByName("hostend")
	if err == nil {
		err = netlink.LinkSetMTU(end, 9000)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, verb := range []spec.Verb{spec.Check, spec.Del} {
		if _, err := w.call(verb, conf, options{}); err != nil {
			t.Errorf("%s with equal ends: %v", verb, err)
		}
	}
}
