// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package services

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/l4"
)

// A row is a fact about Services, with the topic that it is of. The Service shop/web has the endpoints, edit changes the state,
// and each line of packets is "FROM TO: WHAT".
type row struct {
	fact      string
	endpoints string
	edit      func(*State)
	packets   string
}

const (
	two    = "10.244.1.1@n1, 10.244.2.1@n2"
	both   = "10.244.1.1:8080, 10.244.2.1:8080"
	bothM  = "10.244.1.1:8080 masq, 10.244.2.1:8080 masq"
	remote = "10.244.2.1@n2"
)

func internalLocal(s *State) { s.web().InternalLocal = true }
func externalLocal(s *State) { s.web().ExternalLocal = true }

func ofType(kind string) func(*State) { return func(s *State) { s.web().Type = kind } }

func sources(texts ...string) func(*State) {
	return func(s *State) { s.web().Restricted, s.web().Sources = true, prefixes(texts...) }
}

var inputRows = []row{
	{"only the label's absence makes a Service ours", two, func(s *State) { s.web().ProxyName = new(string) }, "pod web: dropped"},
	{"or the name that we have", two, func(s *State) { other := "other"; s.web().ProxyName, s.Options.ProxyName = &other, "other" }, "pod web: " + both},
	{"then Services without the label are not ours", two, func(s *State) { s.Options.ProxyName = "other" }, "pod web: dropped"},
	{"slices with the label headless do not count", two, func(s *State) { s.slice().Headless = true }, "pod web: rejected"},
	{"a port joins by name", two, func(s *State) { s.slice().Ports[0].Name = "" }, "pod web: rejected"},
	{"and by protocol", two, func(s *State) { s.slice().Ports[0].Protocol = l4.UDP }, "pod web: rejected"},
	{"a port without a name has the name of none", two, func(s *State) { s.slice().Ports[0].Name = ""; s.web().Ports[0].Name = "" }, "pod web: " + both},
	{"one endpoint in two slices is one", two, func(s *State) {
		copied := *s.slice()
		copied.Name = "web-2"
		s.Slices[s.web().Name] = append(s.Slices[s.web().Name], &copied)
	}, "pod web: " + both},
	{"of a pod whose address is used again, the living one counts", "10.244.2.1@n2 draining, 10.244.2.1@n2", nil, "pod web: 10.244.2.1:8080"},
	{"endpoints may have other numbers for a named port", "10.244.1.1@n1", func(s *State) {
		s.Slices[s.web().Name] = append(s.Slices[s.web().Name], &Slice{Name: "x", Ports: []SlicePort{{"http", l4.TCP, 9090}}, Endpoints: []SliceEndpoint{{Address: addrs("10.244.2.1")[0], Ready: true}}})
	}, "pod web: 10.244.1.1:8080, 10.244.2.1:9090"},
	{"TCP, UDP and SCTP may have one number, also as a node port", two, func(s *State) {
		s.web().Ports = []ServicePort{{"http", l4.TCP, 80, 30080}, {"u", l4.UDP, 80, 30080}, {"s", l4.SCTP, 80, 30080}}
		s.slice().Ports = []SlicePort{{"http", l4.TCP, 8080}, {"u", l4.UDP, 53}, {"s", l4.SCTP, 99}}
	}, "pod web: " + both + "\npod web udp: 10.244.1.1:53, 10.244.2.1:53\nout node sctp: 10.244.1.1:99 masq, 10.244.2.1:99 masq"},
	{"two ports may have one target", two, func(s *State) {
		s.web().Ports = append(s.web().Ports, ServicePort{"alt", l4.TCP, 81, 0})
		s.slice().Ports = append(s.slice().Ports, SlicePort{"alt", l4.TCP, 8080})
	}, "pod web:81: " + both},
	{"endpoints may be anywhere", "198.51.100.9", nil, "pod web: 198.51.100.9:8080"},
}

var typeRows = []row{
	{"ClusterIP has no node port and no load balancer, even if some are left", two, ofType(typeClusterIP), "pod web: " + both + "\nout node: passed\nout lb: passed\nout ex: " + bothM},
	{"NodePort has no load balancer", two, ofType(typeNodePort), "out node: " + bothM + "\nout lb: passed"},
	{"LoadBalancer has all", two, nil, "out web: " + bothM + "\nout node: " + bothM + "\nout lb: " + bothM + "\nout ex: " + bothM},
	{"ExternalName has nothing, even with a cluster IP", two, ofType("ExternalName"), "pod web: dropped\nout lb: passed\nout node: passed"},
	{"headless has nothing", two, func(s *State) { s.web().ClusterIPs = nil }, "out lb: passed\nout node: passed\nout ex: passed"},
}

var choiceRows = []row{
	{"those that are not ready get nothing", "10.244.1.1@n1, 10.244.2.1@n2 notready", nil, "pod web: 10.244.1.1:8080"},
	{"those that drain get nothing while one is ready", "10.244.1.1@n1, 10.244.2.1@n2 draining", nil, "pod web: 10.244.1.1:8080"},
	{"and all when none is ready", "10.244.1.1@n1 notready, 10.244.2.1@n2 draining, 10.244.3.1@n3 ended", nil, "pod web: 10.244.2.1:8080"},
	{"published endpoints are ready, also while they terminate", "10.244.2.1@n2 published", nil, "pod web: 10.244.2.1:8080"},
	{"hints for this node", "10.244.1.1@n1 node=n1, 10.244.2.1@n2 node=n2", nil, "pod web: 10.244.1.1:8080"},
	{"but not if one has no hint", "10.244.1.1@n1 node=n1, 10.244.2.1@n2", nil, "pod web: " + both},
	{"and not if none is for this node", "10.244.2.1@n2 node=n2, 10.244.3.1@n3 node=n3", nil, "pod web: 10.244.2.1:8080, 10.244.3.1:8080"},
	{"one that is not ready needs no hint", "10.244.1.1@n1 node=n1, 10.244.2.1@n2 node=n2, 10.244.3.1@n3 notready", nil, "pod web: 10.244.1.1:8080"},
	{"hints for this zone", "10.244.1.1@n1 zone=west, 10.244.2.1@n2 zone=east", nil, "pod web: 10.244.2.1:8080"},
	{"those for the node come first", "10.244.1.1@n1 zone=west node=n1, 10.244.2.1@n2 zone=east node=n2", nil, "pod web: 10.244.1.1:8080"},
	{"those for the zone if none is for the node", "10.244.3.1@n3 zone=west node=n3, 10.244.2.1@n2 zone=east node=n2", nil, "pod web: 10.244.2.1:8080"},
	{"a node without a zone takes no hint", "10.244.1.1@n1 zone=west, 10.244.2.1@n2 zone=", func(s *State) { s.Node.Zone = "" }, "pod web: " + both},
	{"hints do not count for those that drain", "10.244.1.1@n1 draining zone=west, 10.244.2.1@n2 draining zone=east", nil, "pod web: " + both},
	{"hints do not count for policies Local", "10.244.1.1@n1 zone=west, 10.244.2.1@n2 zone=east", internalLocal, "pod web: 10.244.1.1:8080"},
	{"Local falls back to those that drain here, though others are ready", "10.244.1.1@n1 draining, 10.244.2.1@n2", internalLocal, "pod web: 10.244.1.1:8080\nout lb: 10.244.2.1:8080 masq"},
	{"so does externalTrafficPolicy", "10.244.1.1@n1 draining, 10.244.2.1@n2", externalLocal, "out lb: 10.244.1.1:8080\npod lb: 10.244.2.1:8080\npod web: 10.244.2.1:8080"},
	{"a name of a node must be equal", "10.244.1.1@N1", internalLocal, "pod web: dropped"},
}

var refuseRows = []row{
	{"no endpoint anywhere is refused, at each frontend", "10.244.1.1@n1 notready, 10.244.2.1@n2 ended", nil, "pod web: rejected\nout lb: rejected\nout ex: rejected\nout node: rejected\nnode web: rejected"},
	{"also with policies Local", "10.244.2.1@n2 notready", func(s *State) { internalLocal(s); externalLocal(s) }, "pod web: rejected\nout lb: rejected\npod lb: rejected"},
	{"internalTrafficPolicy Local with endpoints elsewhere drops", remote, internalLocal, "pod web: dropped\nnode web: dropped\nout web: dropped\nout lb: 10.244.2.1:8080 masq"},
	{"externalTrafficPolicy Local drops only what comes from outside", remote, externalLocal,
		"out lb: dropped\nout ex: dropped\nout node: dropped\npod lb: 10.244.2.1:8080\nnode lb: 10.244.2.1:8080 masq\npod web: 10.244.2.1:8080"},
	{"another port of a cluster IP is refused", two, nil, "pod web:81: rejected"},
	{"with another protocol too", two, nil, "pod web udp: rejected"},
	{"another port of other addresses is not ours", two, nil, "out lb:81: passed\nout ex:81: passed"},
	{"an address without a Service is dropped in a ServiceCIDR", two, nil, "pod 10.96.77.1:80: dropped\npod 10.97.0.1:80: passed"},
	{"unless it is the node's", two, func(s *State) { s.Addresses = append(s.Addresses, addrs("10.96.77.1")...) }, "pod 10.96.77.1:80: passed"},
}

var outsideRows = []row{
	{"node ports are at the primary address only", two, nil, "out node: " + bothM + "\nout 172.16.0.9:30080: passed\nout 127.0.0.1:30080: passed"},
	{"or at addresses of ranges", two, func(s *State) { s.Options.NodePorts = prefixes("172.16.0.8/29") }, "out node: passed\nout 172.16.0.9:30080: " + bothM},
	{"ranges of the other family are all of this one", two, func(s *State) { s.Options.NodePorts = prefixes("fd00::/8") }, "out node: " + bothM + "\nout 172.16.0.9:30080: " + bothM + "\nout 10.244.1.254:30080: " + bothM},
	{"never at loopback", two, func(s *State) { s.Options.NodePorts = prefixes("0.0.0.0/0") }, "node 127.0.0.1:30080: passed"},
	{"at a load balancer's address that is local", two, func(s *State) {
		s.Options.NodePorts = prefixes("0.0.0.0/0")
		s.Addresses = append(s.Addresses, addrs(webLB)...)
	},
		"out 192.0.2.1:30080: " + bothM + "\nout lb: " + bothM},
	{"source ranges are not for node ports, external IPs and cluster IPs", two, sources("198.51.100.0/24"), "out lb: dropped\nout node: " + bothM + "\nout ex: " + bothM + "\nout web: " + bothM},
	{"pods need to be in the ranges", two, sources("203.0.113.0/24"), "out lb: " + bothM + "\npod lb: dropped\nnode lb: dropped\n192.0.2.1 lb: dropped"},
	{"the node in a range may come with the load balancer's address", two, sources("172.16.0.0/24"), "node lb: " + bothM + "\n192.0.2.1 lb: " + bothM + "\nout lb: dropped"},
	{"all addresses in a range are no restriction", two, sources("198.51.100.0/24", "0.0.0.0/0"), "out lb: " + bothM},
	{"ranges of the other family are none", two, sources("2001:db8::/32"), "out lb: " + bothM},
	{"ranges that cannot be read let nobody in", two, sources("everybody"), "out lb: dropped"},
	{"outside the ranges is dropped even if there is no endpoint", "", sources("198.51.100.0/24"), "out lb: dropped\nout ex: rejected"},
	{"external IPs can be ignored", two, func(s *State) { s.Options.IgnoreExternalIPs = true }, "out ex: passed\nout lb: " + bothM},
	{"an external IP takes no other Service's cluster IP", two, func(s *State) {
		thief := *s.web()
		thief.Name, thief.ClusterIPs, thief.ExternalIPs, thief.Balancers = Name{"a", "thief"}, addrs("10.96.0.2"), addrs(webIP, webLB), nil
		s.Services[thief.Name] = &thief
	}, "pod web: " + both + "\nout lb: " + bothM},
	{"a pod that comes back to itself is masqueraded, at each frontend", "10.244.1.1@n1", externalLocal, "self web: 10.244.1.1:8080 masq\nself lb: 10.244.1.1:8080 masq\npod web: 10.244.1.1:8080"},
	{"also if nobody says on which node it is", "10.244.1.1", nil, "self web: 10.244.1.1:8080 masq"},
	{"an endpoint in the node's network", "172.16.0.1@n1", internalLocal, "pod web: 172.16.0.1:8080\nnode web: 172.16.0.1:8080 masq"},
}

func TestInputs(t *testing.T)            { ask(t, inputRows) }
func TestTypes(t *testing.T)             { ask(t, typeRows) }
func TestChoiceOfEndpoints(t *testing.T) { ask(t, choiceRows) }
func TestRejectAndDrop(t *testing.T)     { ask(t, refuseRows) }
func TestOutside(t *testing.T)           { ask(t, outsideRows) }

// ask sends the packets of rows.
func ask(t *testing.T, rows []row) {
	places := map[string]string{
		"pod": pod, "self": self, "node": theNode, "out": outside,
		"web": webIP + ":80", "web:81": webIP + ":81", "lb": webLB + ":80", "lb:81": webLB + ":81", "ex": webEx + ":80", "ex:81": webEx + ":81",
	}
	name := func(word string) string {
		if long, ok := places[word]; ok {
			return long
		}
		return word
	}
	for _, r := range rows {
		s := world(t, r.endpoints)
		if r.edit != nil {
			r.edit(s)
		}
		program := Compile(s, nil)
		for line := range strings.Lines(r.packets) {
			packet, want, _ := strings.Cut(strings.TrimSpace(line), ": ")
			words := append(strings.Fields(packet), "")
			to := name(words[1])
			if words[1] == "node" {
				to = theNode + ":30080"
			}
			proto, err := l4.Parse(strings.ToUpper(words[2]))
			if err != nil {
				t.Fatal(err)
			}
			if got := sendAs(program, proto, name(words[0]), to); got != want {
				t.Errorf("%s: %s: got %q, want %q", r.fact, packet, got, want)
			}
		}
	}
}

// TestInternalExternalMasquerade is the table of kube-proxy's test of this name: three sources, three targets and three Services,
// with and without knowledge of pods, with and without masqueradeAll.
func TestInternalExternalMasquerade(t *testing.T) {
	for _, all := range []bool{false, true} {
		for _, detector := range []bool{true, false} {
			for _, policy := range []string{"", "external", "internal"} {
				s := world(t, "10.244.1.2@n1, 10.244.2.1@n2")
				s.web().ExternalLocal, s.web().InternalLocal, s.Options.MasqueradeAll = policy == "external", policy == "internal", all
				if !detector {
					s.Node.Pods = nil
				}
				program := Compile(s, nil)
				for _, from := range []string{pod, theNode, outside} {
					for _, to := range []string{webIP + ":80", theNode + ":30080", webLB + ":80"} {
						local, masq := false, true
						switch toCluster, known := to == webIP+":80", from == pod && detector; {
						case toCluster:
							local, masq = policy == "internal", all || detector && from != pod
						case policy == "external":
							local, masq = from != theNode && !known, from == theNode
						}
						want := []string{"10.244.1.2:8080", "10.244.2.1:8080"}
						if local {
							want = want[:1]
						}
						text := strings.Join(want, ", ")
						if masq {
							text = strings.Join(want, " masq, ") + " masq"
						}
						if got := send(program, from, to); got != text {
							t.Errorf("all %t, detector %t, policy %q, %s to %s: got %q, want %q", all, detector, policy, from, to, got, text)
						}
					}
				}
			}
		}
	}
}

// Affinity holds for endpoints that may be used now, with each frontend's own view.
func TestAffinity(t *testing.T) {
	s := world(t, two)
	s.web().Affinity, s.web().ExternalLocal = 5, true
	program := Compile(s, nil)
	for _, c := range []struct{ from, to, remembered, want string }{
		{pod, webIP + ":80", "10.244.2.1:8080", "[{10.244.2.1:8080 false}]"},
		{pod, webIP + ":80", "10.244.3.1:8080", "[{10.244.1.1:8080 false} {10.244.2.1:8080 false}]"},
		{outside, webLB + ":80", "10.244.2.1:8080", "[{10.244.1.1:8080 false}]"},
		{pod, webLB + ":80", "10.244.2.1:8080", "[{10.244.2.1:8080 false}]"},
	} {
		v := program.Verdict(Packet{netip.MustParseAddr(c.from), ap(c.to), l4.TCP, ap(c.remembered)})
		if got := fmt.Sprint(v.To); got != c.want || v.Affinity != 5 {
			t.Errorf("%s to %s with %s: got %s, %d s, want %s, 5 s", c.from, c.to, c.remembered, got, v.Affinity, c.want)
		}
	}
}

// Each family has its own frontends, and only those of which the Service has a cluster IP.
func TestFamilies(t *testing.T) {
	s := world(t, two)
	s.web().ClusterIPs = append(s.web().ClusterIPs, addrs("fd00:96::1")...)
	s.web().Balancers = append(s.web().Balancers, addrs("2001:db8::1")...)
	s.Slices[s.web().Name] = append(s.Slices[s.web().Name], &Slice{
		Name: "web-6", IPv6: true, Ports: []SlicePort{{"http", l4.TCP, 8080}}, Endpoints: endpointList(t, "fd00:244:2::1@n2"),
	})
	program := Compile(s, nil)
	for packet, want := range map[[2]string]string{
		{"fd00:244:1::1", "[fd00:96::1]:80"}:    "[fd00:244:2::1]:8080",
		{"2001:db8:7::7", "[2001:db8::1]:80"}:   "[fd00:244:2::1]:8080 masq",
		{"2001:db8:7::7", "[fd00:16::1]:30080"}: "[fd00:244:2::1]:8080 masq",
		{outside, theNode + ":30080"}:           bothM,
	} {
		if got := send(program, packet[0], packet[1]); got != want {
			t.Errorf("%s: got %q, want %q", packet, got, want)
		}
	}
	s.web().ClusterIPs = s.web().ClusterIPs[:1] // back to one family
	change := program.Update(s, s.web().Name)
	if strings.Contains(change.text(), "+") || send(program, "2001:db8:7::7", "[fd00:16::1]:30080") != "passed" {
		t.Errorf("the second family stays: %v", change)
	}
}

func TestHealthChecks(t *testing.T) {
	for _, c := range []struct {
		endpoints string
		edit      func(*State)
		want      string
	}{
		{two, externalLocal, "[{shop/web 31000 false 1} {shop/web 31000 true 1}]"},
		{two, nil, "[]"}, // the policy is Cluster
		{two, func(s *State) { externalLocal(s); s.web().Type = typeNodePort }, "[]"},
		{"10.244.1.1@n1 draining", externalLocal, "[{shop/web 31000 false 0} {shop/web 31000 true 0}]"},
		{"10.244.1.1@n1 published", externalLocal, "[{shop/web 31000 false 1} {shop/web 31000 true 1}]"},
		{"10.244.1.1@n1, 10.244.1.2@n1, 10.244.1.3@n1 notready", func(s *State) {
			externalLocal(s)
			s.slice().Ports = append(s.slice().Ports, SlicePort{"other", l4.TCP, 9})
		}, "[{shop/web 31000 false 2} {shop/web 31000 true 2}]"},
	} {
		s := world(t, c.endpoints)
		s.web().HealthCheckNodePort = 31000
		if c.edit != nil {
			c.edit(s)
		}
		if got := fmt.Sprint(Compile(s, nil).Health()); got != c.want {
			t.Errorf("%s: got %s, want %s", c.endpoints, got, c.want)
		}
	}
	h := HealthCheck{Service: Name{"shop", "web"}, Local: 2}
	for healthy, want := range map[bool]int{true: 200, false: 503} {
		status, body := h.Answer(healthy)
		text := fmt.Sprintf(`{"service":{"namespace":"shop","name":"web"},"localEndpoints":2,"serviceProxyHealthy":%t}`, healthy)
		if status != want || body != text {
			t.Errorf("healthy %t: got %d %s, want %d %s", healthy, status, body, want, text)
		}
	}
	h.Local = 0
	if status, _ := h.Answer(true); status != 503 {
		t.Errorf("without an endpoint: got %d, want 503", status)
	}
}

// TestUnused: each endpoint that gets no connection has its reason.
func TestUnused(t *testing.T) {
	for endpoints, want := range map[string]string{
		"10.244.1.1@n1, 10.244.2.1@n2":                              "",
		"10.244.1.1@n1, 10.244.2.1@n2 notready":                     "10.244.2.1:8080 http it is not ready",
		"10.244.1.1@n1, 10.244.2.1@n2 draining":                     "10.244.2.1:8080 http it terminates, and others are ready",
		"10.244.1.1@n1, 10.244.2.1@n2 ended":                        "10.244.2.1:8080 http it terminates, and serves no more",
		"10.244.1.1@n1 draining, 10.244.2.1@n2 draining":            "",
		"10.244.1.1@n1 zone=east, 10.244.2.1@n2 zone=west":          "10.244.2.1:8080 http its hints are for other nodes or zones",
		"10.244.1.1@n1 zone=east, 10.244.2.1@n2 zone=west notready": "10.244.2.1:8080 http it is not ready",
	} {
		var got []string
		for _, u := range world(t, endpoints).Unused(Name{"shop", "web"}) {
			got = append(got, u.Endpoint.String()+" "+u.Port+" "+u.Why)
		}
		if text := strings.Join(got, ", "); text != want {
			t.Errorf("%s: %q, want %q", endpoints, text, want)
		}
	}
}
