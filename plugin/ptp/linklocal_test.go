// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package ptp

import (
	"testing"

	"github.com/patchbay-net/patchbay/internal/test/endpointtest"
	"github.com/patchbay-net/patchbay/spec"
)

// The gateway of an IPv6 subnet may be link-local, as routers are.
func TestLinkLocalGateway(t *testing.T) {
	w := newWorld(t)
	const conf = `"ipam": {"type": "host-local", "routes": [{"dst": "::/0"}], "ranges": [[{"subnet": "fd09::/64", "gateway": "fe80::1"}]]}`
	a, b := w.Pod("a", conf).Add(), w.Pod("b", conf).Add()
	b.Serve("tcp", endpointtest.Join(b.IP(0), "80"))
	w.Want("container to container", a.Ask("tcp", endpointtest.Join(b.IP(0), "80")), "b "+a.IP(0))
	endpointtest.Must(t, a.Do(spec.Check))
}
