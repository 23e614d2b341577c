// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package dhcp_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/daemons/dhcp"
	"github.com/patchbay-net/patchbay/daemons/test/dhcptest"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
)

func (w *world) move(ns, name string) error {
	a := w.args("c1", "")
	a.Netns, a.Path = ns, name
	return w.keeper.Move(w.Context(), a)
}

// wakes waits until the keeper has checked its interfaces n times.
func (w *world) wakes(n int) {
	w.Helper()
	for range n {
		dhcptest.Eventually(w, "the keeper sleeps", w.asleep)
		w.clock.Jump()
	}
	dhcptest.Eventually(w, "the keeper sleeps again", w.asleep)
}

// Docker moves interfaces. The lease follows its interface. The keeper, or the next keeper,
// renews the lease there and in the end releases it from there.
func TestMove(t *testing.T) {
	w := newWorld(t)
	s := dhcptest.Kea(t, "kea-dhcp4", "br0", short("10.77.0", 38, 40, 120))
	addr := w.configured("")
	sandbox := nettest.NewNS(t, "sandbox")
	if err := w.move("", ""); err != nil {
		t.Fatal(err)
	}
	dhcptest.Move(t, w.ns, sandbox)
	w.wakes(2) // the interface is nowhere, but the lease stays
	w.restart()
	w.wakes(2)
	if err := w.move(sandbox, "eth1"); err == nil {
		t.Error("an interface that is not there was taken")
	}
	for range 2 { // the second call changes nothing
		if err := w.move(sandbox, "eth0"); err != nil {
			t.Fatal(err)
		}
	}
	dhcptest.Configure(t, sandbox, addr, "10.77.0.1")
	before := w.logged("lease renewed")
	w.passes("a renewal there", func() bool { return w.logged("lease renewed") > before })
	w.restart()
	before = w.logged("lease renewed")
	w.passes("another by the next keeper", func() bool { return w.logged("lease renewed") > before })
	w.del()
	if strings.Contains(w.log.String(), "failed to release") || w.files() != 0 {
		t.Error("not given back")
	}
	if err := w.move(sandbox, "eth0"); !errors.Is(err, dhcp.ErrUnknown) {
		t.Errorf("a lease that is no more was moved: %v", err)
	}
	s.Stop()
}

// If an interface never arrives, the keeper drops its lease after the time limit.
func TestMovedAway(t *testing.T) {
	w := newWorld(t)
	dhcptest.Dnsmasq(t, "br0", "--dhcp-range=10.77.0.10,10.77.0.10,255.255.255.0,2m")
	w.add("")
	if err := w.move("", ""); err != nil {
		t.Fatal(err)
	}
	moved := w.clock.Since()
	w.restart()
	w.passes("it is dropped", func() bool { return w.keeper.Attachments() == 0 && w.files() == 0 })
	if took := w.clock.Since() - moved; took < dhcp.AwayTime-time.Minute {
		t.Errorf("after %v", took)
	}
}
