// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package lease

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/internal/boot"
	"github.com/patchbay-net/patchbay/internal/nettest"
	"github.com/patchbay-net/patchbay/lease/leasetest"
)

func (w *world) move(ns, name string) error {
	a := w.args("c1", "")
	a.NetNS, a.Path = ns, name
	return w.keeper.Move(w.Context(), a)
}

// Docker moves interfaces: the lease goes along, is renewed where the interface
// is, also by the next keeper, and given back from where it is at the end.
func TestMove(t *testing.T) {
	w := newWorld(t)
	s := leasetest.Kea(t, "kea-dhcp4", "br0", short("10.77.0", 1, 20, 60))
	addr := w.configured("")
	sandbox := nettest.NewNS(t, "sandbox")
	if err := w.move("", ""); err != nil {
		t.Fatal(err)
	}
	leasetest.Move(t, w.ns, sandbox)
	time.Sleep(3 * w.opts.Watch) // it is nowhere, which is no reason to drop the lease
	w.keeper.Close()
	w.start()
	time.Sleep(3 * w.opts.Watch)
	if err := w.move(sandbox, "eth1"); err == nil {
		t.Error("an interface that is not there was taken")
	}
	for range 2 { // the second one changes nothing
		if err := w.move(sandbox, "eth0"); err != nil {
			t.Fatal(err)
		}
	}
	leasetest.Configure(t, sandbox, addr, "10.77.0.1")
	before := strings.Count(w.log.String(), "lease renewed")
	leasetest.Eventually(t, "a renewal there", func() bool { return strings.Count(w.log.String(), "lease renewed") > before })
	w.keeper.Close()
	w.start()
	before = strings.Count(w.log.String(), "lease renewed")
	leasetest.Eventually(t, "another by the next keeper", func() bool { return strings.Count(w.log.String(), "lease renewed") > before })
	w.del()
	if strings.Contains(w.log.String(), "failed to release") || w.files() != 0 {
		t.Error("not given back")
	}
	if err := w.move(sandbox, "eth0"); !errors.Is(err, errUnknown) {
		t.Errorf("a lease that is no more was moved: %v", err)
	}
	s.Stop()
}

// One that never arrives is dropped, in time.
func TestMovedAway(t *testing.T) {
	w := newWorld(t)
	leasetest.Dnsmasq(t, "br0", "--dhcp-range=10.77.0.10,10.77.0.10,255.255.255.0,2m")
	w.add("")
	if err := w.move("", ""); err != nil {
		t.Fatal(err)
	}
	w.keeper.Close()
	list, err := w.keeper.store.List()
	if err != nil || len(list) != 1 || list[0].Away == 0 {
		t.Fatalf("%+v %v", list, err)
	}
	list[0].Away = boot.Since() + time.Second
	if err := w.keeper.store.Write(list[0]); err != nil {
		t.Fatal(err)
	}
	w.start()
	leasetest.Eventually(t, "it is dropped", func() bool { return w.keeper.Held() == 0 && w.files() == 0 })
}
