// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package gc_test

import (
	"context"
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/cli/gc"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/test/draw"
	"github.com/patchbay-net/patchbay/internal/test/nettest/leak"
	"github.com/patchbay-net/patchbay/netns"
)

// Containers start, die without a DEL and start again under the same ids, while two gcs without a
// grace period run all the time. Whatever the gcs remove, an existing container stays whole. In
// the end nothing is left.
func TestGCBesideAttachments(t *testing.T) {
	l := list(t, fmt.Sprintf(everything, ""))
	// The bandwidth plugin fails if it finds objects of its container's former life. So a life with
	// bandwidth waits for gc.
	quick := list(t, bandwidth.ReplaceAllString(fmt.Sprintf(everything, ""), ""))
	warm(t, runtimeOf(), l)
	before := leak.Must(t)
	lives := draw.Number(t, "PATCHBAY_GC_LIVES", 3, 8)
	stop := make(chan struct{})
	var collectors, containers sync.WaitGroup
	for range 2 {
		collectors.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
					collectBeside(t)
				}
			}
		})
	}
	for i := range 4 {
		containers.Go(func() {
			id := fmt.Sprint("again", i)
			for life := range lives {
				if t.Failed() || i%2 == 0 && !live(t, quick, id, i+10, life) ||
					i%2 == 1 && !(live(t, l, id, i+10, life) && collected(t, owner.Of(l.Name, id, "eth0"))) {
					return
				}
			}
		})
	}
	containers.Wait()
	close(stop)
	collectors.Wait()
	for range 2 {
		collect(t, runtimeOf(), nil)
	}
	leak.NoLeaks(t, before)
}

var bandwidth = regexp.MustCompile(`{"type":"bandwidth"[^}]*},`)

// collected waits until gc has removed a dead attachment.
func collected(t *testing.T, o owner.Key) bool {
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Millisecond) {
		left, err := filepath.Glob(filepath.Join(paths.Default().Run, "attachments", "*", string(o)+".*"))
		if err == nil && len(left) == 0 {
			return true
		}
	}
	t.Error("nobody collects ", o)
	return false
}

// collectBeside runs a gc while other gcs run. Another gc may remove an object first. This gc must
// not fail, and must release its locks.
func collectBeside(t *testing.T) {
	_, err := gc.Run(context.Background(), gc.Options{Paths: paths.Default(), Runtime: runtimeOf(), NewSession: session, Apply: true})
	if err != nil {
		t.Error("gc:", err)
	}
}

// live is one life of a container, in its own namespace.
func live(t *testing.T, l *chain.List, id string, i, life int) bool {
	path := filepath.Join("/run/netns", fmt.Sprint(id, "-", life))
	if err := netns.Create(path); err != nil {
		t.Error(err)
		return false
	}
	// The runtime library's locks keep its own calls apart. A runtime with libcni has no such locks.
	rt := runtimeOf().With(chain.WithRunDir(t.TempDir()))
	a := chain.Attachment{ContainerID: id, NetNS: path, IfName: "eth0", Capabilities: ports(i)}
	if _, err := rt.Add(context.Background(), l, a); err != nil {
		t.Error("ADD:", err)
		return false
	}
	for range 3 {
		err := rt.Check(context.Background(), l, a)
		if err != nil {
			t.Error("CHECK:", err)
			return false
		}
	}
	if err := netns.Delete(path); err != nil {
		t.Error(err)
	}
	return vanished(t, owner.Of(l.Name, id, a.IfName).Alias())
}

// vanished waits until the kernel has deleted the veth pair of a namespace that is gone. The
// kernel does so later. Until then the owner's name is taken.
func vanished(t *testing.T, alias string) bool {
	for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(time.Millisecond) {
		links, err := nl.Retry(netlink.LinkList)
		if err != nil {
			t.Error(err)
			return false
		}
		if !slices.ContainsFunc(links, func(l netlink.Link) bool { return l.Type() == "veth" && l.Attrs().Alias == alias }) {
			return true
		}
	}
	t.Error("the pair stays: ", alias)
	return false
}
