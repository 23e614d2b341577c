// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package differential

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/internal/test/draw"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/internal/test/nettest/leak"
	"github.com/patchbay-net/patchbay/internal/test/reftest"
	"github.com/patchbay-net/patchbay/invoke"
	"github.com/patchbay-net/patchbay/netns"
	"github.com/patchbay-net/patchbay/spec"
)

// TestSwap attaches containers with the reference's plugins, replaces these with ours, and swaps
// back. It does so for each plugin and release of the reference. Each side removes what the other
// made, no address is given out twice, and nothing is left.
func TestSwap(t *testing.T) {
	ours := reftest.Ours(t)
	for _, of := range []struct{ release, dir string }{{"v1.1.1", reftest.Debian(t)}, {reftest.Version, reftest.Plugins(t)}} {
		for _, row := range swapRows {
			if !row.drawn(t, of.release) {
				continue
			}
			t.Run(of.release+"/"+row.name, func(t *testing.T) {
				for _, f := range row.needs {
					nettest.Need(t, f)
				}
				inWorld(t, ours, func(w *world) { swap(t, w, row, of.release, of.dir, ours) })
			})
		}
	}
}

// drawn reports whether the row runs with a release of the reference. `make test` runs each plugin once
// with the newest release, and with v1.1.1 the rows in which that release differs.
func (row swapRow) drawn(t *testing.T, release string) bool {
	t.Helper()
	newest := release == reftest.Version
	switch {
	case row.newer && !newest:
		return false
	case testing.Short():
		return row.needs != nil // the second kernel is slow, and runs only what others do not support
	case draw.All(t):
		return true
	case newest:
		return !row.again
	}
	return row.stuck
}

// swapping is a node with attached containers whose plugin directory is replaced.
type swapping struct {
	*testing.T
	w         *world
	row       swapRow
	version   string // of the reference
	ref, ours *chain.Runtime
	list      *chain.List // in the version of the reference's release
	newest    *chain.List // in 1.1.0, which has GC
	pods      int
	lives     map[netip.Addr]string
	living    []spec.AttachmentKey
}

// swapped is one container.
type swapped struct {
	chain.Attachment
	result *spec.Result
	made   leak.State // what was on the node before the container
}

// calling calls the plugins of a directory. The reference's sbr writes many log lines.
func calling(dir string) *chain.Runtime {
	return chain.New(chain.WithPath(dir), chain.WithInvoker(&invoke.Exec{Stderr: io.Discard}))
}

// swap runs the scenario of one network.
func swap(t *testing.T, w *world, row swapRow, release, ref, ours string) {
	s := &swapping{T: t, w: w, row: row, version: release, lives: map[netip.Addr]string{},
		ref: calling(ref), ours: calling(ours)}
	s.list, s.newest = s.parse("1.0.0"), s.parse("1.1.0")
	s.del(s.ref, s.add(s.ref)) // from now on, the objects that the reference never removes exist
	start := leak.Must(t)
	var stays []*swapped
	if !row.alone {
		stays = append(stays, s.add(s.ref), s.add(s.ours))
	}
	s.in()
	s.out()
	for _, p := range stays {
		s.check(p)
		s.del(s.ours, p)
	}
	s.gc()
	s.vanish(start)
	leak.NoLeaks(t, start)
}

// in lets our plugins remove what the reference made. They do so in three ways: by CHECK and DEL,
// by DEL after the namespace is gone, and by GC alone.
func (s *swapping) in() {
	p := s.add(s.ref)
	s.check(p)
	s.del(s.ours, p)
	s.nothing(p, "our DEL of what the reference made")

	p = s.add(s.ref)
	s.end(p)
	s.del(s.ours, p)
	s.nothing(p, "our DEL after the namespace went")

	p = s.add(s.ref)
	s.end(p)
	s.release(p)
	if err := os.Remove(filepath.Join("/var/lib/cni/results", s.list.Name+"-"+p.ContainerID+"-eth0")); err != nil {
		s.Error(err)
	}
	s.gc()
	s.nothing(p, "our GC of what the reference made")
}

// out lets the reference remove what our plugins made. Our next GC removes what the reference
// does not know: our elements and records.
func (s *swapping) out() {
	p := s.add(s.ours)
	s.check(p)
	if err := s.ref.Del(context.Background(), s.list, p.Attachment); err != nil {
		if !s.row.stuck || s.version == reftest.Version || !strings.Contains(err.Error(), "does not exist") {
			s.Errorf("the reference's DEL of what ours made: %v", err)
		}
		s.del(s.ours, p)
	}
	s.end(p)
	s.release(p)
	if left := leak.Must(s).Beyond(p.made).Without(leak.Standing).Without(oursOnly); len(left) > 0 {
		s.Errorf("the reference's DEL of what ours made left:\n%s", left)
	}
	q := s.add(s.ref) // the container may get the same address
	s.del(s.ref, q)
	s.gc()
	s.nothing(p, "the reference's DEL and our GC")
}

// oursOnly reports whether a line is of an object that the reference cannot know.
func oursOnly(line string) bool {
	return strings.HasPrefix(line, "nft ") && strings.Contains(line, " patchbay ") || strings.HasPrefix(line, "file /run/patchbay/")
}

func (s *swapping) parse(version string) *chain.List {
	l, err := chain.ParseList([]byte(fmt.Sprintf(`{"cniVersion":%q,"name":"swap","plugins":[%s]}`, version, s.row.plugins)))
	if err != nil {
		s.Fatal(err)
	}
	return l
}

// add attaches a new container. No other container may have its addresses.
func (s *swapping) add(rt *chain.Runtime) *swapped {
	if s.row.prepare != nil {
		if err := s.row.prepare(s.w); err != nil {
			s.Fatal(err)
		}
	}
	s.pods++
	id := fmt.Sprintf("swap%d", s.pods)
	p := &swapped{Attachment: chain.Attachment{ContainerID: id, NetNS: "/run/netns/" + id, IfName: "eth0"}, made: leak.Must(s)}
	if s.row.ports {
		p.Capabilities = map[string]any{"portMappings": []obj{{"hostPort": 8000 + s.pods, "containerPort": 80, "protocol": "tcp"}}}
	}
	if err := errors.Join(netns.Create(p.NetNS), s.w.quickenAt(p.NetNS)); err != nil {
		s.Fatal(err)
	}
	var err error
	if p.result, err = rt.Add(context.Background(), s.list, p.Attachment); err != nil {
		s.end(p)
		s.Fatalf("ADD by %s: %v", rt.Path()[0], err)
	}
	for _, ip := range p.result.IPs {
		a := ip.Address.Addr()
		if other, taken := s.lives[a]; taken && !a.IsLoopback() {
			s.Errorf("%s is given to %s while %s has it", a, id, other)
		}
		s.lives[a] = id
	}
	s.living = append(s.living, spec.AttachmentKey{ContainerID: id, IfName: "eth0"})
	return p
}

func (s *swapping) check(p *swapped) {
	if err := s.ours.Check(context.Background(), s.list, p.Attachment); err != nil {
		s.Errorf("our CHECK: %v", err)
	}
}

// del detaches, and deletes the namespace if it still exists.
func (s *swapping) del(rt *chain.Runtime, p *swapped) {
	if err := rt.Del(context.Background(), s.list, p.Attachment); err != nil {
		s.Errorf("DEL by %s: %v", rt.Path()[0], err)
	}
	s.end(p)
	s.release(p)
}

func (s *swapping) gc() {
	if err := s.ours.GC(context.Background(), chain.Keep{List: s.newest, Valid: s.living}); err != nil {
		s.Errorf("our GC: %v", err)
	}
}

func (s *swapping) end(p *swapped) {
	if err := netns.Delete(p.NetNS); err != nil {
		s.Error(err)
	}
}

// vanish waits until the kernel has deleted a pair. One end was in a deleted namespace, and the
// kernel deletes the pair some time later.
func (s *swapping) vanish(before leak.State) {
	for range 3000 {
		pairs := leak.Must(s).Beyond(before).Without(func(line string) bool { return !strings.HasPrefix(line, "link veth ") })
		if len(pairs) == 0 {
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	s.Error("the kernel does not delete the pair of a namespace that is gone")
}

// release records that a container's addresses are free.
func (s *swapping) release(p *swapped) {
	for a, id := range s.lives {
		if id == p.ContainerID {
			delete(s.lives, a)
		}
	}
	for i, a := range s.living {
		if a.ContainerID == p.ContainerID {
			s.living = append(s.living[:i:i], s.living[i+1:]...)
			return
		}
	}
}

// nothing fails if the node has more objects than before p came.
func (s *swapping) nothing(p *swapped, after string) {
	if s.Failed() {
		return
	}
	s.vanish(p.made)
	leak.NoLeaks(s, p.made)
	if s.Failed() {
		s.Logf("that was after %s", after)
	}
}
