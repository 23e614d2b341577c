// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/patchbay-net/patchbay/daemons/internal/fabric/health"
)

// Service names the agent's directory, below /var/lib/patchbay, and its metrics.
const Service = "hosts"

func newHealth(a *Agent) *health.Health {
	return health.New(health.Options{
		Service: Service, Unready: errNoState, Restart: "restart it with systemctl restart patchbay-hosts.service",
		Heard: a.mirror.heard, Problems: a.problems.Count,
	})
}

// Ready returns why containers of this host cannot reach those of other hosts, or nil if they can.
func (a *Agent) Ready() error { return a.health.Ready() }

// Healthy returns an error if the agent hangs.
func (a *Agent) Healthy() error { return a.health.Healthy() }

// Handler serves /healthz, /readyz and /metrics.
func (a *Agent) Handler() http.Handler { return a.health.Handler() }

var (
	errNoState   = errors.New("nothing is known of the networks yet: the store has not answered, and no earlier answer is saved")
	errUnreached = errors.New("this host has no uplink: other hosts cannot reach it; patchbayd hosts ls says why")
)

// heard returns when the store last sent something; zero: never.
func (m *mirror) heard() time.Time {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.updated
}

// carry applies the fabric, and returns why this host is not ready for containers.
func (a *Agent) carry(ctx context.Context, f *thisHost, d *desired, may *removal, all bool) error {
	switch {
	case f.uplink == 0:
		return errUnreached
	case !may.sets():
		return errUnread
	}
	err := a.fabric.Carry(ctx, d.self, d.peers, all)
	a.problems.Set("fabric", err)
	return err
}
