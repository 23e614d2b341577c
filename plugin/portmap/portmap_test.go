// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package portmap

import (
	"bytes"
	"context"
	"os/exec"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/owner"
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
	network, id, ifName, netns string
	prev                       *spec.Result
	fault                      func(string) error
	dry                        func(string)
	stderr                     bytes.Buffer
}

func of(c *node.Container) *attachment {
	return &attachment{network: "net", id: c.Name, ifName: "eth0", netns: c.Path, prev: c.Result()}
}

// call runs a verb in process; conf is merged over the head.
func (a *attachment) call(t testing.TB, verb spec.Verb, conf string) error {
	t.Helper()
	return a.callIn(context.Background(), t, verb, conf)
}

func (a *attachment) callIn(ctx context.Context, t testing.TB, verb spec.Verb, conf string) error {
	t.Helper()
	_, err := endpointtest.Chained{
		Plugin: &Plugin, Network: a.network, Prev: a.prev,
		Session: func(s *plugin.Session) { s.Fault, s.Stderr, s.Dry = a.fault, &a.stderr, a.dry },
		Call:    spec.Call{Verb: verb, ContainerID: a.id, NetNS: a.netns, IfName: a.ifName},
	}.Do(ctx, t, conf)
	return err
}

func (a *attachment) must(t testing.TB, verb spec.Verb, conf string) {
	t.Helper()
	if err := a.call(t, verb, conf); err != nil {
		t.Fatalf("%s: %v", verb, err)
	}
}

// ports is a configuration with these mappings, in JSON.
func ports(mappings string, more ...string) string {
	return `{"runtimeConfig": {"portMappings": [` + mappings + `]}` + strings.Join(append([]string{""}, more...), ", ") + `}`
}

const webPort = `{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}`

// expect sends a request and compares the answer.
func expect(t *testing.T, about string, from *node.Space, network, addr, want string) {
	t.Helper()
	from.Expect(about, network, addr, want)
}

// elements counts the elements of our sets.
func elements(t *testing.T) int {
	t.Helper()
	c := nft.Open("")
	defer c.Close() //nolint:errcheck // a test
	list, err := c.List(nft.SetLocalNet)
	if err != nil {
		t.Fatal(err)
	}
	owned, err := c.Owned()
	if err != nil {
		t.Fatal(err)
	}
	return len(list) + len(owned)
}

// flush is `nft flush ruleset`, by an operator or a firewall's restart.
func flush(t *testing.T) {
	t.Helper()
	nftTool(t, "flush", "ruleset")
}

func nftTool(t testing.TB, args ...string) string {
	t.Helper()
	nettest.Need(t, nettest.Program("nft"))
	out, err := exec.Command("nft", args...).CombinedOutput()
	if err != nil {
		t.Fatalf("nft %v: %v\n%s", args, err, out)
	}
	return string(out)
}

// world is a node with a dual stack bridge and two containers that serve.
func world(t *testing.T) (n *node.Node, web, other *node.Container) {
	t.Helper()
	n = node.New(t)
	b := n.Bridge("cni0", "10.1.0.1/24", "fd00:1::1/64")
	web = b.Container("web", "10.1.0.5/24", "fd00:1::5/64")
	other = b.Container("other", "10.1.0.6/24", "fd00:1::6/64")
	for _, c := range []*node.Container{web, other} {
		for _, network := range []string{"tcp", "udp"} {
			c.Serve(network, ":80")
		}
	}
	return n, web, other
}

func containsAny(s string, words ...string) bool {
	for _, w := range words {
		if strings.Contains(s, w) {
			return true
		}
	}
	return false
}

func ownerKey(a *attachment) string { return string(owner.Of(a.network, a.id, a.ifName)) }
