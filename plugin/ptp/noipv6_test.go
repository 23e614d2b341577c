// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package ptp

import (
	"testing"

	"github.com/patchbay-net/patchbay/internal/test/endpointtest"
	"github.com/patchbay-net/patchbay/spec"
)

// On a node without IPv6, ADD and STATUS say so. The kernel says "permission denied".
func TestNodeWithoutIPv6(t *testing.T) {
	w := newWorld(t)
	const key = "net/ipv6/conf/default/disable_ipv6"
	w.Host.Sysctl(key, "1")
	t.Cleanup(func() { w.Host.Sysctl(key, "0") })
	p := w.Pod("a", dual)
	p.Refused("cannot have the address fd09::1/128: IPv6 is switched off; sysctl -w net/ipv6/conf/default/disable_ipv6=0")
	err := p.Do(spec.Status)
	w.Fails(err, "IPv6 is switched off; sysctl -w net/ipv6/conf/default/disable_ipv6=0")
	if code := spec.ErrorCode(err); code != spec.CodeNotAvailable {
		t.Errorf("STATUS: code %d", code)
	}
	four := w.Pod("b", `"ipam": {"type": "host-local", "subnet": "10.9.0.0/24"}`).Add()
	endpointtest.Must(t, four.Do(spec.Status))
}
