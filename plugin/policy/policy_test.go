// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/paths"
	rules "github.com/patchbay-net/patchbay/internal/policy"
	"github.com/patchbay-net/patchbay/internal/policy/mirror"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/internal/test/nettest/node"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/plugintest"
	"github.com/patchbay-net/patchbay/spec"
)

func TestMain(m *testing.M) { plugintest.Main(m, &Plugin) }

// stateWith is a cluster with the namespaces shop and bank, and these policies.
func stateWith(t testing.TB, policies ...string) *rules.State {
	t.Helper()
	s := &rules.State{Node: "n1", Namespaces: []rules.Namespace{{Name: "shop"}, {Name: "bank"}}}
	for _, text := range policies {
		at, body, _ := strings.Cut(text, " ")
		ns, name, _ := strings.Cut(at, "/")
		p, err := rules.ParseNetworkPolicy(fmt.Appendf(nil, `{"metadata":{"namespace":%q,"name":%q},"spec":%s}`, ns, name, body))
		must(t, err)
		s.Policies = append(s.Policies, p)
	}
	return s
}

// writeMirror writes the agent's files until the end of the test.
func writeMirror(t testing.TB, policies ...string) {
	t.Helper()
	_, err := mirror.Write(paths.Default(), rules.NewDecider(stateWith(t, policies...)))
	must(t, err)
	t.Cleanup(func() { must(t, mirror.Remove(paths.Default())) })
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

const (
	podWeb  = "K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-1;K8S_POD_UID=42"
	podBank = "K8S_POD_NAMESPACE=bank;K8S_POD_NAME=b-1;K8S_POD_UID=43"
	isolate = `shop/web {"podSelector":{},"policyTypes":["Ingress","Egress"]}`
	ingress = `shop/web {"podSelector":{}}`
)

// attachment is one attachment as a runtime requests it.
type attachment struct {
	id, netns, args string
	prev            *spec.Result
	fault           func(string) error
	dry             func(string)
	stderr          bytes.Buffer
}

// spaces counts the namespaces that routed made.
var spaces int

// routed makes a container behind a link of its own, as ptp does.
func routed(t testing.TB, n *node.Node, id, args string, addrs ...string) (*attachment, *node.Space) {
	spaces++
	c := n.Space(fmt.Sprint("pod", spaces))
	node.Join(n.Host, "v"+id, c, "eth0")
	return &attachment{id: id, args: args, prev: resultOf("v"+id, c.Path, addrs...), netns: c.Path}, c
}

func resultOf(host, sandbox string, addrs ...string) *spec.Result {
	r := &spec.Result{Interfaces: []spec.Interface{{Name: host}, {Name: "eth0", Sandbox: sandbox}}}
	for _, a := range addrs {
		r.IPs = append(r.IPs, spec.IPConfig{Interface: new(int), Address: netip.MustParsePrefix(a)})
		*r.IPs[len(r.IPs)-1].Interface = 1
	}
	return r
}

// call runs a verb in process; conf is merged over the head.
func (a *attachment) call(t testing.TB, verb spec.Verb, conf string) error {
	t.Helper()
	m := map[string]any{"cniVersion": "1.1.0", "name": "net", "type": name}
	if a.prev != nil {
		m["prevResult"] = a.prev
	}
	must(t, json.Unmarshal([]byte(conf), &m))
	data, err := json.Marshal(m)
	must(t, err)
	b := plugin.Builtin{NewSession: func() *plugin.Session {
		s := plugin.NewSession([]*plugin.Plugin{&Plugin})
		s.Fault, s.Stderr, s.Dry = a.fault, &a.stderr, a.dry
		return s
	}}
	_, err = b.Invoke(context.Background(), name, &spec.Call{
		Verb: verb, ContainerID: a.id, NetNS: a.netns, IfName: "eth0", Args: a.args, Path: []string{"/nonexistent"}, Config: data,
	})
	return err
}

func (a *attachment) must(t testing.TB, verb spec.Verb) {
	t.Helper()
	if err := a.call(t, verb, `{}`); err != nil {
		t.Fatalf("%s: %v", verb, err)
	}
}

// del is a DEL with nothing but the names.
func (a *attachment) del(t testing.TB) {
	t.Helper()
	(&attachment{id: a.id}).must(t, spec.Del)
}

func ruleset(t testing.TB) string {
	t.Helper()
	nettest.Need(t, nettest.Program("nft"))
	out, err := exec.Command("nft", "list", "ruleset").CombinedOutput()
	must(t, err)
	return string(out)
}

func nftDo(t testing.TB, words string) {
	t.Helper()
	if out, err := exec.Command("nft", strings.Fields(words)...).CombinedOutput(); err != nil {
		t.Fatalf("nft %s: %v: %s", words, err, out)
	}
}

// closedAt checks whether the kernel has closed an address in each direction.
func closedAt(t testing.TB, addr string, in, out bool) {
	t.Helper()
	fw := nft.Open("")
	defer fw.Close() //nolint:errcheck // read only
	for side, want := range []bool{in, out} {
		e := nft.Closed(side, netip.MustParseAddr(addr), "")
		_, found, err := fw.Get(e.Set, e.Key)
		if err != nil || found != want {
			t.Errorf("%s closed at side %d: %v, %v, want %v", addr, side, found, err, want)
		}
	}
}

func recordOf(t testing.TB, id string) *record.Record {
	t.Helper()
	d := record.New(paths.Default().Run)
	defer d.Close()
	r, err := d.Read("net", owner.Of("net", id, "eth0"), name)
	must(t, err)
	return r
}

// fresh begins a test without a firewall and without notes of former pods: pods of the previous test
// had the same addresses.
func fresh(t testing.TB) *node.Node {
	n := node.New(t)
	forgetFormers(t)
	t.Cleanup(func() { nftDo(t, "flush ruleset") })
	return n
}

func forgetFormers(t testing.TB) {
	t.Helper()
	must(t, os.RemoveAll(formerFile(paths.Default())))
}

func of(c *node.Container) *attachment {
	return &attachment{id: c.Name, netns: c.Path, args: podWeb, prev: c.Result()}
}
