// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cnmipam

import (
	"fmt"
	"os"
	"testing"

	"github.com/patchbay-net/patchbay/cnm/cnmtest"
	"github.com/patchbay-net/patchbay/internal/endpoint/endpointtest"
	"github.com/patchbay-net/patchbay/plugin/ptp"
	"github.com/patchbay-net/patchbay/spec"
)

// TestZeroPool: single addresses and a gateway outside of all networks, as
// Calico's IPAM driver gives them, for one of our plugins: containers talk to each
// other and to the outside.
func TestZeroPool(t *testing.T) {
	must := endpointtest.Must
	must(t, os.RemoveAll("/var/lib/patchbay")) // the network's name is that of other tests
	t.Cleanup(func() { must(t, os.RemoveAll("/var/lib/patchbay")) })
	d := &cnmtest.Driver{ZeroPool: true}
	cnmtest.Start(t, "zero", d)
	w := endpointtest.New(t, &ptp.Plugin, &Plugin)
	conf := `"ipam":{"type":"cnm-ipam","driver":"zero","pools":[{},{"ipv6":true}],"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]}`
	a, b := w.Pod("a", conf).Add(), w.Pod("b", conf).Add()
	w.Want("addresses", fmt.Sprint(a.Result.IPs[0].Address, " ", b.Result.IPs[0].Address, " ", a.Gateway(0)), "192.168.77.1/32 192.168.77.2/32 169.254.1.1")
	for n := range 2 {
		b.Serve("tcp", endpointtest.Join(b.IP(n), "80"))
		w.Want("container to container", a.Ask("tcp", endpointtest.Join(b.IP(n), "80")), "b "+a.IP(n))
	}
	must(t, a.Do(spec.Check))
	must(t, a.Do(spec.Del))
	must(t, b.Do(spec.Del))
	w.Want("addresses out", fmt.Sprint(d.Addresses()), "2") // the gateways
}

// TestNewIDs: a driver that forgot its pools gives them other ids when it is asked
// again. What is out of them it is told each time, and it all goes back to it.
func TestNewIDs(t *testing.T) {
	must := endpointtest.Must
	must(t, os.RemoveAll("/var/lib/patchbay")) // the network's name is that of other tests
	t.Cleanup(func() { must(t, os.RemoveAll("/var/lib/patchbay")) })
	d := &cnmtest.Driver{NewIDs: true}
	cnmtest.Start(t, "newids", d)
	w := endpointtest.New(t, &ptp.Plugin, &Plugin)
	conf := `"ipam":{"type":"cnm-ipam","driver":"newids","pools":[{"subnet":"10.84.0.0/24","auxAddresses":{"router":"10.84.0.200"}},{"subnet":"fd84::/64"}]}`
	var pods []*endpointtest.Pod
	for n := range 4 {
		p := w.Pod(fmt.Sprintf("p%d", n), conf).Add()
		w.Want("addresses", p.IP(0)+" "+p.IP(1), fmt.Sprintf("10.84.0.%d fd84::%d", n+2, n+2))
		w.Want("addresses out", fmt.Sprint(d.Addresses()), fmt.Sprint(3+2*(n+1)))
		pods = append(pods, p)
		d.Forget()
	}
	last := w.Pod("last", conf).Add()
	for _, p := range append(pods, last) {
		must(t, p.Do(spec.Check))
		must(t, p.Do(spec.Del))
	}
	w.Want("addresses out", fmt.Sprint(d.Addresses()), "3") // the gateways and the router's
}
