// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package node

import (
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/patchbay-net/patchbay/daemons/internal/fabric/health"
	"github.com/patchbay-net/patchbay/daemons/node/lan"
	"github.com/patchbay-net/patchbay/daemons/node/services"
	"github.com/patchbay-net/patchbay/internal/services/saved"
	"github.com/patchbay-net/patchbay/internal/test/nettest/node"
)

// serviceLab is an agent of node n1 that serves Services in this namespace. The pods a and b are on this node, and answer on port 8080.
type serviceLab struct {
	*lab
	*node.Node
	a, b *node.Space
}

func newServiceLab(t *testing.T) *serviceLab {
	l := &serviceLab{lab: newLab(t, 1, 2)}
	runNFT(t, "flush ruleset")
	t.Cleanup(func() { runNFT(t, "flush ruleset") })
	l.Node = node.New(t)
	l.a, l.b = l.pod("a", "10.244.1.6", "fd00:244:0:1::6"), l.pod("b", "10.244.1.10", "fd00:244:0:1::a")
	l.api.kinds.of(services.ServiceCIDRs).put(`{"metadata":{"name":"kubernetes"},"spec":{"cidrs":["10.96.0.0/16","fd00:96::/112"]}}`)
	return l
}

// pod makes a pod that answers. Its gateway has the address before its own.
func (l *serviceLab) pod(name, addr4, addr6 string) *node.Space {
	s := l.Space(name)
	node.Join(l.Host, "v"+name, s, "eth0")
	l.Host.Address("v"+name, before(addr4)+"/30", before(addr6)+"/126")
	s.Address("eth0", addr4+"/30", addr6+"/126")
	s.Default("eth0", before(addr4), before(addr6))
	for _, network := range []string{"tcp", "udp"} {
		s.Serve(network, addr4+":8080")
		s.Serve(network, "["+addr6+"]:8080")
	}
	return s
}

func before(addr string) string {
	n, _ := strconv.ParseUint(addr[strings.LastIndexAny(addr, ".:")+1:], map[bool]int{true: 16, false: 10}[strings.Contains(addr, ":")], 16)
	return addr[:strings.LastIndexAny(addr, ".:")+1] + strconv.FormatUint(n-1, 10)
}

// service makes the Service shop/s<number>, of TCP, with its slice of IPv4. more are further fields of its spec.
func (l *serviceLab) service(number int, more string, pods ...string) {
	l.api.kinds.of(services.Services).put(fmt.Sprintf(
		`{"metadata":{"namespace":"shop","name":"s%d"},"spec":{"type":"LoadBalancer","clusterIPs":["10.96.0.%d","fd00:96::%d"],"ports":[{"name":"web","port":80}]%s}}`, number, number, number, more))
	l.endpoints(number, pods...)
}

func (l *serviceLab) endpoints(number int, pods ...string) {
	var list []string
	for _, addr := range pods {
		list = append(list, fmt.Sprintf(`{"addresses":[%q],"nodeName":"n1"}`, addr))
	}
	l.api.kinds.of(services.EndpointSlices).put(fmt.Sprintf(
		`{"metadata":{"namespace":"shop","name":"s%d-x","labels":{"kubernetes.io/service-name":"s%d"},"annotations":{"endpoints.kubernetes.io/last-change-trigger-time":%q}},"addressType":"IPv4",`+
			`"ports":[{"name":"web","port":8080}],"endpoints":[%s]}`, number, number, time.Now().UTC().Format(time.RFC3339Nano), strings.Join(list, ",")))
}

func (l *serviceLab) start(change ...func(*Options)) {
	l.Helper()
	l.lab.start(append([]func(*Options){func(o *Options) { o.Services.On, o.Services.Healthz = true, "127.0.0.1:10256" }}, change...)...)
}

// hears waits until a pod hears an answer from a frontend.
func (l *serviceLab) hears(who *node.Space, at, want string) {
	l.Helper()
	var got string
	end := time.Now().Add(patience)
	for got = who.AskBriefly("tcp", at); got != want; got = who.AskBriefly("tcp", at) {
		if time.Now().After(end) {
			l.Fatalf("%s asked %s and heard %q, want %q; problems %v", who.Name, at, got, want, l.trouble.problems.All())
		}
	}
}

// servicePrograms returns how many programs of Services were put in force.
func (l *serviceLab) servicePrograms() int {
	return l.metric(`patchbay_node_services_programs_total{result="success"}`)
}

func (l *serviceLab) metric(name string) int {
	_, rest, _ := strings.Cut(httpRecorder(l.Handler(), "/metrics"), "\n"+name+" ")
	n, _ := strconv.Atoi(strings.Split(rest, "\n")[0]) // 0 before the first one
	return n
}

// servicesTable returns the table as nft prints it, without its revision.
func servicesTable() string {
	out, _ := exec.Command("nft", "list", "table", "inet", "patchbay_services").CombinedOutput()
	before, after, _ := strings.Cut(string(out), "set revision {")
	_, after, _ = strings.Cut(after, "}\n\t}")
	return before + after
}

// From the API server's objects to a connection, and to the next one after each change.
func TestServices(t *testing.T) {
	l := newServiceLab(t)
	l.service(1, "", "10.244.1.10")
	l.start()
	l.hears(l.a, "10.96.0.1:80", "b 10.244.1.6")
	l.hears(l.a, "10.96.0.9:80", "timeout") // in a ServiceCIDR
	l.endpoints(1, "10.244.1.6")
	l.hears(l.b, "10.96.0.1:80", "a 10.244.1.10")
	l.endpoints(1)
	l.hears(l.a, "10.96.0.1:80", "refused")
	l.service(2, `,"externalIPs":["203.0.113.2"]`, "10.244.1.10")
	l.hears(l.Client, "203.0.113.2:80", "timeout") // the router has no route to it
	l.hears(l.a, "203.0.113.2:80", "b 10.244.1.9")
	l.api.kinds.of(services.Services).remove("shop/s2")
	l.hears(l.a, "10.96.0.2:80", "timeout")

	l.service(3, `,"ports":[{"name":"web","port":80,"nodePort":30003}]`, "10.244.1.10")
	l.hears(l.Client, node.Uplink4+":30003", "b 10.244.1.9")
	moved := kubeNode(1)
	moved.Status.Addresses[0].Address = "192.0.2.77"
	l.Host.Address("uplink", "192.0.2.77/24")
	l.api.set(moved)
	l.hears(l.Client, "192.0.2.77:30003", "b 10.244.1.9")
	if n := l.metric("patchbay_node_services_network_programming_duration_seconds_count"); n < 3 {
		t.Errorf("%d changes of endpoints have a latency", n)
	}
	if n, e := l.metric("patchbay_node_services_services"), l.metric("patchbay_node_services_endpoints"); n != 2 || e != 2 { // the slice of s2 is still there
		t.Errorf("the metrics have %d Services and %d endpoints", n, e)
	}
	if problems := l.trouble.problems.All(); len(problems) > 0 {
		t.Error(problems)
	}
	l.stop()
	l.hears(l.a, "10.96.0.3:80", "b 10.244.1.6")
	l.start(func(o *Options) { o.Services.On = false })
	l.await("no table", func() bool {
		_, err := os.Stat(saved.Path(l.opts.Paths))
		return !strings.Contains(servicesTable(), "chain") && os.IsNotExist(err)
	})
}

// Before Kubernetes 1.33 there are no ServiceCIDRs. Services work without, and the kind is seen when an upgrade brings it.
func TestServicesWithoutServiceCIDRs(t *testing.T) {
	l := newServiceLab(t)
	ranges := l.api.kinds.of(services.ServiceCIDRs)
	l.api.say(func(*apiServer) { ranges.absent = true })
	l.service(1, "", "10.244.1.10")
	l.start()
	l.hears(l.a, "10.96.0.1:80", "b 10.244.1.6")
	if strings.Contains(servicesTable(), "10.96.0.0/16") {
		t.Error("there is a range")
	}
	if problems := l.trouble.problems.All(); len(problems) > 0 {
		t.Error(problems)
	}
	l.api.say(func(*apiServer) { ranges.absent = false })
	l.await("the range", func() bool { return strings.Contains(servicesTable(), "10.96.0.0/16") })
}

// uplinkPorts are the addresses of the uplink, whatever the Node has.
func uplinkPorts() []netip.Prefix { return []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")} }

// An agent that starts again changes nothing. After a reboot Services work although the API server does not answer, and follow this node's
// addresses.
func TestServicesWithoutAPIServer(t *testing.T) {
	l := newServiceLab(t)
	l.service(1, "", "10.244.1.10")
	l.service(2, `,"ports":[{"name":"web","port":80,"nodePort":30002}]`, "10.244.1.6", "10.244.1.10")
	l.start(func(o *Options) { o.Services.NodePorts = uplinkPorts() })
	l.hears(l.a, "10.96.0.1:80", "b 10.244.1.6")
	l.stop()

	silent := listen(t)
	l.start(func(o *Options) { o.Services.NodePorts = uplinkPorts() })
	l.await("the first program", func() bool { return l.servicePrograms() > 0 })
	l.stop()
	if events := silent(); len(events) > 0 {
		t.Errorf("an agent that starts again changed %v", events)
	}

	l.api.say(func(s *apiServer) { s.refuse = http.StatusServiceUnavailable })
	runNFT(t, "flush ruleset")
	l.start(func(o *Options) { o.Services.NodePorts = uplinkPorts() })
	l.hears(l.a, "10.96.0.1:80", "b 10.244.1.6")
	l.Host.Address("uplink", "192.0.2.78/24")
	l.await("the new address", func() bool { return strings.HasPrefix(l.Client.AskBriefly("tcp", "192.0.2.78:30002"), "a 10.") })
	runNFT(t, "flush ruleset")
	l.hears(l.a, "10.96.0.1:80", "b 10.244.1.6")
	if l.servicePrograms() > 0 {
		t.Error("without the API server's lists there is a program of them")
	}
	l.api.say(func(s *apiServer) { s.refuse = 0 })
	l.endpoints(1, "10.244.1.6")
	l.hears(l.b, "10.96.0.1:80", "a 10.244.1.10")
}

// While the API server does not answer, the kernel's Services are not replaced by those of the file, which may be older.
func TestOldServiceCache(t *testing.T) {
	l := newServiceLab(t)
	l.service(1, `,"externalTrafficPolicy":"Local","healthCheckNodePort":31003`, "10.244.1.10")
	l.start()
	l.hears(l.a, "10.96.0.1:80", "b 10.244.1.6")
	l.await("the file", func() bool { _, err := os.Stat(saved.Path(l.opts.Paths)); return err == nil })
	old, err := os.ReadFile(saved.Path(l.opts.Paths))
	must(t, err)
	l.endpoints(1, "10.244.1.6")
	l.hears(l.b, "10.96.0.1:80", "a 10.244.1.10")
	l.stop()
	must(t, os.WriteFile(saved.Path(l.opts.Paths), old, 0o600))
	l.api.say(func(s *apiServer) { s.refuse = http.StatusServiceUnavailable })
	l.start()
	l.awaitProblem(servicesUnfollowed)
	l.hears(l.b, "10.96.0.1:80", "a 10.244.1.10")
	if status, _, body := page(t, "http://"+node.Uplink4+":31003", ""); status != 200 {
		t.Errorf("load balancers hear %d %s", status, body)
	}
	if got := l.b.AskBriefly("tcp", "10.96.0.1:80"); got != "a 10.244.1.10" {
		t.Errorf("b heard %q from an old endpoint", got)
	}
}

// Other programs flush and change the table. A moment later it is whole.
func TestServicesFlush(t *testing.T) {
	l := newServiceLab(t)
	l.service(1, "", "10.244.1.10")
	l.start()
	l.hears(l.a, "10.96.0.1:80", "b 10.244.1.6")
	for _, damage := range []string{
		"flush ruleset", "delete table inet patchbay_services", "flush map inet patchbay_services one4", "flush chain inet patchbay_services prerouting",
		"add element inet patchbay_services one4 { 10.96.0.1 . tcp . 81 : 10.244.1.6 . 8080 }",
	} {
		l.rest()
		whole := servicesTable()
		runNFT(t, damage)
		began := time.Now()
		l.await("the table after "+damage, func() bool { return servicesTable() == whole })
		t.Logf("%s: right again after %v", damage, time.Since(began))
		l.hears(l.a, "10.96.0.1:80", "b 10.244.1.6")
	}
	l.awaitProblem(servicesChanged)
}

// rest waits until the agent has answered the changes of another program so far. It answers the next one without a pause.
func (l *serviceLab) rest() {
	l.Helper()
	p := l.services
	l.await("rest", func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		rested := time.Since(p.restored.last) > 2*collect.Longest
		if rested {
			p.restored = pace{}
		}
		return rested
	})
}

// page returns the status, a header and the body of a page of this node.
func page(t *testing.T, url, header string) (int, string, string) {
	t.Helper()
	resp, err := http.Get(url) //nolint:noctx // a test
	if err != nil {
		return 0, "", err.Error()
	}
	defer resp.Body.Close() //nolint:errcheck // read
	body, err := io.ReadAll(resp.Body)
	must(t, err)
	return resp.StatusCode, resp.Header.Get(header), string(body)
}

// /healthz and /livez say what kube-proxy would, and so does the port of a Service with externalTrafficPolicy Local.
func TestServiceHealth(t *testing.T) {
	l := newServiceLab(t)
	l.service(1, `,"externalTrafficPolicy":"Local","healthCheckNodePort":31001`, "10.244.1.10", "10.244.1.6")
	l.start()
	is := func(path string, status int, parts ...string) {
		t.Helper()
		url := "http://127.0.0.1:10256" + path
		if !strings.HasPrefix(path, "/") {
			url = "http://" + path
		}
		var code int
		var text string
		l.await(fmt.Sprint(url, " answers ", status), func() bool { code, _, text = page(t, url, ""); return code == status })
		for _, part := range parts {
			if !strings.Contains(text, part) {
				t.Errorf("%s: %d, no %q in\n%s", path, code, part, text)
			}
		}
	}
	is("/healthz", 200, `"nodeEligible":true,"healthy":true`)
	is("/livez", 200, `"healthy":true`)
	is(node.Uplink4+":31001/any", 200, `{"service":{"namespace":"shop","name":"s1"},"localEndpoints":2,"serviceProxyHealthy":true}`)
	for header, want := range map[string]string{"X-Load-Balancing-Endpoint-Weight": "2", "X-Content-Type-Options": "nosniff", "Content-Type": "application/json"} {
		if _, got, _ := page(t, "http://"+node.Uplink4+":31001", header); got != want {
			t.Errorf("%s is %q, want %q", header, got, want)
		}
	}
	l.endpoints(1)
	is(node.Uplink4+":31001", 503, `"localEndpoints":0,"serviceProxyHealthy":true`)
	l.service(1, "")
	is(node.Uplink4+":31001", 0, "refused")

	tainted := kubeNode(1)
	tainted.Spec.Taints = []corev1.Taint{{Key: lan.ToBeDeleted, Effect: corev1.TaintEffectNoSchedule}}
	l.api.set(tainted)
	is("/healthz", 503, `"nodeEligible":false,"healthy":true`)
	is("/livez", 200, `"healthy":true`)
	l.api.set(kubeNode(1))
	is("/healthz", 200)
	l.api.remove("n1", false)
	is("/healthz", 503, `"nodeEligible":false`)
	if err := l.Healthy(); err != nil {
		t.Error(err)
	}
	l.services.busy.since.Store(time.Now().Add(-2 * health.HungAfter).Unix())
	if err := l.Healthy(); err == nil || !strings.Contains(err.Error(), "putting Services in force") {
		t.Errorf("a program that hangs: %v", err)
	}
}

// A Service that cannot be read as a whole gets one Event, and so does one whose health check cannot be served.
func TestServiceEvents(t *testing.T) {
	l := newServiceLab(t)
	l.Host.Serve("tcp", node.Uplink4+":31002")
	l.service(1, `,"ports":[{"name":"web","port":80,"protocol":"DCCP"}]`)
	l.service(2, `,"externalTrafficPolicy":"Local","healthCheckNodePort":31002`, "10.244.1.10")
	l.start()
	for reason, want := range map[string]string{string(serviceBroken): "Service shop/s1", string(checkFailed): "Service shop/s2"} {
		l.await("an Event "+reason, func() bool {
			found := false
			l.api.say(func(s *apiServer) {
				for _, e := range s.events {
					o := e.InvolvedObject
					found = found || e.Reason == reason && o.Kind+" "+o.Namespace+"/"+o.Name == want && o.APIVersion == "v1"
				}
			})
			return found
		})
	}
	l.awaitProblem(servicesBroken)
}
