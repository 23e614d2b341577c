// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package servicetest

import (
	"fmt"
	"slices"
)

// change draws what happens next: one to three events.
func (g *generator) change() {
	events := []func(){
		g.editEndpoint, g.editEndpoint, g.editEndpoint, g.addEndpoint, g.addEndpoint, g.removeEndpoint, g.removeEndpoint, g.addSlice, g.removeSlice, g.moveEndpoint,
		g.editPolicies, g.editPolicies, g.editPorts, g.editOutside, g.editType, g.addService, g.removeService, g.relabel, g.headless, g.recreate, g.shuffle,
		g.editNode,
	}
	for range 1 + g.IntN(3) {
		pick(g, events...)()
	}
}

// some calls edit with a random element, if there is one.
func some[T any](g *generator, list []T, edit func(*T)) {
	if len(list) > 0 {
		edit(&list[g.IntN(len(list))])
	}
}

func without[T any](g *generator, list []T) []T {
	if len(list) == 0 {
		return list
	}
	i := g.IntN(len(list))
	return slices.Delete(list, i, i+1)
}

func (g *generator) editEndpoint() {
	some(g, g.Slices, func(s *EndpointSlice) { some(g, s.Endpoints, g.conditions) })
}

func (g *generator) addEndpoint() {
	some(g, g.Slices, func(s *EndpointSlice) {
		for range 1 + g.IntN(3) {
			s.Endpoints = append(s.Endpoints, g.endpoint(s.AddressType, pick(g, "", "zones", "nodes")))
		}
	})
}

func (g *generator) removeEndpoint() {
	some(g, g.Slices, func(s *EndpointSlice) { s.Endpoints = without(g, s.Endpoints) })
}

// moveEndpoint puts an endpoint into another slice too.
func (g *generator) moveEndpoint() {
	some(g, g.Slices, func(from *EndpointSlice) {
		some(g, from.Endpoints, func(e *Endpoint) {
			copied := *e
			g.conditions(&copied)
			some(g, g.Slices, func(to *EndpointSlice) {
				if to.AddressType == from.AddressType {
					to.Endpoints = append(to.Endpoints, copied)
				}
			})
		})
	})
}

func (g *generator) removeSlice()   { g.Slices = without(g, g.Slices) }
func (g *generator) removeService() { g.Services = without(g, g.Services) }
func (g *generator) editPolicies()  { some(g, g.Services, g.drawPolicies) }
func (g *generator) editOutside()   { some(g, g.Services, g.drawOutside) }

func (g *generator) editType() {
	some(g, g.Services, func(s *Service) { s.Spec.Type = pick(g, "ClusterIP", "NodePort", "LoadBalancer", "ExternalName") })
}

func (g *generator) editPorts() { some(g, g.Services, g.drawPorts) }

// recreate gives the name of a Service to another.
func (g *generator) recreate() {
	g.next++
	some(g, g.Services, g.draw)
}

func (g *generator) relabel() {
	some(g, g.Services, func(s *Service) {
		if s.Meta.Labels = nil; g.chance(50) {
			s.Meta.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": pick(g, "other", "third")}
		}
	})
}

func (g *generator) headless() {
	some(g, g.Slices, func(s *EndpointSlice) {
		if _, is := s.Meta.Labels["service.kubernetes.io/headless"]; is {
			delete(s.Meta.Labels, "service.kubernetes.io/headless")
		} else {
			s.Meta.Labels["service.kubernetes.io/headless"] = ""
		}
	})
}

// shuffle changes only an order.
func (g *generator) shuffle() {
	g.Shuffle(len(g.Services), func(i, j int) { g.Services[i], g.Services[j] = g.Services[j], g.Services[i] })
	g.Shuffle(len(g.Slices), func(i, j int) { g.Slices[i], g.Slices[j] = g.Slices[j], g.Slices[i] })
}

// editNode changes what is known of the node.
func (g *generator) editNode() {
	switch g.IntN(5) {
	case 0:
		g.Node.Meta.Labels = map[string]string{"topology.kubernetes.io/zone": pick(g, zones...)}
	case 1:
		g.Node.Meta.Labels = nil
	case 2:
		g.flags()
	case 3:
		g.podCIDRs()
	case 4:
		g.Links = append(g.Links, fmt.Sprint("172.16.0.", 2+g.IntN(100)))
	}
}
