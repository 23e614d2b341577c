// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"path/filepath"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// addressWatch records which namespace of a pod has which addresses, once a second.
type addressWatch struct {
	k     *cluster
	nodes map[string]string // name to where the node's namespaces are
	stop  chan struct{}
	done  sync.WaitGroup
	looks int
	given map[given]bool     // all that was ever seen
	twice map[string][]given // addresses that two namespaces had at once
}

// given is an address in a namespace.
type given struct {
	addr, path string
	inode      uint64
}

// watchAddresses begins to watch the pods of nodes.
func (k *cluster) watchAddresses(nodes []string) *addressWatch {
	k.Helper()
	w := &addressWatch{k: k, nodes: map[string]string{}, stop: make(chan struct{}), given: map[given]bool{}, twice: map[string][]given{}}
	for _, node := range nodes {
		// containerd's names; while a node is wiped, its /run is the machine's with the nodes' own namespaces
		w.nodes[node] = k.pathOn(node, "/run/netns/cni-*")
	}
	w.done.Go(func() {
		for {
			select {
			case <-w.stop:
				return
			case <-time.After(time.Second):
				w.look()
			}
		}
	})
	return w
}

// end fails the test if an address was given twice.
func (w *addressWatch) end() {
	w.k.Helper()
	close(w.stop)
	w.done.Wait()
	addrs := map[string]bool{}
	for g := range w.given {
		addrs[g.addr] = true
	}
	w.k.Logf("%d looks saw %d addresses, given %d times", w.looks, len(addrs), len(w.given))
	for addr, who := range w.twice {
		w.k.Errorf("%s was given twice at once: %v", addr, who)
	}
	if w.looks == 0 || len(w.given) == 0 {
		w.k.Error("no address was seen")
	}
}

// look reads the addresses in all namespaces. Meanwhile a namespace may end and another one get its
// address. So if two namespaces have one address, look reads both again.
func (w *addressWatch) look() {
	w.looks++
	holders := map[string][]given{}
	for _, pattern := range w.nodes {
		paths, _ := filepath.Glob(pattern) // fails for a bad pattern only
		for _, path := range paths {
			for _, g := range addresses(path) {
				w.given[g] = true
				holders[g.addr] = append(holders[g.addr], g)
			}
		}
	}
	for addr, who := range holders {
		if still := stillHave(who); len(still) > 1 {
			w.twice[addr] = still
		}
	}
}

func stillHave(who []given) (still []given) {
	if len(who) < 2 {
		return nil
	}
	for _, g := range who {
		for _, now := range addresses(g.path) {
			if now == g {
				still = append(still, g)
			}
		}
	}
	return still
}

// addresses returns the global addresses of a namespace, or none if the namespace is gone.
func addresses(path string) (list []given) {
	ns, err := netns.GetFromPath(path)
	if err != nil {
		return nil
	}
	defer ns.Close()
	var st unix.Stat_t
	if err := unix.Fstat(int(ns), &st); err != nil {
		return nil
	}
	h, err := netlink.NewHandleAt(ns)
	if err != nil {
		return nil // a file whose namespace is not mounted
	}
	defer h.Close()
	addrs, err := h.AddrList(nil, netlink.FAMILY_ALL)
	if err != nil {
		return nil
	}
	for _, a := range addrs {
		if a.IP.IsGlobalUnicast() && a.Scope == int(netlink.SCOPE_UNIVERSE) {
			list = append(list, given{a.IP.String(), path, st.Ino})
		}
	}
	return list
}

func (g given) String() string { return fmt.Sprintf("%s in %s (%d)", g.addr, g.path, g.inode) }
