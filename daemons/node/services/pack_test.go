// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/internal/l4"
	"github.com/patchbay-net/patchbay/internal/services"
)

// each field of these has a value, as TestPack looks up.
var (
	proxy       = "other"
	fullService = services.Service{
		Name: services.Name{Namespace: "shop", Name: "web"}, ProxyName: &proxy, Type: "LoadBalancer",
		ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1"), netip.MustParseAddr("fd00::1")}, ExternalIPs: []netip.Addr{netip.MustParseAddr("192.0.2.1")},
		Balancers: []netip.Addr{netip.MustParseAddr("192.0.2.2")}, Sources: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8::/128")},
		Restricted: true, Ports: []services.ServicePort{{Name: "http", Protocol: l4.TCP, Number: 80, NodePort: 30080}, {Name: "dns", Protocol: l4.UDP, Number: 65535, NodePort: 1}},
		InternalLocal: true, ExternalLocal: true, Affinity: 1 << 31, HealthCheckNodePort: 31000,
	}
	fullSlice = services.Slice{
		Name: "web-abcde", Service: services.Name{Namespace: "shop", Name: "web"}, Headless: true, IPv6: true, Triggered: time.Unix(1, 0),
		Ports: []services.SlicePort{{Name: "http", Protocol: l4.SCTP, Number: 8080}},
		Endpoints: []services.SliceEndpoint{{
			Address: netip.MustParseAddr("fd00::2"), Node: "n1", Ready: true, Serving: true, Terminating: true,
			Hints: &services.Hints{ForZones: []string{"a", "b"}, ForNodes: []string{"n1"}},
		}},
	}
)

// What is packed comes back, whatever fields it has.
func TestPack(t *testing.T) {
	whole(t, reflect.ValueOf(fullService))
	whole(t, reflect.ValueOf(fullSlice))
	for _, want := range []services.Service{fullService, {Name: fullService.Name}, {Name: fullService.Name, ExternalLocal: true, Type: "ClusterIP"}} {
		if got := packService(&want).unpack(want.Name); !reflect.DeepEqual(*got, want) {
			t.Errorf("got %+v, want %+v", *got, want)
		}
	}
	more := fullSlice
	more.Endpoints = append(more.Endpoints, services.SliceEndpoint{Node: "n2"}, services.SliceEndpoint{Address: netip.MustParseAddr("10.0.0.1"), Serving: true}, services.SliceEndpoint{Node: "n1"})
	for _, want := range []services.Slice{fullSlice, more, {Name: "e", Service: fullSlice.Service}} {
		p := packSlice(&want)
		want.Triggered = time.Time{}
		if got := p.unpack(want.Service); !reflect.DeepEqual(*got, want) || int(p.endpoints()) != len(want.Endpoints) {
			t.Errorf("got %+v with %d endpoints, want %+v", *got, p.endpoints(), want)
		}
	}
}

// whole fails the test if a field of a value has none, so that a new field comes into the values above.
func whole(t *testing.T, v reflect.Value) {
	t.Helper()
	switch {
	case v.IsZero():
		t.Errorf("a %s without a value: add one", v.Type())
	case v.Kind() == reflect.Pointer:
		whole(t, v.Elem())
	case v.Kind() == reflect.Slice:
		whole(t, v.Index(0))
	case v.Kind() == reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() {
				whole(t, v.Field(i))
			}
		}
	}
}
