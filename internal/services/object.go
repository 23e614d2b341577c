// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/patchbay-net/patchbay/internal/l4"
)

// These are labels of the API.
const (
	labelProxyName   = "service.kubernetes.io/service-proxy-name"
	labelHeadless    = "service.kubernetes.io/headless"
	labelServiceName = "kubernetes.io/service-name"
	labelZone        = "topology.kubernetes.io/zone"
)

// parseTrigger reads the annotation that says when a change of a Service or a pod was seen that changed a slice. The zero time
// means that it is not known.
func parseTrigger(text string) time.Time {
	at, err := time.Parse(time.RFC3339Nano, text)
	if err != nil {
		return time.Time{}
	}
	return at
}

// defaultAffinity is the API's default of clientIP.timeoutSeconds.
const defaultAffinity = 10800

type apiMetadata struct {
	Namespace, Name string
	Labels          map[string]string
}

type apiService struct {
	Metadata apiMetadata
	Spec     struct {
		Type                     string
		ClusterIP                string
		ClusterIPs               []string
		ExternalIPs              []string
		LoadBalancerSourceRanges []string
		Ports                    []apiServicePort
		InternalTrafficPolicy    string
		ExternalTrafficPolicy    string
		SessionAffinity          string
		SessionAffinityConfig    struct {
			ClientIP struct{ TimeoutSeconds uint32 }
		}
		HealthCheckNodePort uint16
	}
	Status struct {
		LoadBalancer struct {
			Ingress []struct{ IP, IPMode string }
		}
	}
}

type apiServicePort struct {
	Name, Protocol string
	Port, NodePort uint16
}

// ParseService reads a Service as the API serves it. Addresses that cannot be read are left out, as kube-proxy does. If
// err is not nil and the Service has a name, the rest is what can be read.
func ParseService(text []byte) (Service, error) {
	var o apiService
	err := json.Unmarshal(text, &o)
	s := Service{
		Name: Name{o.Metadata.Namespace, o.Metadata.Name}, Type: o.Spec.Type,
		ClusterIPs: parseAddrs(o.clusterIPs()), ExternalIPs: parseAddrs(o.Spec.ExternalIPs), Balancers: o.balancers(),
		Sources: parsePrefixes(o.Spec.LoadBalancerSourceRanges), Restricted: len(o.Spec.LoadBalancerSourceRanges) > 0,
		InternalLocal: o.Spec.InternalTrafficPolicy == "Local", ExternalLocal: o.Spec.ExternalTrafficPolicy == "Local",
		Affinity: o.affinity(), HealthCheckNodePort: o.Spec.HealthCheckNodePort,
	}
	if name, ok := o.Metadata.Labels[labelProxyName]; ok {
		s.ProxyName = &name
	}
	for _, p := range o.Spec.Ports {
		proto, unknown := l4.Parse(p.Protocol)
		if unknown != nil {
			err = errors.Join(err, fmt.Errorf("port %q: %w", p.Name, unknown))
			continue
		}
		s.Ports = append(s.Ports, ServicePort{Name: p.Name, Protocol: proto, Number: p.Port, NodePort: p.NodePort})
	}
	if err != nil {
		return s, fmt.Errorf("read service %s: %w", s.Name, err)
	}
	return s, nil
}

// clusterIPs returns the addresses, or "None". Objects of before dual stack have only one.
func (o *apiService) clusterIPs() []string {
	if len(o.Spec.ClusterIPs) == 0 {
		return []string{o.Spec.ClusterIP}
	}
	return o.Spec.ClusterIPs
}

// balancers leaves out what has only a name, and addresses whose traffic must go through the real load balancer.
func (o *apiService) balancers() []netip.Addr {
	var list []string
	for _, in := range o.Status.LoadBalancer.Ingress {
		if in.IPMode == "" || in.IPMode == "VIP" {
			list = append(list, in.IP)
		}
	}
	return parseAddrs(list)
}

func (o *apiService) affinity() uint32 {
	switch seconds := o.Spec.SessionAffinityConfig.ClientIP.TimeoutSeconds; {
	case o.Spec.SessionAffinity != "ClientIP":
		return 0
	case seconds == 0:
		return defaultAffinity
	default:
		return seconds
	}
}

type apiSlice struct {
	Metadata struct {
		apiMetadata
		Annotations struct {
			Trigger string `json:"endpoints.kubernetes.io/last-change-trigger-time"`
		}
	}
	AddressType string
	Ports       []struct {
		Name     *string
		Protocol string
		Port     uint16
	}
	Endpoints []struct {
		Addresses  []string
		NodeName   string
		Conditions struct{ Ready, Serving, Terminating *bool }
		Hints      apiHints
	}
}

// ParseSlice reads an EndpointSlice as the API serves it. If err is not nil and the slice has a Service, the rest is
// what can be read. A slice without a Service has none of the name "".
func ParseSlice(text []byte) (Slice, error) {
	var o apiSlice
	err := json.Unmarshal(text, &o)
	s := Slice{Name: o.Metadata.Name, Service: Name{o.Metadata.Namespace, o.Metadata.Labels[labelServiceName]}, IPv6: o.AddressType == "IPv6"}
	s.Triggered = parseTrigger(o.Metadata.Annotations.Trigger)
	_, s.Headless = o.Metadata.Labels[labelHeadless]
	for _, p := range o.Ports {
		proto, unknown := l4.Parse(p.Protocol)
		err = errors.Join(err, unknown)
		if unknown == nil && p.Name != nil && p.Port != 0 {
			s.Ports = append(s.Ports, SlicePort{*p.Name, proto, p.Port})
		}
	}
	s.Endpoints = o.endpoints(s.IPv6)
	if err != nil {
		return s, fmt.Errorf("read endpointslice %s/%s: %w", o.Metadata.Namespace, o.Metadata.Name, err)
	}
	return s, nil
}

// endpoints returns those of the slice's family. Only the first address of an endpoint counts. What addresses of
// the type FQDN name has none.
func (o *apiSlice) endpoints(ipv6 bool) (list []SliceEndpoint) {
	if o.AddressType != "IPv4" && o.AddressType != "IPv6" {
		return nil
	}
	list = make([]SliceEndpoint, 0, len(o.Endpoints)) // there are very many, so no room is wasted
	for i := range o.Endpoints {
		e := &o.Endpoints[i]
		if len(e.Addresses) == 0 {
			continue
		}
		addr, ok := parseAddr(e.Addresses[0])
		if !ok || addr.Is6() != ipv6 {
			continue
		}
		c := e.Conditions
		list = append(list, SliceEndpoint{
			Address: addr, Node: nodeName(e.NodeName), Ready: or(c.Ready, true), Serving: or(c.Serving, true), Terminating: or(c.Terminating, false),
			Hints: e.Hints.read(),
		})
	}
	return list
}

// apiHints are the hints of an endpoint.
type apiHints struct{ ForZones, ForNodes []struct{ Name string } }

func (h *apiHints) read() *Hints {
	if len(h.ForZones)+len(h.ForNodes) == 0 {
		return nil
	}
	return &Hints{names(h.ForZones), names(h.ForNodes)}
}

func or(condition *bool, otherwise bool) bool {
	if condition == nil {
		return otherwise
	}
	return *condition
}

func names(hints []struct{ Name string }) (list []string) {
	for _, h := range hints {
		list = append(list, h.Name)
	}
	return list
}

// ParseNode reads a Node as the API serves it. If err is not nil and the Node has a name, the rest is what can be read.
func ParseNode(text []byte) (Node, error) {
	var o struct {
		Metadata apiMetadata
		Spec     struct{ PodCIDRs []string }
		Status   struct {
			Addresses []struct{ Type, Address string }
		}
	}
	err := json.Unmarshal(text, &o)
	n := Node{Name: o.Metadata.Name, Zone: o.Metadata.Labels[labelZone], Pods: parsePrefixes(o.Spec.PodCIDRs)}
	for _, kind := range []string{"InternalIP", "ExternalIP"} {
		for _, a := range o.Status.Addresses {
			if addr, ok := parseAddr(a.Address); ok && a.Type == kind && !slices.Contains(n.Addresses, addr) {
				n.Addresses = append(n.Addresses, addr)
			}
		}
	}
	if err != nil {
		return n, fmt.Errorf("read node %q: %w", n.Name, err)
	}
	return n, nil
}

// ParseServiceCIDR reads a ServiceCIDR as the API serves it. If err is not nil and it has a name, the rest is what can be read.
func ParseServiceCIDR(text []byte) (name string, ranges []netip.Prefix, err error) {
	var o struct {
		Metadata apiMetadata
		Spec     struct{ CIDRs []string }
	}
	if err = json.Unmarshal(text, &o); err != nil {
		err = fmt.Errorf("read servicecidr %q: %w", o.Metadata.Name, err)
	}
	return o.Metadata.Name, parsePrefixes(o.Spec.CIDRs), err
}
