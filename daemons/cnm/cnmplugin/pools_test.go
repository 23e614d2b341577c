// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cnmplugin

import (
	"fmt"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/daemons/test/cnmtest"
	"github.com/patchbay-net/patchbay/internal/test/endpointtest"
	"github.com/patchbay-net/patchbay/spec"
)

// TestOtherPools changes the configuration of the pools. While the network has attachments, ADD
// refuses the other pools. After that, the network is made again for them.
func TestOtherPools(t *testing.T) {
	l := newLab(t, &cnmtest.Driver{})
	p := l.Pod("a", both)
	endpointtest.Must(t, p.Do(spec.Add))
	other := strings.NewReplacer("10.88.", "10.89.", "fd88:", "fd89:").Replace(both)
	q := l.Pod("b", other)
	for range 2 {
		q.Refused("detach them first, or give the network another name")
	}
	endpointtest.Must(t, p.Do(spec.Check))
	endpointtest.Must(t, p.Do(spec.Del))
	endpointtest.Must(t, q.Do(spec.Add))
	l.Want("networks", fmt.Sprint(len(l.driver.Networks())), "1")
	l.Want("pool", l.driver.Networks()[0].IPv4Data[0].Pool.String()+" "+l.driver.Networks()[0].IPv6Data[0].Pool.String(), "10.89.0.0/24 fd89::/64")
	l.Want("gateway", q.Gateway(0)+" "+q.Gateway(1), "10.89.0.1 fd89::1")
	q.Serve("tcp", endpointtest.Join(q.IP(0), "80"))
	l.Want("host to container", l.Host.Ask("tcp", endpointtest.Join(q.IP(0), "80")), "b "+q.Gateway(0))
	endpointtest.Must(t, q.Do(spec.Del))
	l.clean("after DEL")
}

// TestPoolsGivenBack changes the configuration of the pools after a GC gave the pools back and the
// network remained.
func TestPoolsGivenBack(t *testing.T) {
	l := newLab(t, &cnmtest.Driver{NewPools: true})
	conf := `"driver":"lab","ipam":{"type":"cnm-ipam","driver":"lab","keepPool":false}`
	p := l.Pod("a", conf)
	endpointtest.Must(t, p.Do(spec.Add))
	endpointtest.Must(t, p.Do(spec.Del))
	endpointtest.Must(t, l.gc(p, ""))
	l.Want("pools out", fmt.Sprint(l.driver.Pools()), "0")
	for range 2 { // the second ADD changes nothing
		endpointtest.Must(t, p.Do(spec.Add))
		l.Want("pool", l.driver.Networks()[0].IPv4Data[0].Pool.String(), "10.78.0.0/16")
		l.Want("address", p.IP(0)+" "+p.Gateway(0), "10.78.0.2 10.78.0.1")
		endpointtest.Must(t, p.Do(spec.Del))
	}
	l.clean("after DEL")
}

// TestOtherSubnet changes the subnet of a network whose pool derives from a CNI plugin's addresses.
// A network with attachments does not change.
func TestOtherSubnet(t *testing.T) {
	l := newLab(t, &cnmtest.Driver{})
	conf := func(subnet string) string {
		return `"driver":"lab","ipam":{"type":"host-local","subnet":"` + subnet + `"}`
	}
	pool := func() string { return l.driver.Networks()[0].IPv4Data[0].Pool.String() }
	p, q, r := l.Pod("a", conf("10.85.0.0/24")), l.Pod("b", conf("10.86.0.0/24")), l.Pod("c", conf("10.87.0.0/24"))
	endpointtest.Must(t, p.Do(spec.Add))
	l.Want("pool", pool(), "10.85.0.0/24")
	endpointtest.Must(t, p.Do(spec.Del))
	endpointtest.Must(t, q.Do(spec.Add))
	l.Want("pool", pool(), "10.86.0.0/24")
	q.Serve("tcp", endpointtest.Join(q.IP(0), "80"))
	l.Want("host to container", l.Host.Ask("tcp", endpointtest.Join(q.IP(0), "80")), "b "+q.Gateway(0))
	endpointtest.Must(t, r.Do(spec.Add))
	l.Want("pool", pool(), "10.86.0.0/24")
	for _, x := range []*endpointtest.Pod{q, r} {
		endpointtest.Must(t, x.Do(spec.Check))
		endpointtest.Must(t, x.Do(spec.Del))
	}
	l.clean("after DEL")
}
