// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package ipam_test

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/ipam"
)

func TestEarlierBoot(t *testing.T) {
	b := newBed(t, Set(t, "10.1.0.0/29"))
	gone := func(r ipam.Reservation) bool { return r.EarlierBoot && r.Holder != eth0("alive") }
	for i, id := range []string{"a", "b", "alive", "late"} {
		b.add(id, fmt.Sprint("10.1.0.", i+2))
	}
	// The reference made this file two hours ago, before the node booted.
	b.write("10.1.0.6", "found\r\neth0")
	old := time.Now().Add(-2 * time.Hour)
	if err := os.Chtimes(filepath.Join(b.dir, "10.1.0.6"), old, old); err != nil {
		t.Fatal(err)
	}
	req := func(id string) *ipam.Request { return &ipam.Request{Holder: eth0(id), Gone: gone} }
	if got, err := b.try(req("n1")); err != nil || got != "10.1.0.6" {
		t.Fatalf("%s, %v: only the reservation found from before the boot may go", got, err)
	}
	if _, err := b.try(req("n2")); !errors.Is(err, ipam.ErrExhausted) {
		t.Fatal(err)
	}
	b.store.Boot = ipam.Boot{ID: "next", Since: time.Now()} // after a reboot the index is still there, because it lies on a disk
	tx := b.begin(ipam.Existing)
	if err := ipam.Status(tx, b.sets, gone); err != nil {
		t.Errorf("reclaimable, and yet: %v", err)
	}
	tx.Close()
	// b's container is dead. Its ADD is repeated and gets the same address, which then belongs to
	// this boot.
	if got, err := b.try(req("b")); err != nil || got != "10.1.0.3" {
		t.Fatal(got, err)
	}
	if got, err := b.try(&ipam.Request{Holder: eth0("n3"), Gone: gone, Requested: []netip.Addr{netip.MustParseAddr("10.1.0.2")}}); err != nil || got != "10.1.0.2" {
		t.Fatalf("an address of the dead that was asked for: %s, %v", got, err)
	}
	if got, err := b.try(req("n4")); err != nil || got != "10.1.0.5" {
		t.Fatal(got, err)
	}
	b.del("late", 0)
	b.del("alive", 1)
	b.del("b", 1)
}

// The node crashed a second after it reserved addresses, and booted at once: the times prove nothing,
// and the index was lost. The first ADD releases the addresses, even outside of its range, although
// an earlier DEL has already written the index.
func TestOutlived(t *testing.T) {
	b := newBed(t, Set(t, "10.1.0.0/29"))
	for i, id := range []string{"a", "alive", "again"} {
		b.add(id, fmt.Sprint("10.1.0.", i+2))
	}
	b.write("10.1.0.5", "reference\r\neth0")
	b.write("10.2.0.1", "router\r\neth0") // a gateway that somebody reserved is not given out, and stays reserved
	err := unix.Setxattr(filepath.Join(b.dir, "10.2.0.1"), "user.patchbay.boot", []byte(b.store.Boot.ID), 0)
	if err = errors.Join(err, os.RemoveAll(b.store.IndexDir)); err != nil {
		t.Fatal(err)
	}
	b.store.Boot.ID, b.sets = "next", []ipam.RangeSet{Set(t, "10.2.0.0/29")}
	b.del("unknown", 0)
	gone := func(r ipam.Reservation) bool { return r.EarlierBoot && r.Holder != eth0("alive") }
	if got, err := b.try(&ipam.Request{Holder: eth0("again"), Gone: gone}); err != nil || got != "10.2.0.2" {
		t.Fatal(got, err)
	}
	for addr, want := range map[string]bool{"10.1.0.2": false, "10.1.0.3": true, "10.1.0.4": true, "10.1.0.5": true, "10.2.0.1": true, "10.2.0.2": true} {
		if _, err := os.Stat(filepath.Join(b.dir, addr)); (err == nil) != want {
			t.Errorf("%s is reserved: %v, want %v", addr, err == nil, want)
		}
	}
	b.del("alive", 1)
	b.del("again", 2)
}

// If an ADD takes over a reservation of an earlier boot, the reservation belongs to this boot. A
// new index sees this too. The file system has no attributes, or the reference wrote the file; so
// the index knows only the time of the file.
func TestRenewTouchesTheFile(t *testing.T) {
	b := newBed(t, Set(t, "10.1.0.0/29"))
	b.add("c1", "10.1.0.2")
	if err := unix.Removexattr(filepath.Join(b.dir, "10.1.0.2"), "user.patchbay.boot"); err != nil && !errors.Is(err, unix.EOPNOTSUPP) {
		t.Fatal(err)
	}
	old := time.Now().Add(-2 * time.Hour)
	if err := os.Chtimes(filepath.Join(b.dir, "10.1.0.2"), old, old); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(b.store.IndexDir); err != nil {
		t.Fatal(err)
	}
	gone := func(r ipam.Reservation) bool { return r.EarlierBoot }
	if got, err := b.try(&ipam.Request{Holder: eth0("c1"), Gone: gone}); err != nil || got != "10.1.0.2" {
		t.Fatal(got, err)
	}
	if err := os.RemoveAll(b.store.IndexDir); err != nil {
		t.Fatal(err)
	}
	if got, err := b.try(&ipam.Request{Holder: eth0("c1"), Gone: gone}); err == nil {
		t.Fatalf("%s was given again to a living container", got)
	}
}

// If the clock is set while the node runs, files of living containers look older than the boot.
// The mtime of procfs corrects the boot time.
func TestReadBoot(t *testing.T) {
	const hour = time.Hour
	for _, c := range []struct {
		name                  string
		uptime, mounted, file time.Duration // counted back from today's clock
		earlier               bool
	}{
		{"made before the boot", 2 * hour, 2 * hour, 3 * hour, true},
		{"made in this boot", 2 * hour, 2 * hour, hour, false},
		{"set forward since, from 1970", 2 * hour, 50 * 365 * 24 * hour, 50*365*24*hour - hour, false},
		{"set forward since, made with the clock of now", 2 * hour, 50 * 365 * 24 * hour, hour, false},
		{"paused for a week", hour, 8 * 24 * hour, 8*24*hour - hour, false},
		{"paused for a week, made long before the boot", hour, 8 * 24 * hour, 10 * 24 * hour, true},
		{"set back since", 2 * hour, -5 * hour, hour, false},
		{"set back and forward", 2 * hour, -5 * hour, 7 * hour, false},
		{"procfs of a container", 72 * hour, hour, 60 * hour, false},
		{"procfs of a container, made long before the boot", 72 * hour, hour, 100 * hour, true},
	} {
		now := time.Now()
		proc := t.TempDir()
		write := func(name, text string) {
			path := filepath.Join(proc, name)
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(text), 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		write("sys/kernel/random/boot_id", "this")
		write("uptime", fmt.Sprintf("%.2f 1.00\n", c.uptime.Seconds()))
		if err := os.Chtimes(proc, now.Add(-c.mounted), now.Add(-c.mounted)); err != nil {
			t.Fatal(err)
		}
		boot, err := ipam.ReadBoot(proc)
		if err != nil || boot.ID != "this" {
			t.Fatal(boot, err)
		}
		if made := now.Add(-c.file); made.Before(boot.Since) != c.earlier {
			t.Errorf("%s: made %v, boot since %v", c.name, made, boot.Since)
		}
	}
}
