// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/daemons/node/services"
	"github.com/patchbay-net/patchbay/internal/test/draw"
	"github.com/patchbay-net/patchbay/internal/test/servicetest"
)

// manyServices fills the API server, and returns the number of endpoints.
func manyServices(s *apiServer, number int) (endpoints int) {
	s.kinds.of(services.ServiceCIDRs).put(`{"metadata":{"name":"kubernetes"},"spec":{"cidrs":["10.96.0.0/12"]}}`)
	for i := range number {
		s.kinds.of(services.Services).put(servicetest.ManyService(i))
		s.kinds.of(services.EndpointSlices).put(servicetest.ManySlice(i, endpoints, time.Unix(0, 0)))
		endpoints += servicetest.ManyEndpoints(i)
	}
	return endpoints
}

// TestServiceMemory runs the real program beside many Services, without and with --services=on, and changes endpoints. It limits what
// Services add to the memory at rest. PATCHBAY_SERVICE_MEMORY is the number of Services.
func TestServiceMemory(t *testing.T) {
	uplink(t)
	api := newAPIServer(t)
	for i := range 50 {
		api.set(kubeNode(i + 1))
	}
	number := draw.Number(t, "PATCHBAY_SERVICE_MEMORY", 1000, 10000)
	endpoints := manyServices(api, number)
	p := newProcess(t, api)
	t.Cleanup(func() { p.clean() })
	p.start()
	without := p.anonymous()
	p.stop(unix.SIGTERM)
	p.args = append(p.args, "--services=on")
	began := time.Now()
	p.start()
	most := p.mostAnonymous()
	p.awaitServices(1)
	t.Logf("%d Services with %d endpoints: in force %v after the start", number, endpoints, time.Since(began).Round(time.Millisecond))
	limit := without + 3<<10 + endpoints/5
	with := p.anonymous()
	for end := time.Now().Add(90 * time.Second); with > limit && time.Now().Before(end); with = p.memory("RssAnon") {
		time.Sleep(time.Second) // the program gives memory back when it has saved Services, and once more after a minute
	}
	t.Logf("anonymous memory: %d kB without Services, %d kB with them, most %d kB; VmHWM %d kB", without, with, most(), p.memory("VmHWM"))
	for i := range 50 {
		api.kinds.of(services.EndpointSlices).put(servicetest.ManySlice(i, endpoints+i*200, time.Now()))
		time.Sleep(40 * time.Millisecond)
	}
	p.awaitMetric(latency+"_count", 50)
	t.Logf("a change was in force after %.0f ms on average", 1000*p.metricIfAny(latency+"_sum")/p.metricIfAny(latency+"_count"))
	t.Logf("anonymous memory after the changes: %d kB", p.anonymous())
	if with > limit {
		t.Errorf("Services add %d kB, want at most %d", with-without, limit-without)
	}
	p.stop(unix.SIGTERM)
	silent := listen(t)
	began = time.Now()
	p.start()
	p.awaitServices(1)
	t.Logf("a second start compared all within %v", time.Since(began).Round(time.Millisecond))
	if events := silent(); len(events) > 0 {
		t.Errorf("a second start changed %d things", len(events))
	}
	p.stop(unix.SIGTERM)
}

const latency = "patchbay_node_services_network_programming_duration_seconds"

func (p *process) awaitServices(n float64) {
	p.Helper()
	p.awaitMetric(`patchbay_node_services_programs_total{result="success"}`, n)
}

func (p *process) awaitMetric(name string, n float64) {
	p.Helper()
	for end := time.Now().Add(patience); p.metricIfAny(name) < n; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			p.Fatalf("%s is %v, want %v", name, p.metricIfAny(name), n)
		}
	}
}

// anonymous returns the program's own memory at rest, in kB.
func (p *process) anonymous() int {
	p.Helper()
	p.settled()
	return p.memory("RssAnon")
}
