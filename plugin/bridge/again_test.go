// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"testing"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/netns"
	"github.com/patchbay-net/patchbay/spec"
	"github.com/patchbay-net/patchbay/test/endpointtest"
)

// The namespace ended without a DEL. An ADD with another address leaves nothing of the first
// address in the firewall.
func TestAddAgainElsewhere(t *testing.T) {
	w := newWorld(t)
	first := w.Pod("again", `"bridge": "tbr0", "ipMasq": true, "macspoofchk": true, `+endpointtest.Static("10.9.0.5/24"))
	first.Call.NetNS = "/run/netns/again-died"
	endpointtest.Must(t, netns.Create(first.Call.NetNS))
	endpointtest.Must(t, first.Do(spec.Add))
	endpointtest.Must(t, netns.Delete(first.Call.NetNS))
	second := w.Pod("again2", `"bridge": "tbr0", "ipMasq": true, "macspoofchk": true, `+endpointtest.Static("10.9.0.6/24"))
	second.Call.ContainerID = first.Call.ContainerID
	endpointtest.Must(t, second.Do(spec.Add))
	added := masqueraded(t)
	endpointtest.Must(t, second.Do(spec.Check))
	endpointtest.Must(t, second.Do(spec.Del))
	if left := masqueraded(t); added != 1 || left != 0 {
		t.Errorf("%d addresses are masqueraded after ADD, %d after DEL", added, left)
	}
}

func masqueraded(t *testing.T) int {
	t.Helper()
	fw := nft.Open("")
	defer fw.Close() //nolint:errcheck // a test
	list, err := fw.List(nft.SetMasqueraded4)
	endpointtest.Must(t, err)
	return len(list)
}
