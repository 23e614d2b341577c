// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"strings"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/spec"
)

// If an ADD closes a pod at a port of a bridge, the table bridge closes the port, too, and CHECK
// checks that.
func TestPortIsClosed(t *testing.T) {
	n := fresh(t)
	writeMirror(t, ingress)
	n.BridgeNetfilter(true)
	a := of(n.Bridge("cni0", "10.91.0.1/24").Container("c2", "10.91.0.5/24"))
	a.must(t, spec.Add)
	fw := nft.Open(t.TempDir())
	defer fw.Close() //nolint:errcheck // a test
	port := recordOf(t, "c2").Policed.Port
	have, err := fw.Find(nft.PortClosed(0, port, ""), nft.PortClosed(1, port, ""))
	must(t, err)
	if len(have) != 1 || have[0].Set != nft.SetPortIn {
		t.Errorf("a policy for ingress closes %v of port %q", have, port)
	}
	a.must(t, spec.Check)
	nftDo(t, "flush set bridge patchbay "+nft.SetPortIn)
	if err := a.call(t, spec.Check, `{}`); err == nil {
		t.Error("CHECK does not miss the port")
	}
	a.del(t)
	if have, err := fw.Find(nft.PortClosed(0, port, "")); err != nil || len(have) > 0 {
		t.Errorf("DEL left %v, %v", have, err)
	}
}

// The tagged frames of a container with a trunk of VLANs are dropped. The ADD warns about it.
func TestTaggedPort(t *testing.T) {
	nettest.Need(t, nettest.VLANFiltering())
	n := fresh(t)
	n.BridgeNetfilter(true)
	c := n.Bridge("cni0", "10.91.0.1/24").Container("c2", "10.91.0.5/24")
	a := of(c)
	a.must(t, spec.Add)
	if strings.Contains(a.stderr.String(), "VLAN") {
		t.Errorf("a bridge without VLANs: %s", &a.stderr)
	}
	must(t, n.Host.Do(func() error {
		only := netlink.NewLinkAttrs() // setting all attributes that the kernel returns for a bridge fails with EBUSY
		only.Name = "cni0"
		return netlink.BridgeSetVlanFiltering(&netlink.Bridge{LinkAttrs: only}, true)
	}))
	for _, v := range []struct {
		id            uint16
		pvid, warning bool
	}{{7, true, false}, {8, false, true}} {
		must(t, n.Host.Do(func() error {
			port, err := netlink.LinkByName("vc2")
			if err != nil {
				return err
			}
			return netlink.BridgeVlanAdd(port, v.id, v.pvid, v.pvid, false, true)
		}))
		a.stderr.Reset()
		a.must(t, spec.Add)
		if got := strings.Contains(a.stderr.String(), "port vc2 of bridge cni0 has tagged VLANs"); got != v.warning {
			t.Errorf("VLAN %d, untagged %v: the ADD says %q", v.id, v.pvid, &a.stderr)
		}
	}
	a.del(t)
}
