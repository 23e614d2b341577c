// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package chain_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/internal/test/chaintest"
	"github.com/patchbay-net/patchbay/spec"
)

// places is "VERB network interface" of each call.
func places(t *testing.T, calls []chaintest.Call) string {
	t.Helper()
	var words []string
	for _, c := range calls {
		o, err := spec.ParseConf(c.Stdin)
		if err != nil {
			t.Fatal(err)
		}
		words = append(words, c.Verb+" "+o.Name+" "+c.Env["CNI_IFNAME"])
	}
	return strings.Join(words, ", ")
}

var pod = chain.Container{ID: "c1", NetNS: "/run/netns/c1"}

// threeNetworks has the networks a, b and c in files, of which b is the default.
func threeNetworks(t *testing.T, bPlugin string) *bench {
	t.Helper()
	b := newBench(t)
	chaintest.Write(t, b.ConfDir, map[string]string{
		"10-b.conflist": file("b", bPlugin), "20-a.conflist": file("a", `{"type":"rec1"}`), "30-c.conflist": file("c", `{"type":"rec3","capabilities":{"mac":true,"ips":true}}`),
	})
	return b
}

func TestAttach(t *testing.T) {
	b := threeNetworks(t, `{"type":"rec2"}`)
	all := []chain.Network{{Name: "a", IfName: "lo"}, {}, {Name: "c", Capabilities: spec.Capabilities{MAC: "02:00:00:00:00:01"}.Map()}}
	c := pod
	c.Capabilities = spec.Capabilities{MAC: "02:00:00:00:00:09", IPs: []string{"10.0.0.1/24"}}.Map()
	results, err := b.Attach(t.Context(), c, all...)
	if err != nil {
		t.Fatal(err)
	}
	calls := b.Calls()
	if got := places(t, calls); got != "ADD a lo, ADD b eth0, ADD c eth1" {
		t.Error(got)
	}
	if got := string(calls[2].Stdin); !strings.Contains(got, `"runtimeConfig":{"ips":["10.0.0.1/24"],"mac":"02:00:00:00:00:01"}`) {
		t.Errorf("capabilities: %s", got)
	}
	if len(results) != 3 || results[2].Interfaces[0].Name != "rec3" {
		t.Errorf("results: %+v", results)
	}
	if err := b.Detach(t.Context(), pod, all...); err != nil {
		t.Fatal(err)
	}
	if got := places(t, b.Calls()); got != "DEL c eth1, DEL b eth0, DEL a lo" {
		t.Error(got)
	}
}

// Without networks, Attach takes the default network, and Detach what the cache has, also after the files are gone.
func TestAttachDefault(t *testing.T) {
	b := threeNetworks(t, `{"type":"rec2"}`)
	if _, err := b.Attach(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Attach(t.Context(), pod, chain.Network{Name: "a", IfName: "net1"}); err != nil {
		t.Fatal(err)
	}
	past := time.Now().Add(-time.Minute)
	if err := os.Chtimes(filepath.Join(b.CacheDir, "results", "b-c1-eth0"), past, past); err != nil {
		t.Fatal(err)
	}
	b.Calls()
	if err := os.RemoveAll(b.ConfDir); err != nil {
		t.Fatal(err)
	}
	gone := chain.Container{ID: "c1"}
	if err := b.Detach(t.Context(), gone); err != nil {
		t.Fatal(err)
	}
	calls := b.Calls()
	if got := places(t, calls); got != "DEL a net1, DEL b eth0" {
		t.Error(got)
	}
	if ns := calls[0].Env["CNI_NETNS"]; ns != "" {
		t.Errorf("DEL has the namespace %s, which the caller did not name", ns)
	}
	for _, networks := range [][]chain.Network{nil, {{}}, {{Name: "a"}}} {
		if err := b.Detach(t.Context(), gone, networks...); err != nil {
			t.Errorf("second Detach from %v: %v", networks, err)
		}
	}
	if got := b.Calls(); len(got) > 0 {
		t.Errorf("second Detach: %s", chaintest.Order(got))
	}
}

// If one network fails, the others are removed in reverse order, although the caller's context has ended, every removal
// is tried, and the errors keep their codes.
func TestAttachRollsBack(t *testing.T) {
	b := threeNetworks(t, `{"type":"rec2","fail":{"DEL":{"code":5,"msg":"b stays"}}}`)
	chaintest.Write(t, b.ConfDir, map[string]string{"30-c.conflist": file("c", `{"type":"rec3","fail":{"ADD":{"code":11,"msg":"not now"}}}`)})
	ctx, cancel := context.WithCancel(t.Context())
	b.Set(chain.WithEvent(func(e chain.Event) {
		if e.Err != nil {
			cancel()
		}
	}))
	all := []chain.Network{{Name: "a"}, {Name: "b"}, {Name: "c"}}
	results, err := b.Attach(ctx, pod, all...)
	if results != nil || !errors.Is(err, spec.CodeTryAgain) || !errors.Is(err, spec.CodeIO) || spec.ErrorCode(err) != spec.CodeTryAgain {
		t.Errorf("%v, %v", results, err)
	}
	const order = "ADD a eth0, ADD b eth1, ADD c eth2, DEL c eth2, DEL b eth1, DEL a eth0"
	if got := places(t, b.Calls()); got != order {
		t.Error(got)
	}
	cached, err := b.Attachments("c1")
	if err != nil || len(cached) != 1 || cached[0].Network != "b" {
		t.Errorf("the cache has %v, %v, not only what could not be removed", cached, err)
	}

	b.Set(chain.WithNoRollback())
	if _, err := b.Attach(t.Context(), pod, all...); !errors.Is(err, spec.CodeTryAgain) {
		t.Error(err)
	}
	if got := places(t, b.Calls()); got != "ADD a eth0, ADD b eth1, ADD c eth2" {
		t.Errorf("without rollback: %s", got)
	}
}

// An attachment that existed before is not removed by the rollback of a later one.
func TestAttachKeepsWhatWas(t *testing.T) {
	b := threeNetworks(t, `{"type":"rec2","fail":{"ADD":{"code":11,"msg":"not now"}}}`)
	if _, err := b.Attach(t.Context(), pod, chain.Network{Name: "a"}); err != nil {
		t.Fatal(err)
	}
	b.Calls()
	if _, err := b.Attach(t.Context(), pod, chain.Network{Name: "a"}, chain.Network{Name: "c"}, chain.Network{Name: "b"}); err == nil {
		t.Fatal("b did not fail")
	}
	if got := places(t, b.Calls()); got != "ADD a eth0, ADD c eth1, ADD b eth2, DEL b eth2, DEL c eth1" {
		t.Error(got)
	}
}

// What cannot work is refused before anything is made.
func TestAttachRefuses(t *testing.T) {
	b := threeNetworks(t, `{"type":"rec2"}`)
	for about, c := range map[string]struct {
		container chain.Container
		networks  []chain.Network
		is        error
	}{
		"one interface twice": {pod, []chain.Network{{Name: "a", IfName: "x"}, {Name: "b", IfName: "x"}}, spec.CodeInvalidEnvironment},
		"no such network":     {pod, []chain.Network{{Name: "a"}, {Name: "nobody"}}, chain.ErrNoNetwork},
		"a bad name":          {pod, []chain.Network{{Name: "a"}, {Name: "b", IfName: "a/b"}}, spec.CodeInvalidEnvironment},
		"no id":               {chain.Container{}, nil, spec.CodeUnknownContainer},
	} {
		if _, err := b.Attach(t.Context(), c.container, c.networks...); !errors.Is(err, c.is) {
			t.Errorf("%s: %v", about, err)
		}
	}
	if got := b.Calls(); len(got) > 0 {
		t.Errorf("calls: %s", chaintest.Order(got))
	}
}

// Detach without an id does not touch other containers, and a cache that cannot be listed is an error, not nothing to do.
func TestDetachRefuses(t *testing.T) {
	b := threeNetworks(t, `{"type":"rec2"}`)
	if _, err := b.Attach(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	b.Calls()
	if err := b.Detach(t.Context(), chain.Container{}); !errors.Is(err, spec.CodeUnknownContainer) {
		t.Errorf("no id: %v", err)
	}
	results := filepath.Join(b.CacheDir, "results")
	if err := os.WriteFile(filepath.Join(results, "b-c2-eth0"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := b.Detach(t.Context(), chain.Container{ID: "c2"}); err != nil || len(b.Warned) == 0 {
		t.Errorf("a broken file: %v, warnings %v", err, b.Warned)
	}
	if got := places(t, b.Calls()); got != "DEL b eth0" {
		t.Errorf("a broken file: %s, not the default network", got)
	}
	if err := os.Chmod(results, 0o777); err != nil {
		t.Fatal(err)
	}
	if err := b.Detach(t.Context(), pod); err == nil {
		t.Error("others may write to the cache, and Detach trusts it")
	}
	if got := b.Calls(); len(got) > 0 {
		t.Errorf("calls: %s", chaintest.Order(got))
	}
}

// DEL of one network uses the configuration of its ADD, and without it the network's file.
func TestDetachUsesTheCache(t *testing.T) {
	b := threeNetworks(t, `{"type":"rec2"}`)
	if _, err := b.Attach(t.Context(), pod); err != nil {
		t.Fatal(err)
	}
	chaintest.Write(t, b.ConfDir, map[string]string{"10-b.conflist": file("b", `{"type":"rec3"}`)})
	b.Calls()
	for _, want := range []string{"DEL rec2", "DEL rec3"} {
		if err := b.Detach(t.Context(), pod, chain.Network{}); err != nil {
			t.Fatal(err)
		}
		if got := chaintest.Order(b.Calls()); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}
