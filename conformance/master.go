// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package conformance

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/test/nettest"
)

// need skips the test if this kernel does not support the subject.
func (s *Subject) need(t *testing.T) {
	t.Helper()
	if s.Needs != "" {
		nettest.Need(t, nettest.LinkKind(s.Needs))
	}
}

// master makes the host interface that the subject needs. The interface is up, has carrier and
// has no address. The end of the test deletes it.
func (s *Subject) master(t *testing.T) {
	t.Helper()
	if s.Master == "" {
		return
	}
	if _, err := netlink.LinkByName(s.Master); err == nil {
		return
	}
	peer := "pb-peer0"
	link := &netlink.Veth{LinkAttrs: netlink.NewLinkAttrs(), PeerName: peer}
	link.Name = s.Master
	if err := netlink.LinkAdd(link); err != nil {
		t.Fatalf("make master %s: %v", s.Master, err)
	}
	t.Cleanup(func() {
		if err := netlink.LinkDel(link); err != nil {
			t.Error(err)
		}
	})
	for _, name := range []string{s.Master, peer} {
		_ = os.WriteFile(filepath.Join("/proc/sys/net/ipv6/conf", name, "disable_ipv6"), []byte("1"), 0) // fails if the kernel has no IPv6
		l, err := netlink.LinkByName(name)
		if err == nil {
			err = netlink.LinkSetUp(l)
		}
		if err != nil {
			t.Fatalf("set %s up: %v", name, err)
		}
	}
}
