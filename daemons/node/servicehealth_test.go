// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"encoding/json"
	"errors"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/patchbay-net/patchbay/daemons/node/services"
	svc "github.com/patchbay-net/patchbay/internal/services"
)

// unrun returns a proxy that does not run.
func unrun(t *testing.T) *serviceProxy {
	a := &Agent{}
	a.opts.Node, a.opts.Services.On = "n1", true
	a.trouble.changed = func() {}
	a.trouble.problems.Log = t.Logf
	a.metrics = newMetrics(a)
	return newServiceProxy(&a.opts, newServiceStatus(a))
}

// If the kernel refuses a change for a minute, load balancers send packets to other nodes. A Node that is not eligible is not for /livez.
func TestHealthzOfALateChange(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := unrun(t)
		says := func(about string, wantStatus int, wantHealthy bool, eligible *bool) {
			t.Helper()
			w := httptest.NewRecorder()
			p.answerHealthz(w, eligible)
			var body healthzAnswer
			if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil {
				t.Fatal(err)
			}
			fresh := body.LastUpdated.Equal(body.CurrentTime)
			if w.Code != wantStatus || body.Healthy != wantHealthy || fresh != (wantStatus == 200) || (body.NodeEligible == nil) != (eligible == nil) {
				t.Errorf("%s: %d %s", about, w.Code, w.Body)
			}
			for family, f := range body.Status {
				if f.Healthy != wantHealthy {
					t.Errorf("%s: %s is healthy: %v", about, family, f.Healthy)
				}
			}
		}
		yes, no := true, false
		says("at the start", 200, true, &yes)
		for _, k := range []services.Kind{services.Services, services.EndpointSlices, services.Nodes, services.ServiceCIDRs} {
			if err := p.cluster.Replace(k, func(func([]byte, error) bool) {}); err != nil {
				t.Fatal(err)
			}
		}
		var refuses atomic.Bool
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			p.cluster.Follow(t.Context(), collect, func() {}, func(_ *svc.State, c services.Changed) error {
				if refuses.Load() {
					return errors.New("the kernel refuses")
				}
				p.status.programmed(c.Triggers)
				return nil
			})
		}()
		time.Sleep(time.Minute)
		says("in force", 200, true, &yes)
		says("in force, of a Node that goes", 503, true, &no)
		says("in force, without the Node", 200, true, nil)
		refuses.Store(true)
		p.cluster.Wake()
		time.Sleep(lateAfter - time.Second)
		says("a change that waits", 200, true, nil)
		time.Sleep(2 * time.Second)
		says("a change that waits for long", 503, false, nil)
		says("a change that waits for long, with the Node", 503, false, &yes)
		refuses.Store(false)
		time.Sleep(time.Minute)
		says("in force again", 200, true, &yes)
	})
}

// The first pods of a node wait for Services, but not for ever.
func TestFirstPodsWaitForServices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := unrun(t)
		if p.admit(true) == nil || p.admit(false) != nil {
			t.Errorf("at the start: %v for the first pods, %v for others", p.admit(true), p.admit(false))
		}
		time.Sleep(servicesPatience + time.Second)
		if err := p.admit(true); err != nil {
			t.Errorf("after a while: %v", err)
		}
		p = unrun(t)
		p.inForce.Store(true)
		if err := p.admit(true); err != nil {
			t.Errorf("with Services in force: %v", err)
		}
		p = unrun(t)
		p.choices.On = false
		if err := p.admit(true); err != nil {
			t.Errorf("without --services: %v", err)
		}
	})
}
