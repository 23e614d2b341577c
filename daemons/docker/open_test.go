// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"net/netip"
	"os"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/daemons/cnm"
)

// openNamespaces counts this process's open files that are namespaces.
func openNamespaces(t *testing.T) (n int) {
	t.Helper()
	files, err := os.ReadDir("/proc/self/fd")
	must(t, err)
	for _, f := range files {
		fd, err := strconv.Atoi(f.Name())
		must(t, err)
		var s unix.Statfs_t
		if unix.Fstatfs(fd, &s) == nil && s.Type == unix.NSFS_MAGIC { // the list's own file is closed already
			n++
		}
	}
	return n
}

// After an endpoint is removed, even one whose creation failed, no namespace stays open. Otherwise,
// with thousands of containers, the driver would run out of files, and each namespace would stay in
// the kernel.
func TestRemovalLeavesNothingOpen(t *testing.T) {
	n := newNode(t, bridgeNet)
	network := n.network("podnet")
	before := openNamespaces(t)
	for range 3 {
		c, err := n.begin(run{network: network})
		must(t, err)
		must(t, c.delete())
		if _, err := n.begin(run{network: network, iface: cnm.Interface{Address: netip.MustParsePrefix("198.18.77.9/24")}}); err == nil {
			t.Error("an address of no range was given")
		}
	}
	if after := openNamespaces(t); after != before {
		t.Errorf("%d namespaces are open after three endpoints and three failures, %d before", after, before)
	}
}
