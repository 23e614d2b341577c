// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"maps"
	"slices"
	"testing"

	"github.com/patchbay-net/patchbay/internal/l4"
	"github.com/patchbay-net/patchbay/internal/test/servicetest"
)

// mostTables bounds how long Compare may search for one bug.
const mostTables = 2000

// TestPlantedBugsAreFound: Compare finds each mistake that somebody may make in a compiler or in a difference.
func TestPlantedBugsAreFound(t *testing.T) {
	bugs := plantedBugs()
	for _, name := range slices.Sorted(maps.Keys(bugs)) {
		wrong, tables := servicetest.Find(func() servicetest.Engine { return &engine{bug: bugs[name], table: newTable()} }, servicetest.Plan{Seed: 1, Tables: mostTables})
		if wrong == "" {
			t.Errorf("not found in %d tables: %s", tables, name)
			continue
		}
		t.Logf("found in table %3d: %s", tables, name)
	}
}

func plantedBugs() map[string]bug {
	return map[string]bug{
		"terminating endpoints are never used": {cluster: eachEndpoint(func(e *servicetest.Endpoint) {
			if e.Conditions.Terminating != nil && *e.Conditions.Terminating && e.Conditions.Ready != nil && !*e.Conditions.Ready {
				e.Conditions.Serving = new(bool)
			}
		})},
		"no condition serving is not serving": {cluster: eachEndpoint(func(e *servicetest.Endpoint) {
			if e.Conditions.Serving == nil {
				e.Conditions.Serving = new(bool)
			}
		})},
		"no condition ready is not ready": {cluster: eachEndpoint(func(e *servicetest.Endpoint) {
			if e.Conditions.Ready == nil {
				e.Conditions.Ready = new(bool)
			}
		})},
		"hints are ignored": {cluster: eachEndpoint(func(e *servicetest.Endpoint) { e.Hints = nil })},
		"a hint for another is taken": {state: eachSlice(func(e *SliceEndpoint) {
			e.Hints = &Hints{append(e.hints().ForZones, "east", "west"), e.hints().ForNodes}
		})},
		"hints for zones come before those for nodes": {state: eachSlice(func(e *SliceEndpoint) {
			if len(e.hints().ForZones) > 0 {
				e.Hints = &Hints{ForZones: e.Hints.ForZones}
			}
		})},
		"externalTrafficPolicy Local is ignored":       {cluster: eachService(func(s *servicetest.Service) { s.Spec.ExternalTrafficPolicy = "" })},
		"externalTrafficPolicy is for cluster IPs too": {state: eachOf(func(s *Service) { s.InternalLocal = s.InternalLocal || s.ExternalLocal })},
		"internalTrafficPolicy Local is ignored":       {cluster: eachService(func(s *servicetest.Service) { s.Spec.InternalTrafficPolicy = "" })},
		"ipMode is ignored": {cluster: eachService(func(s *servicetest.Service) {
			for i := range s.Status.LoadBalancer.Ingress {
				s.Status.LoadBalancer.Ingress[i].IPMode = ""
			}
		})},
		"node ports stay after a change to ClusterIP":  {state: eachOf(func(s *Service) { s.Type = TypeLoadBalancer })},
		"source ranges of the other family close":      {state: eachOf(func(s *Service) { s.Sources = ofFamily(s.Sources, false) })},
		"source ranges are for external IPs":           {state: eachOf(func(s *Service) { s.Balancers, s.ExternalIPs = append(s.Balancers, s.ExternalIPs...), nil })},
		"an ExternalName with a cluster IP is served":  {state: externalNames},
		"service-proxy-name is ignored":                {state: eachOf(func(s *Service) { s.ProxyName = nil })},
		"the label headless of a slice is ignored":     {state: func(s *State) { eachSliceOf(s, func(l *Slice) { l.Headless = false }) }},
		"the default of affinity is forgotten":         {state: eachOf(func(s *Service) { s.Affinity %= defaultAffinity })},
		"without podCIDRs every client is masqueraded": {state: func(s *State) { s.Options.MasqueradeAll = s.Options.MasqueradeAll || len(s.Node.Pods) < 2 }},
		"masqueradeAll is ignored":                     {state: func(s *State) { s.Options.MasqueradeAll = false }},
		"the node is not its own client":               {state: func(s *State) { s.Addresses = nil }},
		"the Node's first address is the primary one": {cluster: func(c *servicetest.Cluster) {
			for i := range c.Node.Status.Addresses {
				c.Node.Status.Addresses[i].Type = "InternalIP"
			}
		}},
		"a port of one name may have any protocol": {state: func(s *State) {
			eachSliceOf(s, func(l *Slice) {
				for _, p := range l.Ports {
					l.Ports = append(l.Ports, SlicePort{p.Name, l4.UDP, p.Number})
				}
			})
		}},

		"what leaves stays in the kernel": {change: func(c *Change) {
			each(c.Steps, func(s *Step) { s.Remove = slices.DeleteFunc(s.Remove, func(e Element) bool { return e.Set == VIP }) })
		}},
		"new slots are lost": {change: func(c *Change) {
			each(c.Steps, func(s *Step) { s.Add = slices.DeleteFunc(s.Add, func(e Element) bool { return e.Slot > 2 }) })
		}},
		"what goes and what comes are two transactions": {change: func(c *Change) {
			var apart []Step
			for _, s := range c.Steps {
				apart = append(apart, Step{Remove: s.Remove}, Step{Add: s.Add})
			}
			c.Steps = apart
		}},
		"clients remember what has left": {change: func(c *Change) { c.Forget = nil }},
		"only outside clients forget":    {change: func(c *Change) { each(c.Forget, func(m *Memory) { m.Inside = false }) }},
		"clients that move remember":     {change: func(c *Change) { c.Moved = nil }},
		"UDP flows to nothing are left": {change: func(c *Change) {
			c.Flows = slices.DeleteFunc(c.Flows, func(f Flow) bool { return len(f.Serving) == 0 })
		}},
		"two nodes are one":                     {state: eachSlice(func(e *SliceEndpoint) { e.Node = "n1" })},
		"a later address of an endpoint counts": {cluster: eachEndpoint(func(e *servicetest.Endpoint) { slices.Reverse(e.Addresses) })},
		"a hairpin keeps its source": {change: func(c *Change) {
			each(c.Steps, func(s *Step) { s.Add = slices.DeleteFunc(s.Add, func(e Element) bool { return e.Set == Hairpin }) })
		}},
	}
}

func each[T any](list []T, f func(*T)) {
	for i := range list {
		f(&list[i])
	}
}

func eachService(f func(*servicetest.Service)) func(*servicetest.Cluster) {
	return func(c *servicetest.Cluster) { each(c.Services, f) }
}

func eachEndpoint(f func(*servicetest.Endpoint)) func(*servicetest.Cluster) {
	return func(c *servicetest.Cluster) {
		each(c.Slices, func(s *servicetest.EndpointSlice) { each(s.Endpoints, f) })
	}
}

func eachOf(f func(*Service)) func(*State) {
	return func(s *State) {
		for _, svc := range s.Services {
			f(svc)
		}
	}
}

func eachSliceOf(s *State, f func(*Slice)) {
	for _, list := range s.Slices {
		for _, slice := range list {
			f(slice)
		}
	}
}

func eachSlice(f func(*SliceEndpoint)) func(*State) {
	return func(s *State) { eachSliceOf(s, func(l *Slice) { each(l.Endpoints, f) }) }
}

func externalNames(s *State) {
	eachOf(func(svc *Service) {
		if svc.Type == "ExternalName" {
			svc.Type = typeClusterIP
		}
	})(s)
}
