// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/l4"
)

// These are clients of the node n1.
const (
	pod     = "10.244.1.7"
	self    = "10.244.1.1" // also an endpoint
	theNode = "172.16.0.1"
	outside = "203.0.113.7"
)

// These are the addresses of the Service shop/web, whose port http is 80, its node port 30080, and its target 8080.
const (
	webIP = "10.96.0.1"
	webLB = "192.0.2.1"
	webEx = "192.0.2.9"
)

// world returns the state of the node n1, in the zone east, with the Service shop/web of each kind of frontend and the endpoints.
func world(t *testing.T, endpoints string) *State {
	t.Helper()
	web := Name{"shop", "web"}
	return &State{
		Node:      Node{Name: "n1", Zone: "east", Addresses: addrs(theNode, "fd00:16::1"), Pods: prefixes("10.244.1.0/24", "fd00:244:1::/64")},
		Addresses: addrs(theNode, "10.244.1.254", "127.0.0.1", "172.16.0.9"),
		CIDRs:     prefixes("10.96.0.0/16"),
		Services: map[Name]*Service{web: {
			Name: web, Type: TypeLoadBalancer, ClusterIPs: addrs(webIP), ExternalIPs: addrs(webEx), Balancers: addrs(webLB),
			Ports: []ServicePort{{"http", l4.TCP, 80, 30080}},
		}},
		Slices: map[Name][]*Slice{web: {{Name: "web-1", Service: web, Ports: []SlicePort{{"http", l4.TCP, 8080}}, Endpoints: endpointList(t, endpoints)}}},
	}
}

func (s *State) web() *Service { return s.Services[Name{"shop", "web"}] }
func (s *State) slice() *Slice { return s.Slices[Name{"shop", "web"}][0] }

// endpointList reads "10.244.2.1@n2 notready serving zone=east, ...". An endpoint is ready and serving if nothing else is said.
func endpointList(t *testing.T, text string) (list []SliceEndpoint) {
	t.Helper()
	for _, one := range strings.Split(text, ",") {
		words := strings.Fields(one)
		if len(words) == 0 {
			continue
		}
		addr, node, _ := strings.Cut(words[0], "@")
		e := SliceEndpoint{Address: netip.MustParseAddr(addr), Node: node, Ready: true, Serving: true}
		for _, w := range words[1:] {
			switch key, value, _ := strings.Cut(w, "="); key {
			case "notready":
				e.Ready, e.Serving = false, false
			case "draining":
				e.Ready, e.Terminating = false, true
			case "ended":
				e.Ready, e.Serving, e.Terminating = false, false, true
			case "published":
				e.Terminating = true
			case "zone":
				e.Hints = &Hints{append(e.hints().ForZones, value), e.hints().ForNodes}
			case "node":
				e.Hints = &Hints{e.hints().ForZones, append(e.hints().ForNodes, value)}
			default:
				t.Fatalf("endpoint %q: %q is not known", one, w)
			}
		}
		list = append(list, e)
	}
	return list
}

func addrs(texts ...string) []netip.Addr      { return parseAddrs(texts) }
func prefixes(texts ...string) []netip.Prefix { return parsePrefixes(texts) }

// send returns what becomes of a TCP packet: "10.244.1.1:8080 masq, 10.244.2.1:8080", or the action.
func send(p *Program, from, to string) string { return sendAs(p, l4.TCP, from, to) }

func sendAs(p *Program, proto l4.Protocol, from, to string) string {
	v := p.Verdict(Packet{From: netip.MustParseAddr(from), To: netip.MustParseAddrPort(to), Protocol: proto})
	if v.Action != Translated {
		return v.Action.String()
	}
	slices.SortFunc(v.To, func(a, b Destination) int { return a.Endpoint.Compare(b.Endpoint) })
	var words []string
	for _, d := range v.To {
		words = append(words, strings.TrimSuffix(fmt.Sprint(d.Endpoint, map[bool]string{true: " masq"}[d.Masquerade]), " "))
	}
	return strings.Join(words, ", ")
}
