// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cnmplugin

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/daemons/cnm"
	"github.com/patchbay-net/patchbay/daemons/test/cnmtest"
	"github.com/patchbay-net/patchbay/internal/test/endpointtest"
	"github.com/patchbay-net/patchbay/spec"
)

func TestTraffic(t *testing.T) {
	l := newLab(t, &cnmtest.Driver{})
	a, b := l.Pod("a", both).Add(), l.Pod("b", both).Add()
	for n := range 2 {
		for _, network := range []string{"tcp", "udp"} {
			b.Serve(network, endpointtest.Join(b.IP(n), "80"))
			l.Want("container to container", a.Ask(network, endpointtest.Join(b.IP(n), "80")), "b "+a.IP(n))
			l.Want("host to container", l.Host.Ask(network, endpointtest.Join(b.IP(n), "80")), "b "+b.Gateway(n))
		}
	}
	endpointtest.Must(t, a.Do(spec.Check))
	for _, p := range []*endpointtest.Pod{a, b} {
		endpointtest.Must(t, p.Do(spec.Del))
		endpointtest.Must(t, p.Do(spec.Del))
	}
	l.clean("after DEL")
	if n := l.driver.Addresses(); n != 2 {
		t.Errorf("the IPAM driver has %d addresses out, not only its gateways", n)
	}
}

// TestSaysWhatDockerSays attaches and detaches two containers. It compares every request with the
// recorded requests of a prototype, which equal dockerd's.
func TestSaysWhatDockerSays(t *testing.T) {
	want := recorded(t)
	l := newLab(t, &cnmtest.Driver{})
	conf := `"driver":"lab","options":{"foo":"bar"},"ipam":{"type":"cnm-ipam","driver":"lab","subnet":"10.88.0.0/24"},
		"runtimeConfig":{"portMappings":[{"hostPort":18200,"containerPort":80,"protocol":"tcp"}]}`
	pods := []*endpointtest.Pod{l.Pod("pod1", conf), l.Pod("pod2", conf)}
	for _, p := range pods {
		endpointtest.Must(t, p.Do(spec.Add))
	}
	for _, p := range pods {
		endpointtest.Must(t, p.Do(spec.Del))
	}
	var got []string
	for _, c := range l.srv.Calls() {
		// These are requests that every process sends first, and requests that the prototype did not
		// send. The comparison leaves them out.
		switch c.Method {
		case "Plugin.Activate", "NetworkDriver.GetCapabilities", "IpamDriver.GetCapabilities", "NetworkDriver.EndpointOperInfo":
		default:
			got = append(got, c.Method+" "+normal(t, c.Body))
		}
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-recorded +ours):\n%s", d)
	}
}

// recorded returns the requests in the prototype's recording.
func recorded(t *testing.T) (list []string) {
	data, err := os.ReadFile("../testdata/recordings/b-cnm.log")
	endpointtest.Must(t, err)
	for line := range strings.Lines(string(data)) {
		f := strings.SplitN(strings.TrimSpace(line), " ", 4)
		method := strings.TrimPrefix(f[2], "/")
		switch {
		case f[1] != ">>", method == "Plugin.Activate", strings.HasSuffix(method, "GetCapabilities"):
		case strings.HasPrefix(f[3], "(empty"):
			list = append(list, method+" {}")
		default:
			list = append(list, method+" "+normal(t, f[3]))
		}
	}
	return list
}

// normal sorts the keys and removes the values that must differ: ids and paths.
func normal(t *testing.T, body string) string {
	if body == "" {
		return "{}"
	}
	var v map[string]any
	endpointtest.Must(t, json.Unmarshal([]byte(body), &v))
	for _, k := range []string{"NetworkID", "EndpointID"} {
		if s, ok := v[k].(string); ok {
			v[k] = fmt.Sprintf("%d digits", len(s))
		}
	}
	if _, ok := v["SandboxKey"]; ok {
		v["SandboxKey"] = "path"
	}
	out, err := json.Marshal(v)
	endpointtest.Must(t, err)
	return string(out)
}

// TestCapabilities checks that the driver gets the ports, the addresses and the MAC address that
// the runtime sends.
func TestCapabilities(t *testing.T) {
	l := newLab(t, &cnmtest.Driver{RequiresMAC: true})
	p := l.Pod("a", both+`,"endpointOptions":{"my.opt":"v1"},"runtimeConfig":{"mac":"02:42:aa:bb:cc:01","ips":["10.88.0.77","fd88::77"],
		"portMappings":[{"hostPort":8080,"containerPort":80,"protocol":"TCP","hostIP":"127.0.0.1"},{"hostPort":0,"containerPort":53,"protocol":"udp"}]}`).Add()
	l.Want("addresses", p.IP(0)+" "+p.IP(1), "10.88.0.77 fd88::77")
	l.Want("mac", p.Link("eth0").Attrs().HardwareAddr.String(), "02:42:aa:bb:cc:01")
	var ports []cnm.PortBinding
	_, err := l.driver.Opened()[0].Get(cnm.OptionPortMap, &ports)
	endpointtest.Must(t, err)
	if d := cmp.Diff([]cnm.PortBinding{
		{Proto: 6, Port: 80, HostIP: "127.0.0.1", HostPort: 8080, HostPortEnd: 8080}, {Proto: 17, Port: 53},
	}, ports); d != "" {
		t.Error(d)
	}
	options := l.driver.EndpointOptions()[0]
	l.Want("mac option", string(options[cnm.OptionMAC]), `"AkKqu8wB"`)
	l.Want("own option", string(options["my.opt"]), `"v1"`)
	l.Pod("b", both+`,"runtimeConfig":{"ips":["192.0.2.1"]}`).Refused("requested IP address 192.0.2.1 is not in any pool")
	endpointtest.Must(t, p.Do(spec.Del))
	l.clean("after DEL")
}

// An IPAM driver that requires the MAC address gets the one that the interface will have.
func TestMACKnownBefore(t *testing.T) {
	l := newLab(t, &cnmtest.Driver{RequiresMAC: true})
	p := l.Pod("a", both).Add()
	mac := p.Link("eth0").Attrs().HardwareAddr.String()
	sent := 0
	for _, c := range l.srv.Calls() {
		if c.Method == "IpamDriver.RequestAddress" && strings.Contains(c.Body, mac) {
			sent++
		}
	}
	if sent != 2 {
		t.Errorf("%d requests for an address sent %s, not 2", sent, mac)
	}
}

func TestModes(t *testing.T) {
	t.Run("macvlan", func(t *testing.T) {
		l := newLab(t, &cnmtest.Driver{Mode: cnmtest.Macvlan})
		conf := `"options":{"parent":"uplink"},` + both
		a, b := l.Pod("a", conf).Add(), l.Pod("b", conf).Add()
		l.Want("kind", a.Link("eth0").Type(), "macvlan")
		b.Serve("tcp", endpointtest.Join(b.IP(0), "80"))
		l.Want("container to container", a.Ask("tcp", endpointtest.Join(b.IP(0), "80")), "b "+a.IP(0))
		endpointtest.Must(t, a.Do(spec.Del))
		endpointtest.Must(t, b.Do(spec.Del))
		l.clean("after DEL")
	})
	t.Run("self", func(t *testing.T) {
		l := newLab(t, &cnmtest.Driver{Mode: cnmtest.Self})
		p := l.Pod("a", both).Add()
		l.Want("interfaces", fmt.Sprintf("%d %s", len(p.Result.Interfaces), p.Result.Interfaces[0].Name), "1 eth0")
		l.Want("mac", p.Result.Interfaces[0].Mac, p.Link("eth0").Attrs().HardwareAddr.String())
		l.Want("address", p.Result.IPs[0].Address.String(), "10.88.0.2/24")
		endpointtest.Must(t, p.Do(spec.Check))
		endpointtest.Must(t, p.Do(spec.Del))
		l.clean("after DEL")
	})
	t.Run("nothing", func(t *testing.T) {
		l := newLab(t, &cnmtest.Driver{Mode: cnmtest.Nothing})
		p := l.Pod("a", both).Add()
		if len(p.Result.Interfaces) != 0 || len(p.Result.IPs) != 2 {
			t.Errorf("%+v", p.Result)
		}
		endpointtest.Must(t, p.Do(spec.Check))
		endpointtest.Must(t, p.Do(spec.Del))
		l.clean("after DEL")
	})
}

func TestInternal(t *testing.T) {
	l := newLab(t, &cnmtest.Driver{})
	p := l.Pod("a", `"internal":true,"runtimeConfig":{"portMappings":[{"hostPort":1,"containerPort":1}]},`+both).Add()
	if p.Result.IPs[0].Gateway.IsValid() || len(p.Result.Routes) > 0 {
		t.Errorf("%+v", p.Result)
	}
	if n := count(l.srv.Methods(), "NetworkDriver.ProgramExternalConnectivity"); n > 0 {
		t.Error("ports were published")
	}
	l.Want("option", string(l.driver.Networks()[0].Options[cnm.OptionInternal]), "true")
	l.Want("ports sent", string(l.driver.EndpointOptions()[0][cnm.OptionPortMap]), "[]")
}

// TestRoutes sets static routes, and a gateway that is in no subnet of the container.
func TestRoutes(t *testing.T) {
	l := newLab(t, &cnmtest.Driver{Routes: []cnm.StaticRoute{
		{Destination: netip.MustParsePrefix("10.201.0.0/16"), NextHop: netip.MustParseAddr("10.88.0.77")},
		{Destination: netip.MustParsePrefix("10.200.0.0/16"), RouteType: cnm.Connected},
		{Destination: netip.MustParsePrefix("10.88.0.0/24"), RouteType: cnm.Connected}, // the kernel makes this route
	}})
	p := l.Pod("a", both).Add()
	want(t, p, "10.200.0.0/16 via <nil> link", "10.201.0.0/16 via 10.88.0.77 universe", "0.0.0.0/0 via 10.88.0.1 universe",
		"::/0 via fd88::1 universe", "10.88.0.0/24 via <nil> link", "fd88::/64 via <nil> universe")
	endpointtest.Must(t, p.Do(spec.Check))
	l.driver.Routes = nil
	q := l.Pod("b", `"driver":"lab","options":{},`+endpointtest.Static("10.99.0.9/32 169.254.1.1"))
	q.Conf = strings.Replace(q.Conf, `"name": "net"`, `"name": "other"`, 1)
	q.Add()
	want(t, q, "169.254.1.1/32 via <nil> link", "0.0.0.0/0 via 169.254.1.1 universe")
	endpointtest.Must(t, q.Do(spec.Check))
}

func want(t *testing.T, p *endpointtest.Pod, want ...string) {
	t.Helper()
	all, err := p.Conn().RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{LinkIndex: p.Link("eth0").Attrs().Index}, netlink.RT_FILTER_OIF)
	endpointtest.Must(t, err)
	got := map[string]bool{}
	for _, r := range all {
		if (r.Dst.IP.To4() != nil || !r.Dst.IP.IsLinkLocalUnicast()) && !r.Dst.IP.IsMulticast() {
			gw := "<nil>"
			if r.Gw != nil {
				gw = r.Gw.String()
			}
			got[r.Dst.String()+" via "+gw+" "+r.Scope.String()] = true
		}
	}
	set := map[string]bool{}
	for _, w := range want {
		set[w] = true
	}
	if d := cmp.Diff(set, got); d != "" {
		t.Errorf("routes (-want +got):\n%s", d)
	}
}

// TestOnce begins many ADDs at once. They make one network, which remains.
func TestOnce(t *testing.T) {
	l := newLab(t, &cnmtest.Driver{})
	var pods []*endpointtest.Pod
	for i := range 6 {
		pods = append(pods, l.Pod(fmt.Sprintf("p%d", i), both))
	}
	var wg sync.WaitGroup
	errs := make([]error, len(pods))
	for i, p := range pods {
		wg.Go(func() { errs[i] = p.Do(spec.Add) })
	}
	wg.Wait()
	for i, p := range pods {
		endpointtest.Must(t, errs[i])
		endpointtest.Must(t, p.Do(spec.Del))
	}
	methods := l.srv.Methods()
	for _, m := range []string{"NetworkDriver.CreateNetwork", "IpamDriver.RequestPool"} {
		l.Want(m, fmt.Sprint(count(methods, m)), map[bool]string{true: "2", false: "1"}[strings.HasPrefix(m, "Ipam")])
	}
	l.clean("after DEL")
}
