// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package portmap

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/patchbay-net/patchbay/spec"
)

// The door to the host's loopback services is open as long as somebody needs
// it, and no longer; one that an operator opened stays open.
func TestRouteLocalnet(t *testing.T) {
	n, web, other := world(t)
	const key = "net/ipv4/conf/cni0/route_localnet"
	want := func(when, value string) {
		t.Helper()
		if got := n.Host.ReadSysctl(key); got != value {
			t.Errorf("%s: route_localnet is %s, want %s", when, got, value)
		}
	}
	a, b := of(web), of(other)
	a.must(t, spec.Add, ports(webPort))
	b.must(t, spec.Add, ports(`{"hostPort": 81, "containerPort": 80}`))
	a.del(t)
	want("one left", "1")
	b.del(t)
	want("none left", "0")
	nothingLeft(t)
	n.Host.Sysctl(key, "1")
	a.must(t, spec.Add, ports(webPort))
	a.del(t)
	want("opened by the operator", "1")
	n.Host.Sysctl(key, "0")
	a.must(t, spec.Add, ports(webPort))
	n.Host.Sysctl(key, "0")
	if err := a.call(t, spec.Check, ports(webPort)); err == nil || !strings.Contains(err.Error(), "route_localnet is 0") {
		t.Errorf("CHECK: %v", err)
	}
	n.Host.Delete("cni0")
	a.del(t)
	nothingLeft(t)
}

// The last one out and the next one in, at once: whoever is in finds the door open,
// and it is shut in the end.
func TestRouteLocalnetRace(t *testing.T) {
	n, web, other := world(t)
	const key = "net/ipv4/conf/cni0/route_localnet"
	var both sync.WaitGroup
	for i, a := range []*attachment{of(web), of(other)} {
		conf := ports(fmt.Sprintf(`{"hostPort": %d, "containerPort": 80}`, 80+i))
		both.Go(func() {
			for range 100 {
				if err := a.call(t, spec.Add, conf); err != nil {
					t.Error(err)
				}
				if got := n.Host.ReadSysctl(key); got != "1" {
					t.Errorf("route_localnet is %s while a port is published", got)
				}
				if err := a.call(t, spec.Del, conf); err != nil {
					t.Error(err)
				}
			}
		})
	}
	both.Wait()
	if got := n.Host.ReadSysctl(key); got != "0" {
		t.Errorf("route_localnet is %s when no port is published", got)
	}
	nothingLeft(t)
}
