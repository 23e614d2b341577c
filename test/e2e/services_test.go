// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/patchbay-net/patchbay/daemons/test/chart"
)

// TestServices has a cluster without kube-proxy, whose agents are installed as docs/services.md says. Everybody gets what a
// Service promises: pods, nodes, and a client outside of the cluster. Nothing is lost while endpoints leave and agents are killed.
func TestServices(t *testing.T) {
	if !ours() || !nightly() {
		t.Log("runs in make nightly, with our build")
		return
	}
	if os.Getenv(insideEnv) == "" {
		buildAgentImage(t)
	}
	onNode(t, func(t *testing.T) {
		s := newServed(t)
		defer s.saveLogs()
		s.proveClusterIP()
		s.proveDNS()
		s.proveNodePort()
		s.proveLocal()
		s.proveAffinity()
		s.proveHeadless()
		s.proveRefused()
		s.proveHealthz()
		s.proveLeaving()
		s.proveRestart()
		s.noAgentEvents()
	})
}

// The node ports of the tests' Services.
const (
	webNodePort   = 30080
	localNodePort = 30081
	emptyNodePort = 30082
	checkNodePort = 30083
)

// outsider is a client outside of the cluster: the router of the lab. It has no route to pods and to cluster IPs.
const outsider = "kl-fabric"

// served is a cluster of two nodes with a client pod on each, and the Service web with one endpoint on n1 and two on n2.
type served struct {
	*cluster
	nodes   []string
	inside  map[string]string // namespaces of pods, and of nodes
	web     []string
	targets []string // addresses of the Service web
}

func newServed(t *testing.T) *served {
	t.Helper()
	s := &served{cluster: newCluster(t, "2", "containerd2=n2"), nodes: []string{"n1", "n2"}, web: []string{"web-1", "web-2", "web-3"}}
	s.do("images", agentArchive(agentImage))
	s.applyAgents(chart.Render(t, func(v map[string]any) {
		v["clusterCIDRs"] = []string{"10.244.0.0/16", "fd00:244::/56"}
		v["services"], v["apiServerHost"] = true, "10.99.0.10"
	}))
	s.ready(2*time.Minute, "nodes", "--all")
	s.inside = map[string]string{"node n1": "kl-n1", "node n2": "kl-n2"}
	for _, node := range s.nodes {
		s.importProbe(node)
		s.pod("client-"+node, node, 0)
	}
	for i, pod := range s.web {
		s.pod(pod, []string{"n1", "n2", "n2"}[i], 0)
		s.kubectl("label", "pod", pod, "set=web")
	}
	s.serviceWith("web", object{"set": "web"}, webNodePort, object{"type": "NodePort"})
	kubetest(t, "dns")
	s.ready(2*time.Minute, "pods", "--all")
	for _, pod := range []string{"client-n1", "client-n2", "web-1"} {
		s.inside["pod "+pod] = s.podNS(pod)
	}
	for _, addr := range s.clusterIPs("web") {
		s.targets = append(s.targets, hostPort(addr, 80))
	}
	return s
}

// proveClusterIP asks the Service from pods, one of them its endpoint, and from nodes. All endpoints answer, and see a pod's own address.
func (s *served) proveClusterIP() {
	s.Helper()
	defer s.took("cluster IPs")()
	for who, ns := range s.inside {
		for i, target := range s.targets {
			for _, network := range []string{"tcp", "udp"} {
				s.all(who, ns, network, target, s.web)
				if pod, ok := strings.CutPrefix(who, "pod client"); ok {
					s.seesOwn(ns, network, target, s.addrs("client" + pod)[i])
				}
			}
		}
	}
}

// proveDNS asks the resolver, whose Service is one of UDP and TCP, for the addresses of a Service.
func (s *served) proveDNS() {
	s.Helper()
	defer s.took("DNS")()
	want := s.clusterIPs("web")
	slices.Sort(want)
	for _, resolver := range strings.Fields(s.kubectl("get", "service", "-n", "kube-system", "kube-dns", "-o", "jsonpath={.spec.clusterIPs[*]}")) {
		for who, ns := range s.inside {
			for _, network := range []string{"udp", "tcp"} {
				s.resolves(who, ns, network, hostPort(resolver, 53), "web.default.svc.cluster.local.", want)
			}
		}
	}
}

// proveNodePort asks each node's port, also from outside of the cluster.
func (s *served) proveNodePort() {
	s.Helper()
	defer s.took("node ports")()
	for _, node := range s.nodes {
		for _, addr := range s.nodeAddrs(node) {
			for _, network := range []string{"tcp", "udp"} {
				s.all("outside", outsider, network, hostPort(addr, webNodePort), s.web)
				for who, ns := range s.inside {
					s.all(who, ns, network, hostPort(addr, webNodePort), s.web)
				}
			}
		}
	}
}

// proveLocal has a Service with externalTrafficPolicy Local and an endpoint on n2. There, the endpoint sees the address of the client, and
// the health check says that it exists. n1 is silent, but not to its own pods.
func (s *served) proveLocal() {
	s.Helper()
	defer s.took("externalTrafficPolicy Local")()
	s.serviceWith("local", object{"app": "web-2"}, localNodePort, object{
		"type": "LoadBalancer", "externalTrafficPolicy": "Local", "healthCheckNodePort": checkNodePort,
	})
	outside := []string{"10.99.0.254", "fd00:99::fe"}
	for i, addr := range s.nodeAddrs("n2") {
		target := hostPort(addr, localNodePort)
		s.all("outside", outsider, "tcp", target, []string{"web-2"})
		s.seesOwn(outsider, "tcp", target, outside[i])
		s.seesOwn(outsider, "udp", target, outside[i])
		s.answers(outsider, "http://"+hostPort(addr, checkNodePort)+"/", 200, `"localEndpoints":1`)
	}
	for _, addr := range s.nodeAddrs("n1") {
		target := hostPort(addr, localNodePort)
		s.all("pod client-n1", s.inside["pod client-n1"], "tcp", target, []string{"web-2"})
		s.all("node n1", "kl-n1", "udp", target, []string{"web-2"})
		_, err := namedBy(outsider, "tcp", target)
		if late := net.Error(nil); !errors.As(err, &late) || !late.Timeout() {
			s.Errorf("a node without an endpoint says %v", err)
		}
		s.answers(outsider, "http://"+hostPort(addr, checkNodePort)+"/", 503, `"localEndpoints":0`)
	}
	s.kubectl("delete", "service", "local")
}

// proveAffinity has a client that stays with an endpoint until this leaves the Service.
func (s *served) proveAffinity() {
	s.Helper()
	defer s.took("session affinity")()
	s.serviceWith("sticky", object{"set": "web"}, 0, object{"sessionAffinity": "ClientIP"})
	for _, addr := range s.clusterIPs("sticky") {
		for who, ns := range s.inside {
			for _, network := range []string{"tcp", "udp"} {
				target := hostPort(addr, 80)
				s.only(who, ns, network, target, s.named(who, ns, network, target))
			}
		}
		for _, network := range []string{"tcp", "udp"} {
			who, ns, target := "pod client-n1", s.inside["pod client-n1"], hostPort(addr, 80)
			first := s.named(who, ns, network, target)
			s.withoutLabel(first, func() { s.never(who, ns, network, target, first) })
		}
	}
	s.kubectl("delete", "service", "sticky")
}

// proveHeadless: a headless Service has no element in the kernel, and its pods answer by name.
func (s *served) proveHeadless() {
	s.Helper()
	defer s.took("a headless Service")()
	before := s.elements("n1")
	s.serviceWith("bare", object{"set": "web"}, 0, object{"clusterIP": "None"})
	var want []string
	for _, pod := range s.web {
		want = append(want, s.addrs(pod)...)
	}
	slices.Sort(want)
	s.resolves("pod client-n1", s.inside["pod client-n1"], "udp", "10.96.0.53:53", "bare.default.svc.cluster.local.", want)
	s.settled("n1", before)
	s.kubectl("delete", "service", "bare")
}

// settled makes a Service and deletes it. Then the agent has seen what happened before, and the elements must be the same.
func (s *served) settled(node, before string) {
	s.Helper()
	s.serviceWith("marker", object{"app": "web-2"}, 0, nil)
	s.all("node "+node, "kl-"+node, "tcp", hostPort(s.clusterIPs("marker")[0], 80), []string{"web-2"})
	s.kubectl("delete", "service", "marker")
	eventually(s, "the elements of "+node+" are those of before", func() error {
		if after := s.elements(node); after != before {
			return errors.New(cmp.Diff(before, after))
		}
		return nil
	})
}

// proveRefused: a Service without endpoints refuses, and so does a port that a Service does not have.
func (s *served) proveRefused() {
	s.Helper()
	defer s.took("refusals")()
	s.serviceWith("empty", object{"app": "nobody"}, emptyNodePort, object{"type": "NodePort"})
	for i, addr := range s.clusterIPs("empty") {
		port := hostPort(s.nodeAddrs("n1")[i], emptyNodePort)
		for _, network := range []string{"tcp", "udp"} {
			s.refuses("outside", outsider, network, port)
			for who, ns := range s.inside {
				s.refuses(who, ns, network, hostPort(addr, 80))
				s.refuses(who, ns, network, port)
				s.refuses(who, ns, network, hostPort(s.clusterIPs("web")[i], 81))
			}
		}
	}
	s.kubectl("delete", "service", "empty")
}

// refuses waits until a client is refused. The kernel tells a node's own socket of UDP so when it sends, with another error.
func (s *served) refuses(who, ns, network, target string) {
	s.Helper()
	eventually(s, fmt.Sprintf("%s %s is refused to %s", network, target, who), func() error {
		name, err := namedBy(ns, network, target)
		atOnce := network == "udp" && strings.HasPrefix(who, "node") && errors.Is(err, syscall.EPERM)
		if !errors.Is(err, syscall.ECONNREFUSED) && !atOnce {
			return fmt.Errorf("%s (%w)", name, err)
		}
		return nil
	})
}

// proveHealthz asks what load balancers ask.
func (s *served) proveHealthz() {
	s.Helper()
	for _, node := range s.nodes {
		for _, addr := range s.nodeAddrs(node) {
			s.answers(outsider, "http://"+hostPort(addr, 10256)+"/healthz", 200, `"nodeEligible":true`)
			s.answers(outsider, "http://"+hostPort(addr, 10256)+"/livez", 200, `"healthy":true`)
		}
	}
}

// proveLeaving deletes an endpoint while everybody connects all the time. It serves for some seconds more, so no connection may be lost.
// A pod that left the Service and still runs gets no connection.
func (s *served) proveLeaving() {
	s.Helper()
	defer s.took("endpoints that leave")()
	s.podWith("leaver", "n1", 0, object{"terminationGracePeriodSeconds": 20, "containers": []object{{
		"name": "probe", "image": probeImage, "imagePullPolicy": "Never", "lifecycle": object{"preStop": object{"sleep": object{"seconds": 5}}},
	}}})
	s.kubectl("label", "pod", "leaver", "set=web")
	s.ready(time.Minute, "pod", "leaver")
	s.everywhere(func(who, ns, target string) { s.all(who, ns, "tcp", target, append(slices.Clone(s.web), "leaver")) })
	end := s.connect("while an endpoint leaves")
	s.kubectl("delete", "pod", "leaver", "--wait")
	s.everywhere(func(who, ns, target string) { s.never(who, ns, "tcp", target, "leaver") })
	end()
	s.withoutLabel("web-3", func() {
		s.everywhere(func(who, ns, target string) { s.never(who, ns, "udp", target, "web-3") })
	})
}

// everywhere calls do for each client and each address of the Service web that it reaches.
func (s *served) everywhere(do func(who, ns, target string)) {
	s.Helper()
	for who, ns := range s.inside {
		for _, target := range s.targets {
			do(who, ns, target)
		}
	}
	for _, addr := range s.nodeAddrs("n1") {
		do("outside", outsider, hostPort(addr, webNodePort))
	}
}

// proveRestart kills the agents while connections are open and others are made. Nothing is lost, and the agents change nothing in the
// kernel when they are back.
func (s *served) proveRestart() {
	s.Helper()
	defer s.took("agents killed")()
	s.serviceWith("stream", object{"app": "web-2"}, 0, object{
		"ports": []object{{"protocol": "UDP", "port": 80, "targetPort": s.streamServer("web-2")}},
	})
	target := hostPort(s.clusterIPs("stream")[0], 80)
	s.seesOwn(s.inside["pod client-n1"], "udp", target, s.addrs("client-n1")[0])
	quiet, streamed := s.connect("while agents are killed"), s.startStreamTo("client-n1", target, "through a Service")
	held := s.hold()
	for _, node := range s.nodes {
		s.killAgent(node) // the next one removes the sets that no Service needs any more
		before := s.revision(node) + s.elements(node)
		s.killAgent(node) // the kubelet waits before it starts it a second time
		if after := s.revision(node) + s.elements(node); after != before {
			s.Errorf("%s: the agent started again and changed\n%s", node, cmp.Diff(before, after))
		}
	}
	held()
	streamed()
	quiet()
	s.withoutLabel("web-1", func() {
		s.everywhere(func(who, ns, target string) { s.never(who, ns, "tcp", target, "web-1") })
	})
}

// killAgent kills a node's agent and waits until another one is ready.
func (s *served) killAgent(node string) {
	s.Helper()
	pod := s.kubectl("get", "pods", "-n", "kube-system", "-l", "app.kubernetes.io/name=patchbay", "--field-selector", "spec.nodeName="+node, "-o", "jsonpath={.items[0].metadata.name}")
	old := s.processIn("kube-system", pod)
	run(s.T, "kill", "-KILL", old)
	eventually(s, "another agent of "+node+" is ready", func() error {
		if _, err := os.Stat("/proc/" + old); err == nil {
			return errors.New("the old one runs")
		}
		return ready("kl-" + node)
	})
}

// connect opens connections to the Service from everywhere all the time. end fails the test if one of them got no answer.
func (s *served) connect(when string) (end func()) {
	s.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	type result struct {
		who  string
		text string
		bad  bool
	}
	results, clients := make(chan result), 0
	fire := func(who, ns string, targets ...string) {
		clients++
		go func() {
			fired, err := s.fireNoted(ctx, ns, nil, targets...)
			bad := err != nil
			for _, f := range fired {
				bad = bad || f.Sent < 100 || f.Answers != f.Sent || f.Refused > 0
			}
			results <- result{who, fmt.Sprintf("%+v (%v)", fired, err), bad}
		}()
	}
	for who, ns := range s.inside {
		fire(who, ns, "tcp/"+s.targets[0], "tcp/"+s.targets[1])
	}
	fire("outside", outsider, "tcp/"+hostPort(s.nodeAddrs("n1")[0], webNodePort), "tcp/"+hostPort(s.nodeAddrs("n2")[1], webNodePort))
	return func() {
		s.Helper()
		cancel()
		for range clients {
			if r := <-results; r.bad {
				s.Errorf("%s: connections from %s were lost: %s", when, r.who, r.text)
			} else {
				s.Logf("%s, from %s: %s", when, r.who, r.text)
			}
		}
	}
}
