// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"os"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/test/nettest/node"
	"github.com/patchbay-net/patchbay/netns"
	"github.com/patchbay-net/patchbay/spec"
)

// A plugin that works only on the host opens no sockets in the container, not even for the
// mark in its record.
func TestNoSocketsInside(t *testing.T) {
	reset(t)
	n := node.New(t)
	c := n.Bridge("cni0", "10.1.0.1/24").Container("c1", "10.1.0.5/24")
	before, most := socketsIn(t, c.Path), 0
	a := of(c)
	a.fault = func(string) error { most = max(most, socketsIn(t, c.Path)); return nil }
	a.must(t, spec.Add, `{}`)
	if most != before {
		t.Errorf("the ADD opened %d sockets in the container", most-before)
	}
	a.del(t)
}

// socketsIn counts this process's sockets in a namespace.
func socketsIn(t *testing.T, path string) (n int) {
	t.Helper()
	ns, err := netns.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close() //nolint:errcheck // read only
	want, err := ns.Cookie()
	if err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		fd, err := strconv.Atoi(f.Name())
		if err != nil {
			t.Fatal(err)
		}
		if got, err := unix.GetsockoptUint64(fd, unix.SOL_SOCKET, unix.SO_NETNS_COOKIE); err == nil && got == want {
			n++
		}
	}
	return n
}
