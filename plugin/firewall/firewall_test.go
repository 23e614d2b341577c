// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"bytes"
	"context"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/test/endpointtest"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/internal/test/nettest/node"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/plugintest"
	"github.com/patchbay-net/patchbay/spec"
)

func TestMain(m *testing.M) { plugintest.Main(m, &Plugin) }

// attachment is one attachment as a runtime requests it.
type attachment struct {
	id, netns string
	prev      *spec.Result
	fault     func(string) error
	dry       func(string)
	stderr    bytes.Buffer
}

func of(c *node.Container) *attachment {
	return &attachment{id: c.Name, netns: c.Path, prev: c.Result()}
}

// call runs a verb in process; conf is merged over the head.
func (a *attachment) call(t testing.TB, verb spec.Verb, conf string) error {
	t.Helper()
	_, err := endpointtest.Chained{
		Plugin: &Plugin, Network: "net", Prev: a.prev,
		Session: func(s *plugin.Session) { s.Fault, s.Stderr, s.Dry = a.fault, &a.stderr, a.dry },
		Call:    spec.Call{Verb: verb, ContainerID: a.id, NetNS: a.netns, IfName: "eth0"},
	}.Do(context.Background(), t, conf)
	return err
}

func (a *attachment) must(t testing.TB, verb spec.Verb, conf string) {
	t.Helper()
	if err := a.call(t, verb, conf); err != nil {
		t.Fatalf("%s: %v", verb, err)
	}
}

// del is a DEL with nothing but the names: no namespace, result or options.
func (a *attachment) del(t testing.TB) {
	t.Helper()
	bare := attachment{id: a.id}
	bare.must(t, spec.Del, `{}`)
}

func expect(t *testing.T, about string, from *node.Space, addr, want string) {
	t.Helper()
	from.Expect(about, "tcp", addr, want)
}

// sh runs shell lines and returns what they print.
func sh(t testing.TB, lines string) string {
	t.Helper()
	cmd := exec.Command("sh", "-ec", lines)
	cmd.Env = append(os.Environ(), "XTABLES_LOCKFILE="+filepath.Join(t.TempDir(), "lock"))
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", lines, err, out)
	}
	return string(out)
}

const rules = "iptables-nft -S; ip6tables-nft -S"

// reset empties the firewall before and after a test.
func reset(t testing.TB) {
	nettest.Need(t, nettest.Program("nft"))
	sh(t, "nft flush ruleset")
	t.Cleanup(func() { sh(t, "nft flush ruleset") })
}

// elements counts the elements of our sets.
func elements(t testing.TB) (n int) {
	t.Helper()
	c := nft.Open("")
	defer c.Close() //nolint:errcheck // a test
	for _, set := range []string{nft.SetIsolation, nft.SetBridgeOK, nft.SetApart, nft.SetFastPath, nft.SetOwners} {
		list, err := c.List(set)
		if err != nil {
			t.Fatal(err)
		}
		n += len(list)
	}
	return n
}

// nothingLeft checks that nothing is left that an attachment may make.
func nothingLeft(t testing.TB, before string) {
	t.Helper()
	if n := elements(t); n != 0 {
		t.Errorf("%d elements are left", n)
	}
	for _, pattern := range []string{"/run/patchbay/attachments/*/*", "/run/patchbay/shared/*"} {
		if left, err := filepath.Glob(pattern); err != nil || len(left) > 0 {
			t.Errorf("left: %v, %v", left, err)
		}
	}
	if before == "" {
		return // nothing made rules
	}
	if got := sh(t, rules); got != before {
		t.Errorf("rules left:\n%s\nwas:\n%s", got, before)
	}
}

// Where FORWARD drops, a container's traffic passes with the plugin and is dropped without it.
// This holds in both families, for iptables-nft, for Docker and for the operator's own chains.
func TestForwardDrop(t *testing.T) {
	nettest.Need(t, nettest.Program("iptables-nft"))
	for name, setup := range map[string]string{
		"policy": "iptables-nft -P FORWARD DROP; ip6tables-nft -P FORWARD DROP",
		"rule": `iptables-nft -A FORWARD -j REJECT --reject-with icmp-admin-prohibited
			ip6tables-nft -A FORWARD -j DROP`,
		"docker": `for i in iptables-nft ip6tables-nft; do $i -N DOCKER-USER; $i -A DOCKER-USER -j RETURN
			$i -A FORWARD -j DOCKER-USER; $i -P FORWARD DROP; done`,
	} {
		t.Run(name, func(t *testing.T) {
			reset(t)
			n := node.New(t)
			n.BridgeNetfilter(false)
			c := n.Bridge("cni0", "10.1.0.1/24", "fd00:1::1/64").Container("c1", "10.1.0.5/24", "fd00:1::5/64")
			n.Client.Serve("tcp", ":80")
			c.Serve("tcp", ":80")
			sh(t, setup)
			before := sh(t, rules)
			passes := func(about, want4, want6 string) {
				t.Helper()
				expect(t, about, c.Space, node.Client4+":80", want4)
				expect(t, about+", IPv6", c.Space, "["+node.Client6+"]:80", want6)
			}
			blocked := c.AskBriefly("tcp", node.Client4+":80")
			if strings.HasPrefix(blocked, "client") {
				t.Fatalf("without the plugin the container heard %q", blocked)
			}
			a := of(c)
			a.must(t, spec.Add, `{}`)
			a.must(t, spec.Check, `{}`)
			passes("with the plugin", "client 10.1.0.5", "client fd00:1::5")
			// A port that another program published can be reached, and nothing else can.
			sh(t, `nft "add table inet published; add chain inet published pre { type nat hook prerouting priority -100; };
				add rule inet published pre ip daddr `+node.Uplink4+` tcp dport 8080 dnat ip to 10.1.0.5:80"`)
			expect(t, "published", n.Client, node.Uplink4+":8080", "c1 "+node.Client4)
			if got := n.Client.AskBriefly("tcp", "10.1.0.5:80"); strings.HasPrefix(got, "c1") {
				t.Errorf("from outside to the container itself: %q", got)
			}
			sh(t, "nft delete table inet published")
			second := of(c)
			second.id = "c2"
			second.must(t, spec.Add, `{}`)
			second.del(t)
			passes("while one attachment stands", "client 10.1.0.5", "client fd00:1::5")
			a.del(t)
			passes("after DEL", blocked, "timeout")
			nothingLeft(t, before)
		})
	}
}

// The operator's chain comes first, whatever its name.
func TestAdminChain(t *testing.T) {
	nettest.Need(t, nettest.Program("iptables-nft"))
	reset(t)
	n := node.New(t)
	c := n.Bridge("cni0", "10.1.0.1/24").Container("c1", "10.1.0.5/24")
	n.Client.Serve("tcp", ":80")
	n.Client.Serve("tcp", ":81")
	sh(t, "iptables-nft -P FORWARD DROP; iptables-nft -N MINE; iptables-nft -A MINE -p tcp --dport 81 -j DROP")
	a := of(c)
	conf := `{"iptablesAdminChainName": "MINE", "backend": "iptables", "ingressPolicy": "same-bridge"}`
	a.must(t, spec.Add, conf)
	a.must(t, spec.Check, conf)
	expect(t, "allowed", c.Space, node.Client4+":80", "client 10.1.0.5")
	expect(t, "overridden", c.Space, node.Client4+":81", "timeout")
	sh(t, "nft add rule inet patchbay admin tcp dport 80 drop")
	expect(t, "overridden in our table", c.Space, node.Client4+":80", "timeout")
	a.del(t)
	if got := sh(t, rules); !strings.Contains(got, "-A MINE -p tcp -m tcp --dport 81 -j DROP") || strings.Contains(got, "CNI-FORWARD") {
		t.Errorf("the operator's chain must stay and ours must go:\n%s", got)
	}
	if got := sh(t, "nft list chain inet patchbay admin"); !strings.Contains(got, "dport 80 drop") {
		t.Errorf("the operator's rules are gone: %s", got)
	}
}

// The test checks which traffic each policy lets pass: between two bridges with the policy, on
// one bridge, from a bridge without a policy and from outside.
func TestIngressPolicy(t *testing.T) {
	for _, tc := range []struct {
		policy          string
		sameBridge, far string
	}{
		{"", "c2 10.1.0.5", "c3 10.1.0.5"},
		{"open", "c2 10.1.0.5", "c3 10.1.0.5"},
		{"same-bridge", "c2 10.1.0.5", "timeout"},
		{"isolated", "timeout", "timeout"},
	} {
		t.Run("policy "+tc.policy, func(t *testing.T) {
			reset(t)
			n := node.New(t)
			n.BridgeNetfilter(true) // without br_netfilter, bridged frames meet no IP firewall
			one, two, free := n.Bridge("cni0", "10.1.0.1/24"), n.Bridge("cni1", "10.2.0.1/24"), n.Bridge("cni2", "10.3.0.1/24")
			containers := []*node.Container{one.Container("c1", "10.1.0.5/24"), one.Container("c2", "10.1.0.6/24"),
				two.Container("c3", "10.2.0.5/24")}
			other := free.Container("c4", "10.3.0.5/24")
			conf := `{"ingressPolicy": "` + tc.policy + `"}`
			for _, c := range containers {
				c.Serve("tcp", ":80")
				of(c).must(t, spec.Add, conf)
				of(c).must(t, spec.Check, conf)
			}
			n.Client.Serve("tcp", ":80")
			c1 := containers[0]
			expect(t, "same bridge", c1.Space, "10.1.0.6:80", tc.sameBridge)
			expect(t, "other bridge", c1.Space, "10.2.0.5:80", tc.far)
			expect(t, "out", c1.Space, node.Client4+":80", "client 10.1.0.5")
			expect(t, "in from outside", n.Client, "10.1.0.5:80", "c1 "+node.Client4)
			expect(t, "in from a bridge without policy", other.Space, "10.1.0.5:80", "c1 10.3.0.5")
			expect(t, "in from the host", n.Host, "10.1.0.5:80", "c1 10.1.0.1")
			for _, c := range containers {
				of(c).del(t)
			}
			expect(t, "other bridge after DEL", c1.Space, "10.2.0.5:80", "c3 10.1.0.5")
			nothingLeft(t, "")
		})
	}
}

// Two networks share one bridge. The stricter policy decides, in whatever order they came. So if
// an operator tightens a policy, it holds before the last old container is gone.
func TestStricterPolicyWins(t *testing.T) {
	reset(t)
	n := node.New(t)
	n.BridgeNetfilter(true)
	br := n.Bridge("cni0", "10.1.0.1/24")
	one, two := br.Container("c1", "10.1.0.5/24"), br.Container("c2", "10.1.0.6/24")
	two.Serve("tcp", ":80")
	of(one).must(t, spec.Add, `{"ingressPolicy": "isolated"}`)
	of(two).must(t, spec.Add, `{"ingressPolicy": "same-bridge"}`)
	expect(t, "both policies", one.Space, "10.1.0.6:80", "timeout")
	of(one).del(t)
	expect(t, "same-bridge alone", one.Space, "10.1.0.6:80", "c2 10.1.0.5")
	of(two).del(t)
	nothingLeft(t, "")
}

func TestRefused(t *testing.T) {
	n := node.New(t)
	c := n.Bridge("cni0", "10.1.0.1/24").Container("c1", "10.1.0.5/24")
	noInterfaces, noName := *c.Result(), *c.Result()
	noInterfaces.Interfaces = nil
	noInterfaces.IPs = nil
	everything := *c.Result()
	everything.IPs = []spec.IPConfig{{Address: netip.MustParsePrefix("172.20.0.5/0")}}
	noName.Interfaces[0].Name = ""
	inside := *c.Result()
	inside.Interfaces = slices.Clone(inside.Interfaces[2:])
	inside.IPs[0].Interface = new(int)
	for _, tc := range []struct {
		name, conf string
		prev       *spec.Result
		msg        string
		code       spec.Code
	}{
		{"policy", `{"ingressPolicy": "closed"}`, c.Result(), `unknown ingress policy: "closed"`, spec.CodeInvalidConfig},
		{"no prevResult", `{}`, nil, "missing prevResult from earlier plugin", spec.CodeInvalidConfig},
		{"a prefix that is everything", `{}`, &everything, "address 172.20.0.5/0: a prefix of 0 bits", spec.CodeInvalidConfig},
		{"no interfaces", `{"ingressPolicy": "isolated"}`, &noInterfaces,
			`interface needs to be set for ingress policy "isolated", make sure to chain "firewall" plugin with "bridge"`, spec.CodeInvalidConfig},
		{"no bridge name", `{"ingressPolicy": "same-bridge"}`, &noName, "got empty bridge name", spec.CodeInvalidConfig},
		{"an interface in the container", `{"ingressPolicy": "isolated"}`, &inside,
			`ingress policy "isolated" applies to a bridge, and the first interface of prevResult, "eth0", is in the container`, spec.CodeInvalidConfig},
		{"a type", `{"backend": 1}`, c.Result(), "failed to load netconf", spec.CodeDecoding},
		{"a chain that is an option", `{"iptablesAdminChainName": "-j"}`, c.Result(), "invalid iptablesAdminChainName", spec.CodeInvalidConfig},
		{"a long chain", `{"iptablesAdminChainName": "a2345678901234567890123456789"}`, c.Result(), "invalid iptablesAdminChainName", spec.CodeInvalidConfig},
		{"a zone", `{"firewalldZone": "a b"}`, c.Result(), "invalid firewalldZone", spec.CodeInvalidConfig},
		{"firewalld is not there", `{"backend": "firewalld"}`, c.Result(), "firewalld is not running", spec.CodeNotAvailable},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a := of(c)
			a.prev = tc.prev
			for _, verb := range []spec.Verb{spec.Add, spec.Check} {
				err := a.call(t, verb, tc.conf)
				if err == nil || !strings.Contains(err.Error(), tc.msg) || spec.ErrorCode(err) != tc.code {
					t.Errorf("%s: %v (code %d), want %q (code %d)", verb, err, spec.ErrorCode(err), tc.msg, tc.code)
				}
			}
		})
	}
}
