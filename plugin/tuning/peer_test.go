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
	var warned strings.Builder
	if _, err := w.call(spec.Add, conf, options{warned: &warned}); err != nil {
		t.Fatal(err)
	}
	const want = "eth0 has mtu 9000, but the host's end of its pair, hostend, has 1500: larger packets are lost"
	if _, err := w.call(spec.Check, conf, options{}); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("CHECK: %v", err)
	}
	if !strings.Contains(warned.String(), want) {
		t.Errorf("ADD warns: %q", &warned)
	}
	end, err := netlink.LinkByName("hostend")
	if err == nil {
		err = netlink.LinkSetMTU(end, 9000)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, verb := range []spec.Verb{spec.Add, spec.Check, spec.Del} {
		warned.Reset()
		if _, err := w.call(verb, conf, options{warned: &warned}); err != nil || warned.Len() > 0 {
			t.Errorf("%s with equal ends: %v, %q", verb, err, &warned)
		}
	}
}
