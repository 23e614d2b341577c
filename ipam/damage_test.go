// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package ipam_test

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/ipam"
)

// Files of a host-local before 0.7 hold only the container id.
func TestOldFiles(t *testing.T) {
	b := newBed(t, Set(t, "10.1.0.0/29"))
	b.add("other", "10.1.0.2")
	b.write("10.1.0.3", "c1")
	b.write("10.1.0.4", "c1\n")
	b.write("10.1.0.5", "by hand: do not use")
	_, err := b.try(&ipam.Request{Holder: eth0("c1")})
	if err == nil || !strings.Contains(err.Error(), "has been allocated to c1, duplicate allocation is not allowed") {
		t.Error(err)
	}
	b.del("c1", 2)
	tx := b.begin(ipam.Existing)
	defer tx.Close()
	gone, err := gc(tx, func(ipam.Holder) bool { return false })
	if err != nil || len(gone) != 1 || gone[0].Holder != eth0("other") {
		t.Errorf("collected %v, %v; want only other", gone, err)
	}
	if _, taken, _ := tx.Holder(netip.MustParseAddr("10.1.0.5")); !taken {
		t.Error("an address that somebody blocked by hand was freed")
	}
}

func TestPlantedLinks(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	if err := os.WriteFile(secret, []byte("c1\r\neth0"), 0o600); err != nil {
		t.Fatal(err)
	}
	plant := func(b *bed, name string) {
		if err := os.Symlink(secret, filepath.Join(b.dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	b := newBed(t, Set(t, "10.1.0.0/24"))
	b.add("c0", "10.1.0.2")
	plant(b, "10.1.0.3")
	if err := unix.Mkfifo(filepath.Join(b.dir, "10.1.0.4"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(filepath.Join(b.dir, "10.1.0.5"), 0o700); err != nil {
		t.Fatal(err)
	}
	b.del("c1", 0)
	b.add("c1", "10.1.0.6")

	b.remove("last_reserved_ip.0")
	plant(b, "last_reserved_ip.0")
	if _, err := b.try(&ipam.Request{Holder: eth0("c2")}); !errors.Is(err, unix.ELOOP) {
		t.Errorf("last_reserved_ip.0 is a link: %v", err)
	}
	b.del("c2", 0)
	b.remove("lock")
	plant(b, "lock")
	if _, err := b.store.Begin(context.Background(), ipam.Existing); !errors.Is(err, unix.ELOOP) {
		t.Errorf("lock is a link: %v", err)
	}
	if err := os.Rename(b.dir, b.dir+".real"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(b.dir+".real", b.dir); err != nil {
		t.Fatal(err)
	}
	if _, err := b.store.Begin(context.Background(), ipam.Write); !errors.Is(err, unix.ENOTDIR) && !errors.Is(err, unix.ELOOP) {
		t.Errorf("the directory is a link: %v", err)
	}
	if data, err := os.ReadFile(secret); err != nil || string(data) != "c1\r\neth0" {
		t.Errorf("the file behind the links: %q, %v", data, err)
	}
}

// TestFailedScan puts an object that cannot be removed at the path where a killed process leaves its
// file. Each call reports the object and releases the lock, with and without an index file.
func TestFailedScan(t *testing.T) {
	for n := range 2 {
		b := newBed(t, Set(t, "10.1.0.0/24"))
		b.stand(3 * n)
		b.add("c0", "10.1.0.2")
		if err := os.Mkdir(filepath.Join(b.dir, ".patchbay-x"), 0o700); err != nil {
			t.Fatal(err)
		}
		for range 2 {
			ctx, stop := context.WithTimeout(t.Context(), time.Second)
			_, err := b.store.Begin(ctx, ipam.Write)
			stop()
			if !errors.Is(err, unix.EISDIR) || !strings.Contains(err.Error(), "scan ") {
				t.Errorf("beside %d reservations: %v", 3*n, err)
			}
		}
		if err := os.Remove(filepath.Join(b.dir, ".patchbay-x")); err != nil {
			t.Fatal(err)
		}
		b.del("c0", 1)
	}
}

func FuzzStateFile(f *testing.F) {
	f.Add([]byte("c1\r\neth0"), []byte("10.1.0.2"), []byte{})
	f.Add([]byte(""), []byte("x"), []byte("pbipam02"))
	f.Add([]byte("c1\n"), []byte("fd00::1"), []byte{0})
	f.Add([]byte("\x00\x00"), []byte("10.1.0.2\n"), make([]byte, 4096))
	f.Fuzz(func(t *testing.T, content, cursor, index []byte) {
		b := newBed(t, Set(t, "10.1.0.0/29"))
		b.stand(3)
		b.add("keep", "10.1.0.2")
		b.write("10.1.0.3", string(content))
		b.write("last_reserved_ip.0", string(cursor))
		for _, name := range b.indexes() {
			if err := os.WriteFile(name, index, 0o600); err != nil {
				t.Fatal(err)
			}
		}
		mine := strings.TrimSpace(string(content)) == "c1\r\neth0" || strings.TrimSpace(string(content)) == "c1"
		tx := b.begin(ipam.Existing)
		got, err := ipam.Release(tx, eth0("c1"), nil)
		tx.Close()
		if err != nil || mine != (len(got) == 1) {
			t.Fatalf("%q: released %v, %v", content, got, err)
		}
		first, err := b.try(&ipam.Request{Holder: eth0("c8")})
		if err != nil || first == "10.1.0.2" || first == "10.1.0.1" {
			t.Fatal(first, err)
		}
		b.del("keep", 1)
	})
}
