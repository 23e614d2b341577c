// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"testing"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/spec"
)

// A port of a bridge has what its ADD closed in the table of bridges, too, and CHECK looks there.
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
