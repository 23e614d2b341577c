// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package chain_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/internal/test/chaintest"
	"github.com/patchbay-net/patchbay/spec"
)

// If a network was removed or replaced while an ADD waited, the ADD calls no plugin.
func TestAddLooksAtTheFileAgain(t *testing.T) {
	for want, change := range map[string]func(file string) error{
		"":                  func(file string) error { return os.Chtimes(file, time.Now(), time.Now().Add(time.Hour)) },
		"removed meanwhile": os.Remove,
		"changed meanwhile": func(file string) error {
			return os.WriteFile(file, []byte(strings.Replace(three, "rec3", "rec2", 1)), 0o600)
		},
	} {
		t.Run(want, func(t *testing.T) {
			b := newBench(t)
			b.Set(chain.WithEvent(nil), chain.WithFileDecides())
			file := filepath.Join(t.TempDir(), "net.conflist")
			if err := os.WriteFile(file, []byte(three), 0o600); err != nil {
				t.Fatal(err)
			}
			list, err := chain.LoadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			added := make(chan error, 1)
			err = b.Exclusive(t.Context(), "net", func() error {
				go func() {
					_, err := b.Add(t.Context(), list, chain.Attachment{ContainerID: "c1", NetNS: "/run/netns/c1", IfName: "eth0"})
					added <- err
				}()
				return change(file)
			})
			if err != nil {
				t.Fatal(err)
			}
			err = <-added
			if want == "" {
				if err != nil {
					t.Errorf("of a file that was touched: %v", err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), "network net was "+want) || spec.AsError(err).Code != spec.CodeTryAgain {
				t.Errorf("ADD says: %v", err)
			}
			if calls := b.Calls(); len(calls) > 0 {
				t.Errorf("plugins were called: %s", chaintest.Order(calls))
			}
		})
	}
}

// A caller that loaded a list once goes on using it, like a runtime that keeps its last good
// configuration while the file is edited.
func TestAddOfAListThatIsKept(t *testing.T) {
	b := newBench(t)
	file := filepath.Join(t.TempDir(), "net.conflist")
	if err := os.WriteFile(file, []byte(three), 0o600); err != nil {
		t.Fatal(err)
	}
	list, err := chain.LoadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	b.add(list, "changed")
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	b.add(list, "removed")
}

// Exclusive waits for a running operation, but only for a limited time.
func TestExclusiveHasADeadline(t *testing.T) {
	b := newBench(t)
	b.Set(chain.WithLimits(chain.Limits{Lock: 20 * time.Millisecond}))
	err := b.Exclusive(t.Context(), "net", func() error {
		return b.Exclusive(t.Context(), "net", func() error { t.Error("twice at a time"); return nil })
	})
	if err == nil || spec.AsError(err).Code != spec.CodeTryAgain || !strings.Contains(spec.AsError(err).Details, "held by process") {
		t.Errorf("it says: %v", err)
	}
}
