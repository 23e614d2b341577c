// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cnmplugin

import (
	"fmt"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/daemons/test/cnmtest"
	"github.com/patchbay-net/patchbay/internal/test/draw"
	"github.com/patchbay-net/patchbay/internal/test/endpointtest"
	"github.com/patchbay-net/patchbay/spec"
)

// TestHangsElsewhere lets two kinds of calls hang: calls that cannot fail an ADD, and calls of
// other verbs. All of them end, and the message names the driver.
func TestHangsElsewhere(t *testing.T) {
	l := newLab(t, &cnmtest.Driver{})
	conf, timeout := l.hurried(l.Pod("first", both), l.Pod("first-gc", both))
	p, gc := l.Pod("x", conf), l.Pod("gc", conf)
	drip := func(w http.ResponseWriter, r *http.Request) { // an answer that never ends
		for io.WriteString(w, " "); r.Context().Err() == nil; io.WriteString(w, " ") { //nolint:errcheck // a test
			http.NewResponseController(w).Flush() //nolint:errcheck // a test
			time.Sleep(10 * time.Millisecond)
		}
	}
	calls := []struct {
		method string
		verb   spec.Verb
	}{
		{"Plugin.Activate", spec.Status}, {"NetworkDriver.GetCapabilities", spec.Status}, {"NetworkDriver.EndpointOperInfo", spec.Check},
		{"IpamDriver.GetCapabilities", spec.Add}, {"NetworkDriver.Join", spec.Add},
	}
	for i := 0; i < len(calls); i += stride(t, 2) {
		method, verb := calls[i].method, calls[i].verb
		if verb == spec.Check {
			endpointtest.Must(t, p.Do(spec.Add))
		}
		l.srv.Fault(method, -1, drip)
		start := time.Now()
		err := p.Do(verb)
		l.srv.Well()
		if took := time.Since(start); took > 10*timeout {
			t.Errorf("%s in %s: took %v with a timeout of %v", method, verb, took, timeout)
		}
		l.Fails(err, "driver lab: "+method+": no answer in time")
		endpointtest.Must(t, p.Do(spec.Del))
		l.reset(gc, method)
	}
	onGC := []string{"NetworkDriver.DeleteNetwork", "IpamDriver.ReleasePool"}
	for i := 0; i < len(onGC); i += stride(t, 2) {
		method := onGC[i]
		endpointtest.Must(t, p.Do(spec.Add))
		endpointtest.Must(t, p.Do(spec.Del))
		l.srv.Fault(method, -1, drip)
		l.Fails(l.gc(gc, `,"keepNetwork":false`), "driver lab: "+method+": no answer in time")
		l.srv.Well()
		l.reset(gc, method)
	}
}

// TestManyEnded leaves many attachments to end at a slow driver. An ADD does not wait until all
// of them have ended; later ADDs and GCs end the rest.
func TestManyEnded(t *testing.T) {
	l := newLab(t, &cnmtest.Driver{})
	for n := range 8 {
		endpointtest.Must(t, l.Pod(fmt.Sprintf("p%d", n), both).Do(spec.Add))
	}
	back := l.srv.Away(t, draw.All(t))
	gc := l.Pod("gc", both)
	endpointtest.Must(t, l.gc(gc, ""))
	back()
	for _, method := range []string{"NetworkDriver.Leave", "IpamDriver.ReleaseAddress"} {
		l.srv.Fault(method, -1, func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(time.Second)
			l.srv.Handler.ServeHTTP(w, r)
		})
	}
	l.srv.Calls()
	l.Pod("new", both).Add()
	if ended := count(l.srv.Methods(), "NetworkDriver.Leave"); ended == 0 || ended == 8 {
		t.Errorf("an ADD ended %d of 8", ended)
	}
	l.srv.Well()
	endpointtest.Must(t, l.gc(gc, "", "new"))
	l.Want("endpoints", fmt.Sprint(l.driver.Endpoints()), "1")
	l.Want("addresses out", fmt.Sprint(l.driver.Addresses()), "4")
}
