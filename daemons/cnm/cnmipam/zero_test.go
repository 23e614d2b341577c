// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cnmipam

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"testing"

	"github.com/patchbay-net/patchbay/daemons/test/cnmtest"
	"github.com/patchbay-net/patchbay/internal/test/endpointtest"
	"github.com/patchbay-net/patchbay/plugin/ptp"
	"github.com/patchbay-net/patchbay/spec"
)

// TestZeroPool lets one of our plugins use an IPAM driver like Calico's. The driver gives single
// addresses, and a gateway outside of all networks. Containers reach each other and networks
// outside the host.
func TestZeroPool(t *testing.T) {
	must := endpointtest.Must
	must(t, os.RemoveAll("/var/lib/patchbay")) // other tests use the same network name
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
	w.Want("addresses out", fmt.Sprint(d.Addresses()), "2") // those of the gateways
}

// TestNewIDs uses a driver that forgets its pools and gives them other ids when they are
// requested again. Each time, the driver also gets the addresses in use. In the end all of them
// are given back.
func TestNewIDs(t *testing.T) {
	must := endpointtest.Must
	must(t, os.RemoveAll("/var/lib/patchbay")) // other tests use the same network name
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
	w.Want("addresses out", fmt.Sprint(d.Addresses()), "3") // those of the gateways and of the router
}

// TestForgottenAtOnce starts several ADDs after the driver forgot both pools. One of them
// requests the pools again, and the others use the result.
func TestForgottenAtOnce(t *testing.T) {
	must := endpointtest.Must
	must(t, os.RemoveAll("/var/lib/patchbay")) // other tests use the same network name
	t.Cleanup(func() { must(t, os.RemoveAll("/var/lib/patchbay")) })
	d := &cnmtest.Driver{NewIDs: true}
	s := cnmtest.Start(t, "atonce", d)
	w := endpointtest.New(t, &ptp.Plugin, &Plugin)
	conf := `"ipam":{"type":"cnm-ipam","driver":"atonce","pools":[{"subnet":"10.84.0.0/24"},{"subnet":"fd84::/64"}]}`
	first := w.Pod("first", conf).Add()
	for round := range 3 {
		d.Forget()
		s.Calls()
		var pods []*endpointtest.Pod
		var wg sync.WaitGroup
		failed := make([]error, 4)
		for n := range failed {
			p := w.Pod(fmt.Sprintf("p%d-%d", round, n), conf)
			pods = append(pods, p)
			wg.Go(func() { failed[n] = p.Do(spec.Add) })
		}
		wg.Wait()
		must(t, errors.Join(failed...))
		asked := 0
		for _, method := range s.Methods() {
			if method == "IpamDriver.RequestPool" {
				asked++
			}
		}
		w.Want("pools asked for", fmt.Sprint(asked), "2")
		for _, p := range pods {
			must(t, p.Do(spec.Del))
		}
	}
	must(t, first.Do(spec.Del))
}

// TestAnotherPool uses a driver that answers the repeated request with another pool. The driver
// gets that pool back.
func TestAnotherPool(t *testing.T) {
	must := endpointtest.Must
	must(t, os.RemoveAll("/var/lib/patchbay")) // other tests use the same network name
	t.Cleanup(func() { must(t, os.RemoveAll("/var/lib/patchbay")) })
	d := &cnmtest.Driver{}
	s := cnmtest.Start(t, "another", d)
	w := endpointtest.New(t, &ptp.Plugin, &Plugin)
	conf := `"ipam":{"type":"cnm-ipam","driver":"another","subnet":"10.84.0.0/24"}`
	first := w.Pod("first", conf).Add()
	d.Forget()
	s.Fault("IpamDriver.RequestPool", -1, cnmtest.Say(200, `{"PoolID":"wrong","Pool":"10.99.0.0/24"}`))
	s.Calls()
	if err := w.Pod("second", conf).Do(spec.Add); err == nil {
		t.Error("ADD worked")
	}
	if !slices.Contains(s.Calls(), cnmtest.Call{Method: "IpamDriver.ReleasePool", Body: `{"PoolID":"wrong"}`}) {
		t.Error("the other pool was not released")
	}
	s.Well()
	must(t, first.Do(spec.Del))
}
