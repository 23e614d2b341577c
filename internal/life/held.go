// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package life

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/patchbay-net/patchbay/internal/clock"
)

// Held are the network namespaces that processes hold: with an open file, with a thread in
// it, or by a mount they see. They keep alive a namespace that is gone from its path.
type Held struct {
	links map[uint64][]string // by inode
	boot  string
}

// HeldBy looks at every process visible at proc. Call it once, before declaring any number
// of namespaces dead.
func HeldBy(proc string) Held {
	h := Held{links: make(map[uint64][]string)}
	h.boot, _ = clock.BootID(proc)
	for _, pattern := range []string{"fd/*", "task/[0-9]*/ns/net"} {
		links, _ := filepath.Glob(filepath.Join(proc, "[0-9]*", pattern)) // the pattern is right
		for _, link := range links {
			var inode uint64
			to, err := os.Readlink(link) // reading the link does not create the inode
			if n, _ := fmt.Sscanf(to, "net:[%d]", &inode); err == nil && n == 1 {
				h.links[inode] = append(h.links[inode], link)
			}
			if to != "/" {
				continue
			}
			if m := markOf(link, ""); m != nil { // opened at a mount that is gone by now
				h.links[m.Ino] = append(h.links[m.Ino], link)
			}
		}
	}
	h.mounted(proc)
	return h
}

// mounted adds the namespaces that are bound in the mount namespace of any thread.
func (h Held) mounted(proc string) {
	threads, _ := filepath.Glob(filepath.Join(proc, "[0-9]*", "task", "[0-9]*")) // the pattern is right
	views := make(map[string]bool)
	for _, thread := range threads {
		mounts, _ := os.Readlink(filepath.Join(thread, "ns", "mnt"))
		root, _ := os.Readlink(filepath.Join(thread, "root")) // mountinfo omits mounts outside of it
		if views[mounts+root] {
			continue
		}
		views[mounts+root] = true
		bound, _ := boundAt(filepath.Join(thread, "mountinfo")) // the thread may have ended
		for _, b := range bound {
			h.links[b.inode] = append(h.links[b.inode], filepath.Join(thread, "root", b.path))
		}
	}
}

// Doubt checks a verdict of dead, and its reason, that came from the path alone. It does
// not find a namespace that only a socket holds, or a mount that no process sees.
func (h Held) Doubt(was *Mark, why string) (State, string) {
	if was == nil || was.before(h.boot) {
		return Dead, why
	}
	state, where := match(was, h.links[was.Ino])
	switch state {
	case Alive:
		return Alive, "its namespace is not at its path, but something holds it: " + where
	case Unsure:
		return Unsure, "its namespace is not at its path, and something may hold it: " + where
	}
	return Dead, why + " (no visible process holds it)"
}
