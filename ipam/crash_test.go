// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package ipam_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/internal/test/draw"
	"github.com/patchbay-net/patchbay/ipam"
)

// crashDir, when set, turns the test binary into a process that allocates and releases addresses
// until it is killed.
const crashDir = "PATCHBAY_IPAM_CRASH"

func TestMain(m *testing.M) {
	if dir := os.Getenv(crashDir); dir != "" {
		churn(dir)
		return
	}
	os.Exit(m.Run())
}

func crashStore(dir string) *ipam.FileStore {
	return &ipam.FileStore{DataDir: dir, Network: "net", IndexDir: filepath.Join(dir, "index")}
}

// churn allocates and releases addresses for random owners. Both processes use the same owners.
// churn writes a byte before each transaction.
func churn(dir string) {
	store := crashStore(dir)
	sets := []ipam.RangeSet{mustSet("10.1.0.0/26"), mustSet("fd00::/122")}
	for {
		o := eth0(fmt.Sprint("c", rand.IntN(40)))
		if _, err := os.Stdout.Write([]byte{'.'}); err != nil {
			panic(err)
		}
		tx, err := store.Begin(context.Background(), ipam.Write)
		if err != nil {
			panic(err)
		}
		if rand.IntN(2) == 0 {
			// A refused duplicate and a full pool are valid answers too.
			_, _ = ipam.Allocate(tx, &ipam.Request{Holder: o, Sets: sets})
		} else if _, err := ipam.Release(tx, o, nil); err != nil {
			panic(err)
		}
		tx.Close()
	}
}

func mustSet(subnet string) ipam.RangeSet {
	r, err := ipam.ParseRange(subnet, "", "", "")
	if err != nil {
		panic(err)
	}
	set := ipam.RangeSet{r}
	if err := set.Canonicalize(); err != nil {
		panic(err)
	}
	return set
}

// TestKill kills two processes at random points, in each of many rounds. After each round it checks
// that every address file is complete and that no temporary file is left. It also checks that the
// index returns exactly the addresses in the files, even if the kill came between the change of a
// file and the change of the index.
func TestKill(t *testing.T) {
	rounds := draw.Number(t, "PATCHBAY_KILL_ROUNDS", 15, 60)
	if testing.Short() {
		rounds = 10
	}
	for where, dir := range benchDirsT(t) {
		t.Run(where, func(t *testing.T) {
			for range rounds {
				killRound(t, dir)
				checkFiles(t, dir)
			}
			releaseAll(t, dir)
		})
	}
}

// killRound starts two processes. It kills them a random time after they began a random number of
// transactions.
func killRound(t *testing.T, dir string) {
	t.Helper()
	begun, out, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer begun.Close() //nolint:errcheck // read only
	cmds := []*exec.Cmd{startChurn(t, dir, out), startChurn(t, dir, out)}
	if err := out.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadFull(begun, make([]byte, 1+rand.IntN(60))); err != nil {
		t.Errorf("the processes ended by themselves: %v", err)
	}
	time.Sleep(time.Duration(rand.IntN(2000)) * time.Microsecond)
	for _, cmd := range cmds {
		_ = cmd.Process.Kill() // Wait returns the error
		if err := cmd.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
			t.Fatalf("the process ended by itself: %v", err)
		}
	}
}

func startChurn(t *testing.T, dir string, out *os.File) *exec.Cmd {
	t.Helper()
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), crashDir+"="+dir)
	cmd.Stdout, cmd.Stderr = out, os.Stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd
}

func checkFiles(t *testing.T, dir string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(dir, "net"))
	if errors.Is(err, os.ErrNotExist) {
		return // killed before the first transaction made the directory
	}
	if err != nil {
		t.Fatal(err)
	}
	owners := map[string]int{}
	for _, e := range entries {
		if e.Name() == "lock" || strings.HasPrefix(e.Name(), "last_reserved_ip.") {
			continue
		}
		data, err := os.ReadFile(filepath.Join(dir, "net", e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		var n int
		if _, err := ipam.ParseAddr(e.Name()); err != nil {
			t.Fatalf("%s was left behind", e.Name())
		}
		if _, err := fmt.Sscanf(string(data), "c%d\r\neth0", &n); err != nil {
			t.Fatalf("%s: %q is not whole: %v", e.Name(), data, err)
		}
		owners[fmt.Sprint("c", n)]++
	}
	checkIndex(t, dir, owners)
}

func checkIndex(t *testing.T, dir string, owners map[string]int) {
	t.Helper()
	tx, err := crashStore(dir).Begin(context.Background(), ipam.Existing)
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Close()
	for n := range 40 {
		id := fmt.Sprint("c", n)
		held, err := tx.Held(eth0(id))
		if err != nil || len(held) != owners[id] {
			t.Fatalf("%s holds %v, %v; %d files say so", id, held, err, owners[id])
		}
	}
}

// releaseAll shows that a kill loses no address: DEL finds every address that is left.
func releaseAll(t *testing.T, dir string) {
	t.Helper()
	for n := range 40 {
		tx, err := crashStore(dir).Begin(context.Background(), ipam.Existing)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ipam.Release(tx, eth0(fmt.Sprint("c", n)), nil); err != nil {
			t.Fatal(err)
		}
		tx.Close()
	}
	left, err := os.ReadDir(filepath.Join(dir, "net"))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range left {
		if e.Name() != "lock" && !strings.HasPrefix(e.Name(), "last_reserved_ip.") {
			t.Errorf("%s was left behind", e.Name())
		}
	}
	index, err := os.ReadDir(filepath.Join(dir, "index"))
	if err != nil || len(index) != 0 {
		t.Errorf("index files left: %v, %v", index, err)
	}
}

// TestManyProcesses runs several processes at once. No address is given out twice, and none is lost.
func TestManyProcesses(t *testing.T) {
	dir := t.TempDir()
	killRound(t, dir)
	b := newBed(t, Set(t, "10.1.0.0/26"))
	b.store = crashStore(dir)
	seen := map[string]bool{}
	for i := range 10 {
		got, err := b.try(&ipam.Request{Holder: eth0(fmt.Sprint("new", i))})
		if err != nil {
			break // churn may have left the pool full
		}
		if seen[got] {
			t.Fatalf("%s was given out twice", got)
		}
		seen[got] = true
	}
	checkHeld(t, dir, seen)
}

func checkHeld(t *testing.T, dir string, addrs map[string]bool) {
	t.Helper()
	for a := range addrs {
		data, err := os.ReadFile(filepath.Join(dir, "net", a))
		if err != nil || !strings.HasPrefix(string(data), "new") {
			t.Errorf("%s: %q, %v", a, data, err)
		}
	}
}
