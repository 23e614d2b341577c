// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policy_test

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/policy"
	"github.com/patchbay-net/patchbay/internal/policy/mirror"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/hostlocal"
	"github.com/patchbay-net/patchbay/plugin/patchbay"
	own "github.com/patchbay-net/patchbay/plugin/policy"
	"github.com/patchbay-net/patchbay/plugin/ptp"
	"github.com/patchbay-net/patchbay/spec"
)

const wholeChain = `{"cniVersion":"1.1.0","name":"pods","type":"patchbay","builtIn":true,"plugins":[
	{"type":"ptp","ipam":{"type":"host-local","ranges":[[{"subnet":"10.92.0.0/24"}]]}},{"type":"policy"}]}`

// call calls the chain of a pod in this process. fault is called before each step.
func call(verb spec.Verb, ns string, fault func(step string) error) error {
	b := plugin.Builtin{NewSession: func() *plugin.Session {
		s := plugin.NewSession([]*plugin.Plugin{&patchbay.Plugin, &ptp.Plugin, &hostlocal.Plugin, &own.Plugin})
		s.Fault = fault
		return s
	}}
	_, err := b.Invoke(context.Background(), "patchbay", &spec.Call{
		Verb: verb, ContainerID: "c1", NetNS: ns, IfName: "eth0", Path: []string{"/nonexistent"}, Config: []byte(wholeChain),
		Args: "K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web;K8S_POD_UID=42",
	})
	return err
}

func output(t *testing.T, words string) string {
	t.Helper()
	fields := strings.Fields(words)
	out, err := exec.Command(fields[0], fields[1:]...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v: %s", words, err, out)
	}
	return string(out)
}

// A pod is closed before its link exists, and an ADD that fails at any step leaves nothing closed.
func TestClosedBeforeTheLink(t *testing.T) {
	nettest.Need(t, nettest.Program("nft"))
	s := &policy.State{Node: "n1", Namespaces: []policy.Namespace{{Name: "shop"}}}
	p, err := policy.ParseNetworkPolicy([]byte(`{"metadata":{"namespace":"shop","name":"all"},"spec":{"podSelector":{}}}`))
	if err != nil {
		t.Fatal(err)
	}
	s.Policies = append(s.Policies, p)
	if _, err := mirror.Write(paths.Default(), policy.NewDecider(s)); err != nil {
		t.Fatal(err)
	}
	ns := nettest.NewNS(t, "web")
	steps, open := 0, 0
	err = call(spec.Add, ns, func(string) error {
		steps++
		if strings.Contains(output(t, "ip -o link"), "veth") && !strings.Contains(output(t, "nft list ruleset"), "policy_closedin4 {\n\t\ttype ipv4_addr\n\t\tflags timeout\n\t\telements = { 10.92.0.") {
			open++
		}
		return nil
	})
	if err != nil || open > 0 || steps < 5 {
		t.Errorf("at %d of %d steps the pod had a link and was open; %v", open, steps, err)
	}
	if err := call(spec.Del, ns, nil); err != nil {
		t.Error(err)
	}
	wrong := errors.New("planned")
	for at := range steps {
		step := 0
		err := call(spec.Add, ns, func(string) error {
			if step++; step == at+1 {
				return wrong
			}
			return nil
		})
		rules := output(t, "nft list ruleset")
		if !errors.Is(err, wrong) && !strings.Contains(fmt.Sprint(err), wrong.Error()) || strings.Contains(rules, "10.92.0.") || strings.Contains(output(t, "ip -o link"), "veth") {
			t.Errorf("the ADD failed at step %d with %v, and left\n%s", at+1, err, rules)
		}
	}
}
