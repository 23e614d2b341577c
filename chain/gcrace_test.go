// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package chain_test

import (
	"context"
	"errors"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/internal/clock"
	"github.com/patchbay-net/patchbay/internal/owner"
	records "github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/internal/test/chaintest"
	"github.com/patchbay-net/patchbay/spec"
)

// Another runtime, which takes none of our locks, attaches a container while Valid is listed. GC
// keeps that attachment. GC also keeps an attachment that came back under the same name, and one
// that Alive then finds in use.
func TestGCLeavesWhatComesMeanwhile(t *testing.T) {
	b := newBench(t)
	b.Set(chain.WithEvent(nil)) // two runtimes would call it here
	list := chaintest.List(t, three)
	b.add(list, "dead", "back", "alive")
	other := b.With(chain.WithRunDir(t.TempDir()))
	err := b.GC(t.Context(), chain.Keep{
		List: list,
		Now: func(ctx context.Context) ([]spec.AttachmentKey, error) {
			for _, id := range []string{"new", "back"} {
				if _, err := other.Add(ctx, list, chain.Attachment{ContainerID: id, NetNS: "/run/netns/" + id, IfName: "eth0"}); err != nil {
					t.Error(err)
				}
			}
			b.Calls()
			return nil, nil
		},
		Alive: func(c *chain.Cached) bool { return c.ContainerID == "alive" },
	})
	if err != nil {
		t.Fatal(err)
	}
	if got := b.Cached(); got != "net-alive-eth0 net-back-eth0 net-new-eth0" {
		t.Errorf("cached: %q", got)
	}
	calls := b.Calls()
	if got := chaintest.Order(calls); got != "DEL rec3, DEL rec2, DEL rec1, GC rec1, GC rec2, GC rec3" || calls[0].Env["CNI_CONTAINERID"] != "dead" {
		t.Errorf("calls: %s", got)
	}
	if _, ok := clock.Listed(calls[3].Stdin); !ok {
		t.Errorf("the plugins are not told when the list was begun: %s", calls[3].Stdin)
	}
}

// GC keeps an attachment if a plugin's record of it is newer than the list, or if an ADD has
// locked the record. If no list can be made, GC removes nothing.
func TestGCLooksAtRecords(t *testing.T) {
	for name, prepare := range map[string]func(*records.Dir) bool{
		"locked": func(*records.Dir) bool { return true },
		"newer":  func(s *records.Dir) bool { s.Close(); return true },
		"no list": func(s *records.Dir) bool {
			s.Close()
			return false
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			list := chaintest.List(t, three)
			b.add(list, "c1")
			err := b.GC(t.Context(), chain.Keep{List: list, Now: func(context.Context) ([]spec.AttachmentKey, error) {
				s := records.New(b.RunDir)
				t.Cleanup(s.Close)
				err := s.Write(&records.Record{Plugin: "rec1", Network: "net", ContainerID: "c1", IfName: "eth0", Owner: owner.Of("net", "c1", "eth0")})
				if err != nil {
					t.Error(err)
				}
				if !prepare(s) {
					return nil, errors.New("nothing can be read")
				}
				return nil, nil
			}})
			if (err != nil) != (name == "no list") || b.Cached() != "net-c1-eth0" {
				t.Errorf("%v; cached: %q", err, b.Cached())
			}
		})
	}
}

// A hanging plugin blocks only the operations of its own network, and only for a limited time.
// The error names the process that holds the lock.
func TestHungPlugin(t *testing.T) {
	b := newBench(t)
	b.Set(chain.WithEvent(nil)) // two goroutines would call it
	b.Set(chain.WithLimits(chain.Limits{Lock: 50 * time.Millisecond}))
	stuck := chaintest.List(t, `{"cniVersion":"1.1.0","name":"stuck","plugins":[{"type":"rec1","hang":"ADD"}]}`)
	fine := chaintest.List(t, `{"cniVersion":"1.1.0","name":"fine","plugins":[{"type":"rec2"}]}`)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() {
		_, err := b.Add(ctx, stuck, attachment)
		done <- err
	}()
	for { // until the plugin has begun
		if data, _ := os.ReadFile(b.Log); len(data) > 0 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	err := b.GC(t.Context(), chain.Keep{List: stuck})
	if e := new(spec.Error); !errors.As(err, &e) || !strings.Contains(err.Error(), "stuck.operations.lock") ||
		!strings.Contains(e.Details, "held by process "+strconv.Itoa(os.Getpid())) {
		t.Errorf("error is %v, %+v", err, e)
	}
	a := attachment
	a.ContainerID = "other"
	if _, err := b.Add(t.Context(), fine, a); err != nil {
		t.Error("another network:", err)
	}
	if err := b.GC(t.Context(), chain.Keep{List: fine}); err != nil {
		t.Error("GC of another network:", err)
	}
	cancel()
	if err := <-done; err == nil {
		t.Error("the plugin does not hang")
	}
}
