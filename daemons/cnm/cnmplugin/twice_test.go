// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cnmplugin

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/patchbay-net/patchbay/daemons/cnm/remote"
	"github.com/patchbay-net/patchbay/daemons/test/cnmtest"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/test/endpointtest"
	"github.com/patchbay-net/patchbay/spec"
)

// TestTwoAnswers sends two answers to one call. The first one counts.
func TestTwoAnswers(t *testing.T) {
	l := newLab(t, &cnmtest.Driver{})
	l.srv.Fault("NetworkDriver.Join", 1, l.srv.DoAnd(func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		endpointtest.Must(t, err)
		answer := `{"Err":"out of order"}`
		for range 2 {
			fmt.Fprintf(conn, "HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s", len(answer), answer) //nolint:errcheck // a test
			answer = `{"InterfaceName":{"SrcName":"lo"}}`
		}
		conn.Close() //nolint:errcheck // a test
	}))
	x := l.Pod("x", both)
	if err := x.Do(spec.Add); spec.ErrorCode(err) != 100 || !strings.Contains(err.Error(), "out of order") {
		t.Errorf("two answers: %v", err)
	}
	l.clean("two answers")
}

// TestTwice lets the driver give one container's addresses to another container. Only the second
// ADD fails. Neither this ADD nor its DEL gives back anything of the first container.
func TestTwice(t *testing.T) {
	l := newLab(t, &cnmtest.Driver{})
	p := l.Pod("a", both).Add()
	x := l.Pod("x", both)
	src := "cs" + l.endpoint(p)
	for _, c := range []struct {
		about, method string
		answer        http.HandlerFunc
		code          spec.Code
		text          string
	}{
		{"an address", "IpamDriver.RequestAddress", l.always("10.88.0.0", p.Result.IPs[0].Address), 6, "driver lab: IpamDriver.RequestAddress: bad answer of the driver: address 10.88.0.2/24 is eth0's of container a already"},
		{"an IPv6 address", "IpamDriver.RequestAddress", l.always("fd88::", p.Result.IPs[1].Address), 6, "address fd88::2/64 is eth0's of container a"},
		{"an address with another prefix", "IpamDriver.RequestAddress", l.always("fd88::", "fd88::2/128"), 6, "is eth0's of container a"},
		{"the gateway's address", "IpamDriver.RequestAddress", l.always("10.88.0.0", "10.88.0.1/24"), 6, "address 10.88.0.1/24 is the gateway's"},
		{"the IPv6 gateway's address", "IpamDriver.RequestAddress", l.always("fd88::", "fd88::1/64"), 6, "address fd88::1/64 is the gateway's"},
		{"the link", "NetworkDriver.Join", cnmtest.Say(200, fmt.Sprintf(`{"InterfaceName":{"SrcName":%q}}`, src)), 100, "which is not in the host's namespace"},
	} {
		l.srv.Fault(c.method, -1, c.answer)
		err := x.Do(spec.Add)
		l.srv.Well()
		if spec.ErrorCode(err) != c.code || !strings.Contains(fmt.Sprint(err), c.text) {
			t.Errorf("%s: code %d, %v", c.about, spec.ErrorCode(err), err)
		}
		for range 2 {
			endpointtest.Must(t, x.Do(spec.Del))
		}
		endpointtest.Must(t, p.Do(spec.Check))
		l.Want(c.about+": endpoints", fmt.Sprint(l.driver.Endpoints()), "1")
		l.Want(c.about+": addresses out, gateways included", fmt.Sprint(l.driver.Addresses()), "4")
		l.talks(p, c.about)
	}
	endpointtest.Must(t, p.Do(spec.Del))
	l.clean("after DEL")
	l.Want("addresses out", fmt.Sprint(l.driver.Addresses()), "2")
}

// talks checks that a new container gets other addresses than p and reaches p.
func (l *lab) talks(p *endpointtest.Pod, about string) {
	l.Helper()
	l.port++
	y := l.Pod(fmt.Sprintf("y%d", l.port), both)
	endpointtest.Must(l.T, y.Do(spec.Add))
	for n := range 2 {
		at := endpointtest.Join(p.IP(n), fmt.Sprint(l.port))
		p.Serve("tcp", at)
		l.Want(about+": container to container", y.Ask("tcp", at), p.Name+" "+y.IP(n))
	}
	endpointtest.Must(l.T, y.Do(spec.Del))
}

// always returns a driver's method that gives every container the same address of the pool whose
// id contains a text. It serves gateways normally.
func (l *lab) always(pool string, address any) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		endpointtest.Must(l.T, err)
		text := string(body)
		if strings.Contains(text, pool) && !strings.Contains(text, "RequestAddressType") {
			fmt.Fprintf(w, `{"Address":"%v"}`, address) //nolint:errcheck // a test
			return
		}
		r.Body = io.NopCloser(strings.NewReader(text))
		l.srv.Handler.ServeHTTP(w, r)
	}
}

// TestTwiceAtOnce begins many ADDs that get the same address. One of them succeeds.
func TestTwiceAtOnce(t *testing.T) {
	l := newLab(t, &cnmtest.Driver{})
	endpointtest.Must(t, l.Pod("first", both).Do(spec.Add)) // creates the network
	l.srv.Fault("IpamDriver.RequestAddress", -1, l.always("10.88.0.0", "10.88.0.50/24"))
	var pods []*endpointtest.Pod
	for i := range 6 {
		pods = append(pods, l.Pod(fmt.Sprintf("p%d", i), both))
	}
	errs := make([]error, len(pods))
	var wg sync.WaitGroup
	for i, p := range pods {
		wg.Go(func() { errs[i] = p.Do(spec.Add) })
	}
	wg.Wait()
	attached := 0
	for i, p := range pods {
		if errs[i] == nil {
			attached++
			endpointtest.Must(t, p.Do(spec.Check))
		} else if !strings.Contains(errs[i].Error(), "address 10.88.0.50/24 is eth0's of container p") {
			t.Error(errs[i])
		}
	}
	l.Want("containers with the address", fmt.Sprint(attached), "1")
}

// TestTwiceByNetworkDriver lets the network driver, without IPAM, give one container's address to
// another container.
func TestTwiceByNetworkDriver(t *testing.T) {
	l := newLab(t, &cnmtest.Driver{})
	p, x := l.Pod("a", `"driver":"lab"`).Add(), l.Pod("x", `"driver":"lab"`)
	l.srv.Fault("NetworkDriver.CreateEndpoint", 1, l.srv.DoAnd(cnmtest.Say(200, fmt.Sprintf(`{"Interface":{"Address":"%s"}}`, p.Result.IPs[0].Address))))
	err := x.Do(spec.Add)
	if spec.ErrorCode(err) != 6 || !strings.Contains(fmt.Sprint(err), "driver lab: NetworkDriver.CreateEndpoint: bad answer of the driver: address 10.66.0.10/24 is eth0's of container a already") {
		t.Errorf("code %d, %v", spec.ErrorCode(err), err)
	}
	endpointtest.Must(t, x.Do(spec.Del))
	endpointtest.Must(t, p.Do(spec.Check))
	l.Want("endpoints", fmt.Sprint(l.driver.Endpoints()), "1")
	endpointtest.Must(t, x.Do(spec.Add))
	x.Result = nil
	endpointtest.Must(t, x.Do(spec.Del))
	endpointtest.Must(t, p.Do(spec.Del))
	l.clean("after DEL")
}

// TestHandedOn lets a DEL give back an address that another container gets before the DEL ends.
// No two containers ever have the address at the same time.
func TestHandedOn(t *testing.T) {
	l := newLab(t, &cnmtest.Driver{})
	p, q := l.Pod("a", both).Add(), l.Pod("b", both)
	given, goOn := make(chan bool, 2), make(chan bool)
	l.srv.Fault("IpamDriver.ReleaseAddress", 2, l.srv.DoAnd(func(w http.ResponseWriter, _ *http.Request) {
		given <- true
		<-goOn
		io.WriteString(w, "{}") //nolint:errcheck // a test
	}))
	done := make(chan error)
	go func() { done <- p.Do(spec.Del) }()
	<-given
	endpointtest.Must(t, q.Do(spec.Add))
	close(goOn)
	endpointtest.Must(t, <-done)
	l.Want("the address", q.IP(0), "10.88.0.2")
	endpointtest.Must(t, q.Do(spec.Check))
	endpointtest.Must(t, q.Do(spec.Del))
	l.clean("after DEL")
	l.Want("addresses out", fmt.Sprint(l.driver.Addresses()), "2")
}

// TestReleasedOnce loses the driver's answer to a release. Before the release is repeated,
// another container gets the address. It keeps the address.
func TestReleasedOnce(t *testing.T) {
	l := newLab(t, &cnmtest.Driver{})
	p := l.Pod("a", both)
	endpointtest.Must(t, p.Do(spec.Add))
	l.srv.Fault("IpamDriver.ReleaseAddress", 1, l.srv.DoAnd(cnmtest.Cut()))
	endpointtest.Must(t, p.Do(spec.Del))
	l.srv.Fault("IpamDriver.ReleaseAddress", 1, cnmtest.Cut()) // the next ADD loses its answer too
	q := l.Pod("b", both).Add()
	l.Want("the address", q.IP(0), p.IP(0))
	l.srv.Well()
	endpointtest.Must(t, l.gc(p, "", "b"))
	l.Want("addresses out", fmt.Sprint(l.driver.Addresses()), "4")
	l.talks(q, "after a GC")
	endpointtest.Must(t, q.Do(spec.Del))
	l.clean("after DEL")
	l.Want("addresses out", fmt.Sprint(l.driver.Addresses()), "2")
}

// endpoint is the beginning of a pod's endpoint id.
func (l *lab) endpoint(p *endpointtest.Pod) string {
	o := owner.Of("net", p.Call.ContainerID, p.Call.IfName)
	return remote.ID(l.driver.Networks()[0].NetworkID, string(o))[:10]
}
