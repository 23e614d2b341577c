// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hostlocal

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/plugintest"
	"github.com/patchbay-net/patchbay/spec"
)

func TestMain(m *testing.M) { plugintest.Main(m, &Plugin) }

func TestContract(t *testing.T) {
	plugintest.Run(t, &Plugin, plugintest.Case{Subject: plugintest.Subject(t, "host-local")})
}

// node is a place for state, and calls of the plugin on it.
type node struct {
	*testing.T
	data, run, cni, proc string

	netns, args, version string
	dry                  func(string)
	fault                func(string) error
}

func newNode(t *testing.T) *node {
	return &node{T: t, data: t.TempDir(), run: t.TempDir(), cni: t.TempDir(), proc: "/proc",
		netns: nettest.NewNS(t, "c1"), version: "1.1.0"}
}

// call runs a verb with a configuration. ipam is the section ipam without type and dataDir; extra
// is "key":value, or empty.
func (n *node) call(verb spec.Verb, id, ipam, extra string) (*spec.Result, error) {
	n.Helper()
	if extra != "" {
		extra = "," + extra
	}
	if ipam != "" {
		ipam = "," + ipam
	}
	return n.raw(verb, id, fmt.Sprintf(`{"cniVersion":%q,"name":"net","type":"x","ipam":{"type":"host-local","dataDir":%q%s}%s}`,
		n.version, n.data, ipam, extra))
}

func (n *node) raw(verb spec.Verb, id, conf string) (*spec.Result, error) {
	n.Helper()
	b := plugin.Builtin{NewSession: func() *plugin.Session {
		s := plugin.NewSession([]*plugin.Plugin{&Plugin})
		s.Paths.Run, s.Paths.CNI, s.Paths.Proc, s.Dry, s.Fault = n.run, n.cni, n.proc, n.dry, n.fault
		return s
	}}
	out, err := b.Invoke(context.Background(), "host-local", &spec.Call{Verb: verb, ContainerID: id, IfName: "eth0",
		NetNS: n.netns, Path: []string{n.data}, Args: n.args, Config: []byte(conf)})
	if err != nil || len(out) == 0 {
		return nil, err
	}
	return spec.ParseResult(out, n.version)
}

func (n *node) adds(id, ipam, extra, want string) {
	n.Helper()
	r, err := n.call(spec.Add, id, ipam, extra)
	if err != nil {
		n.Fatal(err)
	}
	var got []string
	for _, ip := range r.IPs {
		got = append(got, ip.Address.String()+" via "+ip.Gateway.String())
	}
	if s := strings.Join(got, ", "); s != want {
		n.Fatalf("%s got %s, want %s", id, s, want)
	}
}

func (n *node) fails(verb spec.Verb, id, ipam, extra string, code spec.Code, msg string) {
	n.Helper()
	_, err := n.call(verb, id, ipam, extra)
	if err == nil || spec.AsError(err).Msg != msg || spec.ErrorCode(err) != code {
		n.Errorf("%s %s: code %d, %v\nwant code %d, %s", verb, ipam, spec.ErrorCode(err), err, code, msg)
	}
}

func (n *node) works(verb spec.Verb, id, ipam, extra string) {
	n.Helper()
	if _, err := n.call(verb, id, ipam, extra); err != nil {
		n.Errorf("%s %s: %v", verb, ipam, err)
	}
}

const small = `"subnet":"10.1.0.0/30"` // one address

func TestSources(t *testing.T) {
	n := newNode(t)
	flat := `"subnet":"10.1.0.0/24","gateway":"10.1.0.254","ranges":[[{"subnet":"fd00::/64"}]]`
	n.adds("c1", flat, "", "10.1.0.1/24 via 10.1.0.254, fd00::2/64 via fd00::1")
	n.adds("c2", flat, `"runtimeConfig":{"IPRanges":[[{"Subnet":"10.9.0.0/24"}]]}`,
		"10.9.0.2/24 via 10.9.0.1, 10.1.0.2/24 via 10.1.0.254, fd00::3/64 via fd00::1")
	n.args = "K8S_POD_NAME=x;IP=10.1.0.50"
	n.adds("c3", flat, `"args":{"cni":{"ips":["fd00::50/64"],"other":7}}`, "10.1.0.50/24 via 10.1.0.254, fd00::50/64 via fd00::1")
	n.args = ""
	n.adds("c4", flat, `"runtimeConfig":{"ips":["10.1.0.60/24","fd00::60"]}`, "10.1.0.60/24 via 10.1.0.254, fd00::60/64 via fd00::1")
}

func TestRefused(t *testing.T) {
	n := newNode(t)
	const conf, env = spec.CodeInvalidConfig, spec.CodeInvalidEnvironment
	for _, tc := range []struct {
		ipam, extra, args string
		code              spec.Code
		msg               string
	}{
		{"", "", "", conf, "no IP ranges specified"},
		{`"ranges":[[]]`, "", "", conf, "invalid range set 0: empty range set"},
		{`"subnet":"10.1.0.0"`, "", "", conf, "invalid CIDR address: 10.1.0.0"},
		{`"subnet":"10.1.0.0/31"`, "", "", conf, "invalid range set 0: Network 10.1.0.0/31 too small to allocate from"},
		{`"ranges":[[{"rangeStart":"10.1.0.1"}]]`, "", "", conf, "invalid range set 0: IP <nil> not v4 nor v6"},
		{small + `,"gateway":"nope"`, "", "", conf, "invalid IP address: nope"},
		{small + `,"routes":[{"gw":"10.1.0.1"}]`, "", "", conf, "invalid route 0: no dst"},
		{small + `,"ranges":[[{"subnet":"10.1.0.0/29"}]]`, "", "", conf, "range set 0 overlaps with 1"},
		{small, `"runtimeConfig":{"ips":["10.1.0"]}`, "", conf, "cannot understand ip: invalid IP address 10.1.0"},
		{small, `"args":{"cni":{"ips":[""]}}`, "", conf, "cannot understand ip: invalid IP address "},
		{small, `"runtimeConfig":{"ips":["10.2.0.9"]}`, "", spec.CodeInternal, "failed to allocate all requested IPs: 10.2.0.9"},
		{small, `"runtimeConfig":{"ips":["10.1.0.1"]}`, "", spec.CodeInternal, "failed to allocate for range 0: requested ip 10.1.0.1 is subnet's gateway"},
		{small, "", "IP=x", env, `ARGS: error parsing value of pair "IP=x": invalid IP address x`},
		{small, "", "IP", env, `ARGS: invalid pair "IP"`},
	} {
		n.args = tc.args
		n.fails(spec.Add, "c1", tc.ipam, tc.extra, tc.code, tc.msg)
	}
	n.args = ""
	if _, err := n.raw(spec.Add, "c1", `{"cniVersion":"1.0.0","name":"net"}`); err == nil || spec.AsError(err).Msg != "IPAM config missing 'ipam' key" {
		t.Error(err)
	}
	n.version = "0.2.0"
	n.fails(spec.Add, "c1", small+`,"ranges":[[{"subnet":"10.2.0.0/24"}]]`, "", conf, "CNI version 0.2.0 does not support more than 1 address per family")
	n.adds("c1", small+`,"ranges":[[{"subnet":"fd00::/64"}]]`, "", "10.1.0.2/30 via 10.1.0.1, fd00::2/64 via fd00::1")
	n.works(spec.Del, "c1", "", "")
}

func TestResolvConf(t *testing.T) {
	n := newNode(t)
	file := filepath.Join(n.data, "resolv.conf")
	text := "# nameserver 9.9.9.9\n;x y\nnameserver 10.0.0.1\n nameserver\tfd00::1  \ndomain a.b\nsearch a b\nsearch c\noptions ndots:5 edns0\nnameserver\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	r, err := n.call(spec.Add, "c1", fmt.Sprintf(`%s,"resolvConf":%q,"routes":[{"dst":"0.0.0.0/0","gw":"10.1.0.9","mtu":1400}]`, small, file), "")
	if err != nil {
		t.Fatal(err)
	}
	got, _ := json.Marshal(r)
	want := `{"cniVersion":"1.1.0","ips":[{"address":"10.1.0.2/30","gateway":"10.1.0.1"}],"routes":[{"dst":"0.0.0.0/0","gw":"10.1.0.9","mtu":1400}],` +
		`"dns":{"nameservers":["10.0.0.1","fd00::1"],"domain":"a.b","search":["a","b","c"],"options":["ndots:5","edns0"]}}`
	if string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	_, err = n.call(spec.Add, "c2", small+`,"resolvConf":"/nonexistent"`, "")
	if !errors.Is(err, fs.ErrNotExist) {
		t.Error(err)
	}
}

// DEL needs only names. It needs no valid configuration, no old directory in the configuration,
// and no namespace.
func TestDelAlwaysReleases(t *testing.T) {
	n := newNode(t)
	for _, conf := range []string{
		fmt.Sprintf(`{"cniVersion":"1.0.0","name":"net","ipam":{"type":"host-local","dataDir":%q,"ranges":[[]]}}`, n.data),
		fmt.Sprintf(`{"cniVersion":"1.0.0","name":"net","ipam":{"dataDir":%q,"subnet":7}}`, n.data),
		`{"cniVersion":"1.0.0","name":"net","ipam":{"type":"host-local","dataDir":"/somewhere/else"}}`,
		`{"cniVersion":"1.0.0","name":"net","ipam":{"dataDir":7}}`,
		`{"cniVersion":"1.0.0","name":"net"}`,
	} {
		n.netns = "/run/netns/c1"
		n.adds("c1", small, "", "10.1.0.2/30 via 10.1.0.1")
		n.netns = ""
		for range 2 {
			if _, err := n.raw(spec.Del, "c1", conf); err != nil {
				t.Errorf("%s: %v", conf, err)
			}
		}
	}
	// Without the record DEL has only the directory of the configuration.
	n.netns = "/run/netns/c1"
	n.adds("c1", small, "", "10.1.0.2/30 via 10.1.0.1")
	if err := os.RemoveAll(n.run); err != nil {
		t.Fatal(err)
	}
	n.works(spec.Del, "c1", "", "")
	n.adds("c2", small, "", "10.1.0.2/30 via 10.1.0.1")
}

func TestCheck(t *testing.T) {
	n := newNode(t)
	lost := "host-local: Failed to find address added by container c1"
	n.fails(spec.Check, "c1", small, "", spec.CodeInternal, lost)
	n.adds("c1", small, "", "10.1.0.2/30 via 10.1.0.1")
	n.works(spec.Check, "c1", small, "")
	prev := `"prevResult":{"cniVersion":"1.1.0","ips":[{"address":"%s"}]}`
	n.works(spec.Check, "c1", small, fmt.Sprintf(prev, "10.1.0.2/30"))
	n.works(spec.Check, "c1", small, fmt.Sprintf(prev, "192.0.2.9/24")) // the address is another plugin's
	n.fails(spec.Check, "c1", small, fmt.Sprintf(prev, "10.1.0.1/30"), spec.CodeInternal, lost)
	n.fails(spec.Check, "c2", small, "", spec.CodeInternal, strings.Replace(lost, "c1", "c2", 1))
	if err := os.WriteFile(filepath.Join(n.data, "net", "10.1.0.2"), []byte("c2\r\neth0"), 0o600); err != nil {
		t.Fatal(err)
	}
	n.fails(spec.Check, "c1", small, "", spec.CodeInternal, lost)
}

func TestStatus(t *testing.T) {
	n := newNode(t)
	n.works(spec.Status, "", small, "")
	if _, err := os.Stat(filepath.Join(n.data, "net")); !errors.Is(err, fs.ErrNotExist) {
		t.Error("STATUS made the directory")
	}
	n.works(spec.Status, "", "", "") // ranges may come with each ADD
	n.fails(spec.Status, "", `"subnet":"10.1.0.0/31"`, "", spec.CodeInvalidConfig, "invalid range set 0: Network 10.1.0.0/31 too small to allocate from")
	n.adds("c1", small, "", "10.1.0.2/30 via 10.1.0.1")
	n.fails(spec.Status, "", small, "", spec.CodeNotAvailable, "range 0: no IP addresses available in range set: 10.1.0.1-10.1.0.2")
	n.fails(spec.Add, "c2", small, "", spec.CodeNotAvailable, "failed to allocate for range 0: no IP addresses available in range set: 10.1.0.1-10.1.0.2")
	n.works(spec.Del, "c1", "", "")
	n.works(spec.Status, "", small, "")
}

func TestGC(t *testing.T) {
	n := newNode(t)
	conf := `"subnet":"10.1.0.0/24"`
	for i, id := range []string{"c1", "c2", "c3"} {
		n.adds(id, conf, "", fmt.Sprintf("10.1.0.%d/24 via 10.1.0.1", i+2))
	}
	elsewhere := t.TempDir()
	here := n.data
	n.data = elsewhere
	n.adds("c4", conf, "", "10.1.0.2/24 via 10.1.0.1")
	n.data = here

	n.works(spec.GC, "", conf, "") // without a list nothing may be removed
	n.works(spec.Check, "c1", conf, "")
	n.works(spec.GC, "", `"subnet":"broken"`, `"cni.dev/valid-attachments":[{"containerID":"c2","ifname":"eth0"},{"containerID":"c3","ifname":"eth7"}]`)
	n.works(spec.Check, "c2", conf, "")
	for _, id := range []string{"c1", "c3"} {
		n.fails(spec.Check, id, conf, "", spec.CodeInternal, "host-local: Failed to find address added by container "+id)
	}
	if _, err := os.Stat(filepath.Join(elsewhere, "net", "10.1.0.2")); !errors.Is(err, fs.ErrNotExist) {
		t.Error("GC did not look where the record says:", err)
	}
	records, err := filepath.Glob(n.run + "/attachments/net/*")
	if err != nil || len(records) != 1 {
		t.Errorf("records %v, %v", records, err)
	}
}

func TestExplain(t *testing.T) {
	n := newNode(t)
	var said []string
	n.dry = func(line string) { said = append(said, line) }
	n.adds("c1", small, "", "10.1.0.2/30 via 10.1.0.1")
	if len(said) != 1 || said[0] != "reserve 10.1.0.2 in "+n.data+"/net" {
		t.Errorf("said %q", said)
	}
	for _, dir := range []string{n.data, n.run} {
		if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
			t.Errorf("left in %s: %v, %v", dir, left, err)
		}
	}
}

// If a step fails, the addresses that were taken are released.
func TestFaults(t *testing.T) {
	n := newNode(t)
	fault := errors.New("fault")
	n.fault = func(step string) error {
		if step == "commit" {
			return fault
		}
		return nil
	}
	_, err := n.call(spec.Add, "c1", small, "")
	if !errors.Is(err, fault) {
		t.Fatal(err)
	}
	n.fault = nil
	n.adds("c2", small, "", "10.1.0.2/30 via 10.1.0.1")
}

func FuzzConf(f *testing.F) {
	f.Add(`{"cniVersion":"1.0.0","name":"n","ipam":{"subnet":"10.1.0.0/24","ranges":[[{"subnet":"fd00::/64"}]]},"args":{"cni":{"ips":["10.1.0.9"]}}}`, "IP=10.1.0.7")
	f.Add(`{"name":"n","ipam":{"ranges":[[{}],[]]},"runtimeConfig":{"ipRanges":[[{"subnet":"::/0"}]],"ips":["fd00::1/64"]}}`, "")
	f.Add(`{"name":"n","ipam":{"subnet":"10.0.0.0/30","rangeStart":"10.0.0.2","rangeEnd":"10.0.0.1"}}`, "IP=")
	f.Fuzz(func(t *testing.T, conf, args string) {
		r := &plugin.Request{Plugin: &Plugin, Call: &spec.Call{Config: []byte(conf), Args: args}, Version: "1.0.0", Session: plugin.NewSession(nil)}
		p, err := load(r)
		if err != nil {
			return
		}
		for _, set := range p.sets {
			for i := range set {
				if !set[i].Contains(set[i].Start) || !set[i].Contains(set[i].End) {
					t.Errorf("%s: range %s", conf, set[i].String())
				}
			}
		}
		for _, a := range p.requested {
			if !a.IsValid() || a.Zone() != "" {
				t.Errorf("requested %v", a)
			}
		}
	})
}
