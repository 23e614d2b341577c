// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"net"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/spec"
)

// A packet that was sent to a pod before the pod was closed, and waits for its neighbour, does not arrive
// once the pod's address answers. Without a policy it does.
func TestWaitingPackets(t *testing.T) {
	for _, c := range []struct {
		name     string
		policies []string
	}{{"open", nil}, {"closed", []string{ingress}}} {
		t.Run(c.name, func(t *testing.T) { waiting(t, len(c.policies) > 0, c.policies...) })
	}
}

func waiting(t *testing.T, closes bool, policies ...string) {
	n := fresh(t)
	writeMirror(t, policies...)
	a, c := routed(t, n, "c1", podWeb, "10.90.0.5/32")
	link, err := netlink.LinkByName("vc1")
	must(t, err)
	must(t, netlink.LinkSetUp(link))
	must(t, netlink.RouteAdd(&netlink.Route{LinkIndex: link.Attrs().Index, Dst: &net.IPNet{IP: net.IP{10, 90, 0, 5}, Mask: net.CIDRMask(32, 32)}}))
	conn, err := net.Dial("udp", "10.90.0.5:80")
	must(t, err)
	_, err = conn.Write([]byte("early"))
	must(t, err)
	must(t, conn.Close())
	a.must(t, spec.Add)
	c.Address("eth0", "10.90.0.5/32")
	c.Up("eth0")
	var server net.PacketConn
	must(t, c.Do(func() (err error) {
		server, err = net.ListenPacket("udp4", ":80")
		return err
	}))
	must(t, server.SetReadDeadline(time.Now().Add(2500*time.Millisecond)))
	_, _, err = server.ReadFrom(make([]byte, 10))
	if arrived := err == nil; arrived == closes {
		t.Errorf("closed %v, and the early packet arrived: %v (%v)", closes, arrived, err)
	}
	must(t, server.Close())
	a.del(t)
}
