// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package gc_test

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/internal/life"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/internal/test/draw"
	"github.com/patchbay-net/patchbay/internal/test/nettest/leak"
	"github.com/patchbay-net/patchbay/netns"
	"github.com/patchbay-net/patchbay/spec"
)

// Another runtime, which takes none of our locks, attaches containers while GCs of the network
// run all the time. Each attachment is whole until its DEL. In the end nothing is left.
func TestNetworkGCBesideAttachments(t *testing.T) {
	l := list(t, fmt.Sprintf(everything, ""))
	warm(t, runtimeOf(), l)
	before := leak.Must(t)
	lives := draw.Number(t, "PATCHBAY_GC_LIVES", 5, 12)
	stop := make(chan struct{})
	var collectors, containers sync.WaitGroup
	collectors.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				if err := runtimeOf().GC(context.Background(), chain.Keep{List: l, Now: living(t, l.Name)}); err != nil {
					t.Error("GC:", err)
				}
			}
		}
	})
	for i := range 3 {
		containers.Go(func() {
			for n := 0; n < lives && attachAndDetach(t, l, fmt.Sprintf("beside%d-%d", i, n), 30+i); n++ {
				// the condition does the work
			}
		})
	}
	containers.Wait()
	close(stop)
	collectors.Wait()
	leak.NoLeaks(t, before)
}

// living lists the attachments that are recorded or cached, without those that are certainly dead.
func living(t *testing.T, network string) func(context.Context) ([]spec.AttachmentKey, error) {
	return func(context.Context) (list []spec.AttachmentKey, err error) {
		records, _, err := record.New(paths.Default().Run).Scan(network)
		if err != nil {
			t.Error(err)
		}
		for _, r := range records {
			if state, _ := (&life.Judge{Proc: "/proc"}).AtPath(r.NetNS, r.NetNSMark); state != life.Dead {
				list = append(list, spec.AttachmentKey{ContainerID: r.ContainerID, IfName: r.IfName})
			}
		}
		return list, nil
	}
}

func attachAndDetach(t *testing.T, l *chain.List, id string, i int) bool {
	path := "/run/netns/" + id
	if err := netns.Create(path); err != nil {
		t.Error(err)
		return false
	}
	defer netns.Delete(path) //nolint:errcheck // reported by the count of leaks
	rt := runtimeOf().With(chain.WithRunDir(t.TempDir()))
	a := chain.Attachment{ContainerID: id, NetNS: path, IfName: "eth0", Capabilities: ports(i)}
	if _, err := rt.Add(context.Background(), l, a); err != nil {
		t.Error("ADD:", err)
		return false
	}
	for range 2 {
		if err := rt.Check(context.Background(), l, a); err != nil {
			t.Error("CHECK:", err)
			return false
		}
	}
	if err := rt.Del(context.Background(), l, a); err != nil {
		t.Error("DEL:", err)
		return false
	}
	return true
}
