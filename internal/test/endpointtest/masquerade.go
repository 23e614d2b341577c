// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package endpointtest

import (
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/test/nettest/node"
	"github.com/patchbay-net/patchbay/netns"
	"github.com/patchbay-net/patchbay/spec"
)

// Masquerades checks the traffic of two containers whose configuration asks for masquerade: between them, to the
// outside, and from the host.
func (w *World) Masquerades(conf string) {
	w.Helper()
	a, b := w.Pod("a", conf).Add(), w.Pod("b", conf).Add()
	for n, outside := range []string{node.Client4, node.Client6} {
		uplink := []string{node.Uplink4, node.Uplink6}[n]
		for _, network := range []string{"tcp", "udp"} {
			b.Serve(network, Join(b.IP(n), "80"))
			w.Client.Serve(network, Join(outside, "80"))
			w.Want("container to container", a.Ask(network, Join(b.IP(n), "80")), "b "+a.IP(n))
			w.Want("container to the outside", a.Ask(network, Join(outside, "80")), "client "+uplink)
			w.Want("host to container", w.Host.Ask(network, Join(b.IP(n), "80")), "b "+b.Gateway(n))
		}
	}
}

// AddsAgain checks an ADD with another address after the namespace ended without a DEL: nothing of the first address
// stays in the firewall. Both configurations ask for masquerade.
func (w *World) AddsAgain(conf, elsewhere string) {
	w.Helper()
	first := w.Pod("again", conf)
	first.Call.NetNS = "/run/netns/again-died"
	Must(w, netns.Create(first.Call.NetNS))
	Must(w, first.Do(spec.Add))
	Must(w, netns.Delete(first.Call.NetNS))
	second := w.Pod("again2", elsewhere)
	second.Call.ContainerID = first.Call.ContainerID
	Must(w, second.Do(spec.Add))
	added := w.masqueraded()
	Must(w, second.Do(spec.Check))
	Must(w, second.Do(spec.Del))
	if left := w.masqueraded(); added != 1 || left != 0 {
		w.Errorf("%d addresses are masqueraded after ADD, %d after DEL", added, left)
	}
}

func (w *World) masqueraded() int {
	w.Helper()
	fw := nft.Open("")
	defer fw.Close() //nolint:errcheck // a test
	list, err := fw.List(nft.SetMasqueraded4)
	Must(w, err)
	return len(list)
}
