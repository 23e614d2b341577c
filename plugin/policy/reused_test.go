// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policy

import (
	"net/netip"
	"testing"

	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/paths"
	rules "github.com/patchbay-net/patchbay/internal/policy"
	"github.com/patchbay-net/patchbay/internal/policy/enforce"
	"github.com/patchbay-net/patchbay/internal/policy/mirror"
	"github.com/patchbay-net/patchbay/spec"
)

// No policy selects the pods in the bank. A pod there is closed if a former pod with its address has
// just ended, or if the agent's program still has the former pod. It is open once the program has the
// new pod, and in all other cases.
func TestReusedAddress(t *testing.T) {
	n := fresh(t)
	writeMirror(t, ingress)
	fw := nft.Open(t.TempDir())
	defer fw.Close() //nolint:errcheck // committed
	addr := netip.MustParseAddr("10.90.0.5")
	program := func(bank string) *rules.Program {
		s := stateWith(t, ingress)
		s.Pods = []rules.Pod{{Namespace: "shop", Name: "web-1", Node: "n1", Phase: "Running", Addresses: []netip.Addr{netip.MustParseAddr("10.90.0.77")}}}
		if bank != "" {
			s.Pods = append(s.Pods, rules.Pod{Namespace: "bank", Name: bank, Node: "n1", Phase: "Running", Addresses: []netip.Addr{addr}})
		}
		return rules.Compile(s)
	}
	for about, c := range map[string]struct {
		runs, policies, noted bool
		had                   string // the pod that the program has
		closed                bool
	}{
		"the agent may be making a program with the former pod": {runs: true, policies: true, noted: true, closed: true},
		"the program has the former pod":                        {runs: true, policies: true, had: "former", closed: true},
		"the address is new":                                    {runs: true, policies: true},
		"no policy is in force":                                 {runs: true, noted: true},
		"no agent runs":                                         {policies: true, noted: true, had: "former"},
	} {
		t.Run(about, func(t *testing.T) {
			e := enforce.New(fw, enforce.Options{})
			if c.policies {
				must(t, e.Load(t.Context(), program(c.had), nil))
			}
			if c.runs {
				unlock, err := durable.Lock(t.Context(), mirror.InForce(paths.Default()))
				must(t, err)
				defer unlock()
			}
			a, _ := routed(t, n, "c1", podBank, "10.90.0.5/30")
			defer n.Host.Delete("vc1")
			if c.noted {
				must(t, noteFormer(paths.Default(), []netip.Addr{addr}))
			}
			a.must(t, spec.Add)
			defer forgetFormers(t)
			defer a.del(t)
			closedAt(t, "10.90.0.5", c.closed, c.closed)
			must(t, e.Load(t.Context(), program("new"), map[netip.Addr]owner.Key{addr: owner.Of("net", "c1", "eth0")}))
			closedAt(t, "10.90.0.5", false, false)
			must(t, e.Load(t.Context(), rules.Compile(stateWith(t)), nil))
		})
	}
}
