// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/patchbay-net/patchbay/daemons/node/lan"
	"github.com/patchbay-net/patchbay/daemons/node/services"
)

func (l *serviceLab) pools(text string) {
	l.api.kinds.of(lan.ConfigMaps).put(fmt.Sprintf(`{"metadata":{"namespace":%q,"name":%q},"data":{"lan":%q}}`, lan.Namespace, lan.PoolsName, text))
}

func balanced(o *Options) { o.LoadBalancers.On, o.LoadBalancers.Unclassed = true, true }

func (l *serviceLab) leases() (names []string) {
	l.api.mu.Lock()
	defer l.api.mu.Unlock()
	for name := range l.api.kinds.of(lan.Leases).objects {
		names = append(names, strings.TrimPrefix(name, lan.Namespace+"/"))
	}
	slices.Sort(names)
	return names
}

// From a Service to a client of the LAN: it gets addresses, this node answers for them, and no longer when it has no endpoint for it, or ends.
func TestLoadBalancers(t *testing.T) {
	l := newServiceLab(t)
	l.pools("192.0.2.200-192.0.2.203\n2001:db8:1::50")
	l.start(balanced)
	l.service(1, "", "10.244.1.10")
	l.hears(l.Client, "192.0.2.200:80", "b 10.244.1.9")
	l.hears(l.Router, "192.0.2.200:80", "b 10.244.1.9")
	want := []string{"address-192.0.2.200", "address-2001-0db8-0001-0000-0000-0000-0000-0050", "node-n1"}
	l.await(fmt.Sprintf("the Leases %v", want), func() bool { return slices.Equal(l.leases(), want) })
	l.hears(l.Client, "[2001:db8:1::50]:80", "refused") // no slice of IPv6: the packet came here
	l.service(2, `,"externalTrafficPolicy":"Local","ipFamilies":["IPv4"],"clusterIPs":["10.96.0.2"]`, "10.244.1.10")
	l.hears(l.Client, "192.0.2.201:80", "b 198.51.100.2")
	l.await("two addresses", func() bool { return l.metric("patchbay_node_load_balancers_answered_for") == 3 })
	l.endpoints(2)
	l.await("silence without an endpoint", func() bool { return l.metric("patchbay_node_load_balancers_answered_for") == 2 })
	if n := l.metric("patchbay_node_load_balancers_owned"); n != 3 {
		t.Errorf("it owns %d addresses, want 3", n)
	}
	l.service(3, `,"loadBalancerIP":"192.0.2.200","clusterIPs":["10.96.0.3"]`)
	l.await("an Event that addresses are not shared", func() bool {
		return strings.Contains(l.event("LoadBalancerAddressFailed"), "it requests 192.0.2.200, which the Service shop/s1 has")
	})
	l.api.kinds.of(services.Services).remove("shop/s2")
	l.await("no Lease of a Service that is gone", func() bool { return !slices.Contains(l.leases(), "address-192.0.2.201") })
	if problems := l.trouble.problems.All(); len(problems) > 0 {
		t.Error(problems)
	}
	for _, k := range []services.Kind{services.Services, services.EndpointSlices, services.ServiceCIDRs} {
		l.api.say(func(s *apiServer) {
			if n := s.kinds.of(k).watches; n != 1 {
				t.Errorf("%d watches of %s, want one for both that need them", n, k)
			}
		})
	}
	l.stop()
	if slices.Contains(l.leases(), "node-n1") {
		t.Error("after the end of the agent, others wait for its Lease to end")
	}
	l.forget()
	if got := l.Client.AskBriefly("tcp", "192.0.2.200:80"); got == "b 10.244.1.9" {
		t.Error("somebody answers after the end of the agent")
	}
	l.start(balanced)
	l.hears(l.Client, "192.0.2.200:80", "b 10.244.1.9")
}

// forget makes the router ask again for the addresses.
func (l *serviceLab) forget() {
	conn := l.Router.Conn()
	list, err := conn.NeighList(0, 0)
	if err != nil {
		l.Fatal(err)
	}
	for i := range list {
		if strings.HasPrefix(list[i].IP.String(), "192.0.2.20") {
			conn.NeighDel(&list[i]) //nolint:errcheck // it may have gone
		}
	}
}

// event returns the text of the last Event with a reason.
func (l *serviceLab) event(reason string) (text string) {
	l.api.mu.Lock()
	defer l.api.mu.Unlock()
	for _, e := range l.api.events {
		if e.Reason == reason {
			text = e.Message
		}
	}
	return text
}

// Without the API server this node is silent when its Lease has ended, and says why.
func TestLoadBalancersAlone(t *testing.T) {
	l := newServiceLab(t)
	l.pools("192.0.2.200")
	l.service(1, `,"clusterIPs":["10.96.0.1"]`, "10.244.1.10")
	l.start(balanced)
	l.hears(l.Client, "192.0.2.200:80", "b 10.244.1.9")
	l.api.say(func(s *apiServer) { s.kinds.of(lan.Leases).refuse = http.StatusInternalServerError })
	began := time.Now()
	l.await("silence", func() bool { return l.metric("patchbay_node_load_balancers_answered_for") == 0 })
	if took := time.Since(began); took > lan.Lasts+time.Second {
		t.Errorf("silence took %v", took)
	}
	l.forget()
	if got := l.Client.AskBriefly("tcp", "192.0.2.200:80"); got == "b 10.244.1.9" {
		t.Error("it answers without its Lease")
	}
	l.await("a problem", func() bool { return strings.Contains(fmt.Sprint(l.trouble.problems.All()), string(lanUnrenewed)) })
	l.api.say(func(s *apiServer) { s.kinds.of(lan.Leases).refuse = 0 })
	l.hears(l.Client, "192.0.2.200:80", "b 10.244.1.9")
	l.await("no problem", func() bool { return len(l.trouble.problems.All()) == 0 })
}

// Beside another proxy, the agent does not serve Services, and gives them addresses all the same.
func TestLoadBalancersBesideAnotherProxy(t *testing.T) {
	l := newServiceLab(t)
	l.pools("192.0.2.200-192.0.2.203")
	const ipv4 = `,"ipFamilies":["IPv4"],"clusterIPs":["10.96.0.1"]`
	l.service(1, ipv4, "10.244.1.10")
	l.service(2, ipv4+`,"externalTrafficPolicy":"Local"`, "10.244.1.10")
	l.api.kinds.of(services.Services).put(`{"metadata":{"namespace":"shop","name":"s3","labels":{"service.kubernetes.io/service-proxy-name":"mesh"}},"spec":{"type":"LoadBalancer","clusterIPs":["10.96.0.3"],"ports":[{"port":80}]}}`)
	l.start(balanced, func(o *Options) { o.Services.On = false })
	answers := func(n int) {
		t.Helper()
		l.await(fmt.Sprint(n, " addresses"), func() bool { return l.metric("patchbay_node_load_balancers_answered_for") == n })
	}
	answers(3)
	l.endpoints(2)
	answers(2)
	l.endpoints(2, "10.244.1.10")
	answers(3)
	l.service(1, `,"type":"ClusterIP"`+ipv4)
	answers(2)
	l.api.kinds.of(services.Services).remove("shop/s3")
	answers(1)
	if l.services.program != nil {
		t.Error("it serves Services")
	}
	if problems := l.trouble.problems.All(); len(problems) > 0 {
		t.Error(problems)
	}
}

// A node that is about to be deleted answers for nothing.
func TestLoadBalancersOfALeavingNode(t *testing.T) {
	l := newServiceLab(t)
	l.pools("192.0.2.200")
	l.service(1, `,"clusterIPs":["10.96.0.1"]`, "10.244.1.10")
	l.start(balanced)
	answers := func(n int) {
		t.Helper()
		l.await(fmt.Sprint(n, " addresses"), func() bool { return l.metric("patchbay_node_load_balancers_answered_for") == n })
	}
	answers(1)
	tainted := kubeNode(1)
	tainted.Spec.Taints = []corev1.Taint{{Key: lan.ToBeDeleted, Effect: corev1.TaintEffectNoSchedule}}
	l.api.set(tainted)
	answers(0)
	l.api.set(kubeNode(1))
	answers(1)
}

// Without the flag, nothing is asked and nothing answered.
func TestLoadBalancersOff(t *testing.T) {
	l := newServiceLab(t)
	l.pools("192.0.2.200")
	l.service(1, `,"clusterIPs":["10.96.0.1"]`, "10.244.1.10")
	l.start()
	l.hears(l.a, "10.96.0.1:80", "b 10.244.1.6")
	if n := l.api.kinds.of(lan.ConfigMaps).lists + l.api.kinds.of(lan.Leases).lists; n > 0 || len(l.leases()) > 0 {
		t.Errorf("%d lists; Leases %v", n, l.leases())
	}
}
