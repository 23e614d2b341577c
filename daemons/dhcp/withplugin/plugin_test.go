// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package withplugin tests the plugin dhcp together with a keeper of leases, ours or the reference's. The tests are not
// the plugin's own, because its program links no keeper.
package withplugin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/conformance"
	"github.com/patchbay-net/patchbay/daemons/test/dhcptest"
	"github.com/patchbay-net/patchbay/internal/dhcprpc"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/dhcp"
	"github.com/patchbay-net/patchbay/plugin/plugintest"
	"github.com/patchbay-net/patchbay/spec"
)

func TestMain(m *testing.M) { plugintest.Main(m, &dhcp.Plugin) }

// lan is a network with a server.
func lan(t *testing.T) *dhcptest.Server {
	dhcptest.LAN(t, "br0", "10.77.0.1/24", "fd77::1/64")
	return dhcptest.Dnsmasq(t, "br0", "--dhcp-range=10.77.0.10,10.77.0.200,255.255.255.0,2m", "--dhcp-option=option:dns-server,10.77.0.1",
		"--dhcp-range=fd77::10,fd77::99,64,2m")
}

func TestContract(t *testing.T) {
	lan(t)
	dhcptest.Serve(t, dhcprpc.DefaultSocket)
	refused := func(about, ipam, msg string) conformance.Refusal {
		return conformance.Refusal{About: about, Conf: conformance.Object{"ipam": json.RawMessage(ipam)}, Code: 7, Msg: msg}
	}
	plugintest.Run(t, &dhcp.Plugin, plugintest.Case{
		Subject: conformance.Subject{
			Type: "dhcp", Kind: "ipam", Again: true, Conf: conformance.Object{"ipam": json.RawMessage(`{"type":"dhcp"}`)},
			Refused: []conformance.Refusal{
				refused("an unknown option", `{"type":"dhcp","request":[{"option":"tea"}]}`, `Can not parse option "tea"`),
				refused("nothing to ask for", `{"type":"dhcp","dhcpv4":false}`, "neither dhcpv4 nor dhcpv6"),
				refused("a negative metric", `{"type":"dhcp","priority":-1}`, "invalid priority"),
			},
		},
		Prepare: func(t *testing.T, a *conformance.Container) *spec.Result {
			dhcptest.Quiet(t, a.NetNS)
			dhcptest.Plug(t, "br0", a.NetNS)
			dhcptest.Up(t, a.NetNS)
			return nil
		},
		BreakError: "no lease is held",
	})
}

// node calls the plugin in process.
type node struct {
	*testing.T
	ns   string
	warn dhcptest.Log
	dry  func(string)
}

func newNode(t *testing.T) *node {
	n := &node{T: t, ns: nettest.NewNS(t, "c1")}
	return n
}

func (n *node) conf(ipam, more string) string {
	if ipam != "" {
		ipam = "," + ipam
	}
	return `{"cniVersion":"1.1.0","name":"net","ipam":{"type":"dhcp"` + ipam + `}` + more + `}`
}

func (n *node) call(verb spec.Verb, ns, conf string) (*spec.Result, error) {
	n.Helper()
	b := plugin.Builtin{NewSession: func() *plugin.Session {
		s := plugin.NewSession([]*plugin.Plugin{&dhcp.Plugin})
		s.Stderr, s.Dry = &n.warn, n.dry
		return s
	}}
	out, err := b.Invoke(n.Context(), "dhcp", &spec.Call{Verb: verb, ContainerID: "c1", NetNS: ns, IfName: "eth0", Path: []string{"/nonexistent"}, Config: []byte(conf)})
	if err != nil || verb != spec.Add {
		return nil, err
	}
	return spec.ParseResult(out, "1.1.0")
}

// Without a keeper ADD fails with advice, and DEL succeeds.
func TestNoKeeper(t *testing.T) {
	n := newNode(t)
	for _, verb := range []spec.Verb{spec.Add, spec.Check, spec.Status} {
		_, err := n.call(verb, n.ns, n.conf("", ""))
		if spec.ErrorCode(err) != spec.CodeNotAvailable || !strings.Contains(err.Error(), "error dialing DHCP daemon: ") || !strings.Contains(err.Error(), "patchbayd dhcp") {
			t.Errorf("%s: %v", verb, err)
		}
	}
	file := dhcprpc.LeaseFile("/run/patchbay", owner.Of("net", "c1", "eth0"))
	if err := errors.Join(os.MkdirAll("/run/patchbay/dhcp", 0o700), os.WriteFile(file, []byte("{}"), 0o600)); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if _, err := n.call(spec.Del, "", n.conf("", "")); err != nil {
			t.Errorf("DEL: %v", err)
		}
	}
	if !strings.Contains(n.warn.String(), "is left to expire") {
		t.Errorf("DEL warns: %s", n.warn.String())
	}
	if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the next keeper would go on with it: %v", err)
	}
	for _, valid := range []string{"", `,"cni.dev/valid-attachments":[]`} {
		if _, err := n.call(spec.GC, "", n.conf("", valid)); err != nil {
			t.Errorf("GC: %v", err)
		}
	}
}

// CHECK compares the previous result with the server's current answer.
func TestCheckAgainstResult(t *testing.T) {
	lan(t)
	dhcptest.Serve(t, "/run/other.sock")
	n := newNode(t)
	dhcptest.Plug(t, "br0", n.ns)
	const at = `"daemonSocketPath":"/run/other.sock"`
	r, err := n.call(spec.Add, n.ns, n.conf(at, ""))
	if err != nil {
		t.Fatal(err)
	}
	if r.DNS.Nameservers[0] != "10.77.0.1" || r.Routes[0].GW.String() != "10.77.0.1" {
		t.Errorf("%+v", r)
	}
	for addr, want := range map[string]string{r.IPs[0].Address.String(): "", "10.77.0.9/24": "dhcp: Failed to match addr " + r.IPs[0].Address.Addr().String()} {
		_, err := n.call(spec.Check, n.ns, n.conf(at, fmt.Sprintf(`,"prevResult":{"cniVersion":"1.1.0","ips":[{"address":%q}]}`, addr)))
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", addr, err)
		}
	}
	// DEL finds the keeper by its record, even if the configuration has changed.
	if _, err := n.call(spec.Del, n.ns, `{"cniVersion":"1.1.0","name":"net"}`); err != nil {
		t.Error(err)
	}
	if _, err := n.call(spec.Check, n.ns, n.conf(at, "")); err == nil || !strings.Contains(err.Error(), "no lease is held") {
		t.Error(err)
	}
}

func TestDry(t *testing.T) {
	n := newNode(t)
	var said []string
	n.dry = func(line string) { said = append(said, line) }
	r, err := n.call(spec.Add, n.ns, n.conf(`"dhcpv6":true`, ""))
	if err != nil || len(r.IPs) != 2 || len(said) != 2 {
		t.Errorf("%+v, %v, %v", r, err, said)
	}
}
