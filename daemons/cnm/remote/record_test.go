// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package remote

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/daemons/cnm"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/spec"
)

// TestRecordDriver checks that the program patchbay can read the record that this package writes.
func TestRecordDriver(t *testing.T) {
	dir := t.TempDir()
	s := Open(dir)
	defer s.Records.Close()
	a := &DriverState{
		Owner: owner.Of("net", "c", "eth0"), ContainerID: "c", IfName: "eth0", NetNS: "/run/netns/c", Ended: true,
		Driver:    cnm.DriverAddr{Name: "lab", URL: "unix:///x"},
		Interface: &cnm.Interface{Address: netip.MustParsePrefix("10.1.2.3/24"), MacAddress: "02:42:aa:bb:cc:01"},
		Addresses: []Address{{PoolID: "p", Address: netip.MustParsePrefix("fd88::2/64"), Gateway: netip.MustParseAddr("fd88::1")}},
	}
	if err := s.Write("net", "cnm", a); err != nil {
		t.Fatal(err)
	}
	list, err := record.OfDrivers(dir).List("")
	if err != nil || len(list) != 1 {
		t.Fatal(list, err)
	}
	d, err := list[0].DriverOf()
	if err != nil {
		t.Fatal(err)
	}
	if got, want := fmt.Sprint(d, d.Ended, d.Prefixes()), "lab true [fd88::2/64 10.1.2.3/24]"; got != want || list[0].NetNS != a.NetNS {
		t.Errorf("%s, want %s", got, want)
	}
	d.Driver.Name = ""
	if d.String() != "unix:///x" {
		t.Error(d)
	}
}

// TestLockWaits checks how long Lock waits, and that its error says what it waited for.
func TestLockWaits(t *testing.T) {
	s := Open(t.TempDir())
	defer s.Records.Close()
	unlock, err := s.Lock(t.Context(), Pools, "net")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = s.Lock(ctx, Pools, "net")
	var e *spec.Error
	if !errors.As(err, &e) || e.Code != spec.CodeTryAgain || !strings.Contains(e.Details, "check with STATUS whether the driver answers") {
		t.Errorf("%v", err)
	}
	unlock()
	if unlock, err = s.Lock(t.Context(), Pools, "net"); err != nil {
		t.Fatal(err)
	}
	unlock()
}
