// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package ipam_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/patchbay-net/patchbay/ipam"
)

// populate writes the files of n reservations as the reference does. The first address is 10.1.0.2.
func populate(tb testing.TB, dir string, n int) {
	tb.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		tb.Fatal(err)
	}
	for i := range n {
		j := i + 2
		name := fmt.Sprintf("10.1.%d.%d", j>>8, j&0xff)
		content := fmt.Sprintf("other-%d\r\neth0", i)
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			tb.Fatal(err)
		}
	}
}

func benchDirs(b *testing.B) map[string]string {
	shm, err := os.MkdirTemp("/dev/shm", "ipam")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { os.RemoveAll(shm) })
	return map[string]string{"tmpfs": shm, "disk": b.TempDir()}
}

// BenchmarkAddDel measures one ADD and one DEL in a network with n reservations. Each of the two
// opens the store itself, as two processes would.
func BenchmarkAddDel(b *testing.B) {
	for where, dir := range benchDirs(b) {
		for _, n := range []int{0, 1000, 60000} {
			data := filepath.Join(dir, fmt.Sprint(n))
			populate(b, filepath.Join(data, "net"), n)
			store := &ipam.FileStore{DataDir: data, Network: "net", IndexDir: filepath.Join(dir, "index")}
			b.Run(fmt.Sprintf("%s/%d", where, n), func(b *testing.B) { benchAddDel(b, store) })
		}
	}
}

func benchAddDel(b *testing.B, store *ipam.FileStore) {
	sets := []ipam.RangeSet{Set(b, "10.1.0.0/16")}
	owner := ipam.Holder{ID: "bench", IfName: "eth0"}
	step := func(fn func(tx *ipam.Tx) error) {
		tx, err := store.Begin(context.Background(), ipam.Write)
		if err != nil {
			b.Fatal(err)
		}
		defer tx.Close()
		if err := fn(tx); err != nil {
			b.Fatal(err)
		}
	}
	step(func(tx *ipam.Tx) error { return ipam.Status(tx, sets, nil) }) // builds the index
	for b.Loop() {
		step(func(tx *ipam.Tx) error {
			_, err := ipam.Allocate(tx, &ipam.Request{Holder: owner, Sets: sets})
			return err
		})
		step(func(tx *ipam.Tx) error {
			_, err := ipam.Release(tx, owner, nil)
			return err
		})
	}
}

// BenchmarkRebuild measures the first call after another program changed the directory.
func BenchmarkRebuild(b *testing.B) {
	dir := b.TempDir()
	populate(b, filepath.Join(dir, "net"), 60000)
	store := &ipam.FileStore{DataDir: dir, Network: "net"}
	for b.Loop() {
		tx, err := store.Begin(context.Background(), ipam.Existing)
		if err != nil {
			b.Fatal(err)
		}
		tx.Close()
	}
}
