// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"github.com/patchbay-net/patchbay/internal/resident"
	svc "github.com/patchbay-net/patchbay/internal/services"
)

// Load balancers outside of the cluster ask nodes whether they may send packets there, at two kinds of ports. Their answers are
// kube-proxy's, because cloud providers' controllers know them (k8s.io/kubernetes/pkg/proxy/healthcheck, KEP-3836).

// lateAfter is how long a change may wait before Services count as unhealthy: twice kube-proxy's period of synchronization.
const lateAfter = 60 * time.Second

// askTime limits the header of a request.
const askTime = 10 * time.Second

// healthy reports whether the Services in force are those of the API server, or may be soon.
func (p *serviceProxy) healthy() bool {
	since := p.cluster.Pending()
	return since.IsZero() || time.Since(since) < lateAfter
}

// serveHealthz serves /healthz and /livez until ctx ends. While kube-proxy has the port, it tries again.
func (p *serviceProxy) serveHealthz(ctx context.Context, m *mirror) {
	if p.choices.Healthz == "" {
		return
	}
	pages := http.NewServeMux()
	pages.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
		eligible := m.eligible()
		p.answerHealthz(w, &eligible)
	})
	pages.HandleFunc("/livez", func(w http.ResponseWriter, _ *http.Request) { p.answerHealthz(w, nil) })
	resident.Keep(ctx, func(err error) {
		if err != nil {
			err = fmt.Errorf("%w: load balancers that look there send nothing to this node; end kube-proxy, which has this port, or name another one with --services-healthz", err)
		}
		p.status.unserved(err)
	}, func() error { return serveUntil(ctx, "tcp", p.choices.Healthz, pages) })
}

// healthzAnswer is the body of /healthz and /livez.
type healthzAnswer struct {
	LastUpdated  time.Time                `json:"lastUpdated"`
	CurrentTime  time.Time                `json:"currentTime"`
	NodeEligible *bool                    `json:"nodeEligible,omitempty"`
	Healthy      bool                     `json:"healthy"`
	Status       map[string]familyHealthz `json:"status,omitempty"`
}

type familyHealthz struct {
	LastUpdated time.Time `json:"lastUpdated"`
	Healthy     bool      `json:"healthy"`
}

// answerHealthz answers whether Services are healthy, and if eligible is not nil, whether the Node may get packets at all. As with kube-proxy,
// the field healthy does not depend on eligible, and a node that has had no program yet is healthy.
func (p *serviceProxy) answerHealthz(w http.ResponseWriter, eligible *bool) {
	healthy := p.healthy()
	at := p.status.updated()
	a := healthzAnswer{LastUpdated: at, CurrentTime: time.Now(), NodeEligible: eligible, Healthy: healthy}
	if !at.IsZero() {
		a.Status = map[string]familyHealthz{"IPv4": {at, healthy}, "IPv6": {at, healthy}}
	}
	status := http.StatusServiceUnavailable
	if healthy && (eligible == nil || *eligible) {
		status, a.LastUpdated = http.StatusOK, a.CurrentTime
	}
	body, _ := json.Marshal(a) //nolint:errchkjson // times and truths
	answer(w, status, string(body))
}

func answer(w http.ResponseWriter, status int, body string) {
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	fmt.Fprint(w, body) //nolint:errcheck // the client is gone
}

// serveUntil serves pages at an address until ctx ends. It returns an error if it cannot.
func serveUntil(ctx context.Context, network, address string, pages http.Handler) error {
	l, err := new(net.ListenConfig).Listen(ctx, network, address)
	if err != nil {
		return err
	}
	server := &http.Server{Handler: pages, ReadHeaderTimeout: askTime}
	stop := context.AfterFunc(ctx, func() { server.Close() }) //nolint:errcheck // Serve ends
	defer stop()
	if err := server.Serve(l); ctx.Err() == nil {
		return fmt.Errorf("serve %s: %w", address, err)
	}
	return nil
}

// healthChecks serves the ports at which load balancers ask whether this node has endpoints of one Service (healthCheckNodePort).
type healthChecks struct {
	healthy func() bool
	failed  func(netip.AddrPort, svc.Name, error)
	running sync.WaitGroup

	mu   sync.Mutex
	open map[netip.AddrPort]*openCheck
}

// openCheck is a port that is served, or that the agent tries to serve.
type openCheck struct {
	svc.HealthCheck
	stop context.CancelFunc
}

func newHealthChecks(healthy func() bool, failed func(netip.AddrPort, svc.Name, error)) *healthChecks {
	return &healthChecks{healthy: healthy, failed: failed, open: make(map[netip.AddrPort]*openCheck)}
}

// set makes these checks the ones that are served, at those of the addresses that are of their families.
func (h *healthChecks) set(ctx context.Context, list []svc.HealthCheck, addrs []netip.Addr) {
	h.mu.Lock()
	defer h.mu.Unlock()
	wanted := make(map[netip.AddrPort]bool)
	for _, c := range list {
		for _, a := range addrs {
			if a.Is6() == c.IPv6 {
				at := netip.AddrPortFrom(a, c.Port)
				wanted[at] = true
				h.put(ctx, at, c)
			}
		}
	}
	for at, c := range h.open {
		if !wanted[at] {
			c.stop()
			delete(h.open, at)
			h.failed(at, c.Service, nil)
		}
	}
}

// put serves a check, or changes what is answered.
func (h *healthChecks) put(ctx context.Context, at netip.AddrPort, c svc.HealthCheck) {
	if have := h.open[at]; have != nil {
		have.HealthCheck = c
		return
	}
	ctx, stop := context.WithCancel(ctx)
	h.open[at] = &openCheck{c, stop}
	h.running.Go(func() {
		resident.Keep(ctx, func(err error) {
			if ctx.Err() == nil {
				h.failed(at, c.Service, wrapCheck(at, err))
			}
		}, func() error { return serveUntil(ctx, "tcp", at.String(), h.page(at)) })
	})
}

func wrapCheck(at netip.AddrPort, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("its healthCheckNodePort cannot be served at %s, so load balancers send nothing to this node: %w", at, err)
}

// page answers for the check that is at an address now, whatever the path.
func (h *healthChecks) page(at netip.AddrPort) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		h.mu.Lock()
		c := h.open[at]
		if c == nil {
			h.mu.Unlock()
			return // it has just been closed
		}
		check := c.HealthCheck
		h.mu.Unlock()
		status, body := check.Answer(h.healthy())
		w.Header().Set("X-Load-Balancing-Endpoint-Weight", strconv.Itoa(check.Local))
		answer(w, status, body)
	})
}

// wait waits until no port is served. The context of set must have ended.
func (h *healthChecks) wait() { h.running.Wait() }
