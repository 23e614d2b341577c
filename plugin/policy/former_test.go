// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/internal/paths"
)

// An address is noted from a DEL until an ADD has ended its connections.
func TestFormer(t *testing.T) {
	p := paths.Paths{Run: t.TempDir() + "/run"}
	a, b := netip.MustParseAddr("10.90.0.5"), netip.MustParseAddr("fd90::5")
	if hadFormer(p, []netip.Addr{a, b}) {
		t.Error("no pod had an address")
	}
	must(t, noteFormer(p, nil))
	must(t, noteFormer(p, []netip.Addr{b}))
	if !hadFormer(p, []netip.Addr{a, b}) || hadFormer(p, []netip.Addr{a}) {
		t.Error("a pod had b, and none had a")
	}
	must(t, forgetFormer(p, []netip.Addr{a, b}))
	if hadFormer(p, []netip.Addr{a, b}) {
		t.Error("the connections are gone")
	}
	must(t, os.Remove(formerFile(p)))
	must(t, os.Mkdir(formerFile(p), 0o700))
	if !hadFormer(p, []netip.Addr{a}) {
		t.Error("a file that cannot be read says nothing")
	}
}

// TestStamp asks at many times how long ago another time was.
func TestStamp(t *testing.T) {
	for boot := time.Duration(0); boot < 1000*time.Hour; boot += 7*time.Minute + 700*time.Millisecond {
		noted := stampOf(boot)
		for ago, want := range map[time.Duration]bool{0: true, lately: true, lately + 2*tick: false, 17 * time.Minute: false, 30 * 24 * time.Hour: false} {
			if got := noted.isLate(boot + ago); got != want {
				t.Errorf("noted %v after the boot: %v later it is late: %v", boot, ago, got)
			}
		}
		for ago, runs := range map[time.Duration]time.Duration{0: 0, 20 * time.Minute: 5 * time.Minute, 3 * time.Hour: time.Hour, 72 * time.Hour: 71 * time.Hour} {
			if !noted.isBefore(runs, boot+ago) || noted.isBefore(ago+3*tick, boot+ago) {
				t.Errorf("the pod went %v ago, %v after the boot: not before an agent that runs for %v, or before one that runs for longer", ago, boot, runs)
			}
		}
	}
	if stamp(0).isLate(0) || stamp(0).isBefore(0, 0) {
		t.Error("nothing is noted, and it is late")
	}
}
