// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/l4"
)

// Old objects have addresses that the API refuses today. They are read as kube-proxy reads them.
func TestBadAddresses(t *testing.T) {
	s, err := ParseService([]byte(`{"metadata":{"namespace":"shop","name":"web"},"spec":{"type":"LoadBalancer",
		"clusterIP":"010.096.0.001","clusterIPs":["010.096.0.001","fd00:96::0001"],"externalIPs":["192.000.002.009","nonsense","","fe80::1%eth0","::ffff:192.0.2.8"],
		"loadBalancerSourceRanges":[" 203.0.113.077/24 ","2001:db8::1/32","x"],"ports":[{"port":80}]}}`))
	got := fmt.Sprint(s.ClusterIPs, s.ExternalIPs, s.Sources, s.Restricted, s.Ports, err)
	if want := "[10.96.0.1 fd00:96::1] [192.0.2.9 192.0.2.8] [203.0.113.0/24 2001:db8::/32] true [{ tcp 80 0}] <nil>"; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestParseService(t *testing.T) {
	s, err := ParseService([]byte(`{"metadata":{"namespace":"shop","name":"web","labels":{"service.kubernetes.io/service-proxy-name":"x"}},
		"spec":{"type":"LoadBalancer","clusterIP":"10.96.0.1","internalTrafficPolicy":"Local","externalTrafficPolicy":"Local","healthCheckNodePort":31000,
		"sessionAffinity":"ClientIP","sessionAffinityConfig":{"clientIP":{"timeoutSeconds":7}},"ports":[{"name":"dns","protocol":"UDP","port":53,"nodePort":30053}]},
		"status":{"loadBalancer":{"ingress":[{"ip":"192.0.2.1"},{"ip":"192.0.2.2","ipMode":"VIP"},{"ip":"192.0.2.3","ipMode":"Proxy"},{"hostname":"lb.example"}]}}}`))
	name := "x"
	want := Service{
		Name: Name{"shop", "web"}, ProxyName: &name, Type: "LoadBalancer", ClusterIPs: addrs("10.96.0.1"), Balancers: addrs("192.0.2.1", "192.0.2.2"),
		Ports: []ServicePort{{"dns", l4.UDP, 53, 30053}}, InternalLocal: true, ExternalLocal: true, Affinity: 7, HealthCheckNodePort: 31000,
	}
	if err != nil || !reflect.DeepEqual(s, want) {
		t.Errorf("got %+v, %v\nwant %+v", s, err, want)
	}
	for text, want := range map[string]string{
		`{"spec":{"clusterIP":"None"}}`:           "[] 0",
		`{"spec":{"clusterIP":""}}`:               "[] 0",
		`{"spec":{"sessionAffinity":"ClientIP"}}`: "[] 10800",
		`{"spec":{"sessionAffinity":"None","sessionAffinityConfig":{"clientIP":{"timeoutSeconds":7}}}}`: "[] 0",
	} {
		if s, err := ParseService([]byte(text)); err != nil || fmt.Sprint(s.ClusterIPs, " ", s.Affinity) != want {
			t.Errorf("%s: got %v %d, %v, want %s", text, s.ClusterIPs, s.Affinity, err, want)
		}
	}
}

func TestParseSlice(t *testing.T) {
	s, err := ParseSlice([]byte(`{"metadata":{"namespace":"shop","name":"web-1","labels":{"kubernetes.io/service-name":"web","service.kubernetes.io/headless":""}},"addressType":"IPv4",
		"ports":[{"name":"","port":8080},{"port":1},{"name":"x"},{"name":"y","port":0},{"name":"dns","protocol":"UDP","port":53}],
		"endpoints":[{"addresses":["10.244.1.1","10.244.1.2"],"nodeName":"n1"},{"addresses":[]},{"addresses":["fd00::1"]},
			{"addresses":["10.244.2.1"],"conditions":{"ready":false,"serving":true,"terminating":true},"hints":{"forZones":[{"name":"a"},{"name":"b"}],"forNodes":[{"name":"n1"}]}}]}`))
	want := Slice{
		Name: "web-1", Service: Name{"shop", "web"}, Headless: true, Ports: []SlicePort{{"", l4.TCP, 8080}, {"dns", l4.UDP, 53}},
		Endpoints: []SliceEndpoint{
			{Address: addrs("10.244.1.1")[0], Node: "n1", Ready: true, Serving: true},
			{Address: addrs("10.244.2.1")[0], Serving: true, Terminating: true, Hints: &Hints{[]string{"a", "b"}, []string{"n1"}}},
		},
	}
	if err != nil || !reflect.DeepEqual(s, want) {
		t.Errorf("got %+v, %v\nwant %+v", s, err, want)
	}
	if s, err := ParseSlice([]byte(`{"addressType":"FQDN","endpoints":[{"addresses":["10.0.0.1"]}]}`)); err != nil || len(s.Endpoints) > 0 {
		t.Errorf("a slice of names has %v, %v", s.Endpoints, err)
	}
}

func TestParseNode(t *testing.T) {
	n, err := ParseNode([]byte(`{"metadata":{"name":"n1","labels":{"topology.kubernetes.io/zone":"east"}},"spec":{"podCIDRs":["10.244.1.0/24","fd00:244:1::/64"]},
		"status":{"addresses":[{"type":"Hostname","address":"n1"},{"type":"ExternalIP","address":"203.0.113.1"},{"type":"InternalIP","address":"172.16.0.1"},{"type":"InternalIP","address":"fd00::1"}]}}`))
	want := Node{"n1", "east", addrs("172.16.0.1", "fd00::1", "203.0.113.1"), prefixes("10.244.1.0/24", "fd00:244:1::/64")}
	if err != nil || !reflect.DeepEqual(n, want) {
		t.Errorf("got %+v, %v\nwant %+v", n, err, want)
	}
}

// What can be read of an object with a mistake is there beside the error, which names the object.
func TestParseWithErrors(t *testing.T) {
	s, err := ParseService([]byte(`{"metadata":{"namespace":"shop","name":"web"},"spec":{"clusterIP":"10.96.0.1","ports":[{"name":"a","protocol":"QUIC","port":1},{"name":"b","port":2}]}}`))
	if err == nil || !strings.Contains(err.Error(), `service shop/web: port "a": protocol "QUIC"`) || len(s.Ports) != 1 || len(s.ClusterIPs) != 1 {
		t.Errorf("got %+v, %v", s, err)
	}
	l, err := ParseSlice([]byte(`{"metadata":{"namespace":"shop","name":"web-1"},"addressType":"IPv4","ports":[{"name":"a","port":70000}],"endpoints":[{"addresses":["10.0.0.1"]}]}`))
	if err == nil || !strings.Contains(err.Error(), "endpointslice shop/web-1") || len(l.Endpoints) != 1 {
		t.Errorf("got %+v, %v", l, err)
	}
	n, err := ParseNode([]byte(`{"metadata":{"name":"n1"},"spec":{"podCIDRs":7}}`))
	if err == nil || !strings.Contains(err.Error(), `node "n1"`) || n.Name != "n1" {
		t.Errorf("got %+v, %v", n, err)
	}
}
