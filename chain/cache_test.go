// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package chain_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/internal/test/chaintest"
	"github.com/patchbay-net/patchbay/spec"
)

// Large numbers reach the plugin unchanged; libcni turns them into floats.
func TestNumbersStay(t *testing.T) {
	b := newBench(t)
	if _, err := b.Add(t.Context(), chaintest.List(t, `{"cniVersion":"1.1.0","name":"net","plugins":[{"type":"rec1","n":9007199254740993}]}`), attachment); err != nil {
		t.Fatal(err)
	}
	if in := string(b.Calls()[0].Stdin); !strings.Contains(in, `"n":9007199254740993`) {
		t.Errorf("stdin is %s", in)
	}
}

// The test uses broken cached results as power losses and old runtimes leave them.
func TestCacheTolerance(t *testing.T) {
	tests := []struct {
		about, data string
		prev        bool // DEL still has a previous result
		broken      bool
	}{
		{"empty", "", false, true},
		{"truncated", `{"kind":"cniCacheV1","containerId":"c`, false, true},
		{"zeroes", "\x00\x00\x00\x00", false, true},
		{"another attachment's", `{"kind":"cniCacheV1","containerId":"other","ifName":"eth0","networkName":"net","result":{"cniVersion":"1.1.0"}}`, false, true},
		{"nobody's", `{"kind":"cniCacheV1"}`, false, true},
		{"a result that is none", `{"kind":"cniCacheV1","containerId":"c1","ifName":"eth0","networkName":"net","result":{"cniVersion":"9"}}`, false, true},
		{"no result", `{"kind":"cniCacheV1","containerId":"c1","ifName":"eth0","networkName":"net"}`, false, false},
		{"the bare result of old libcni", `{"cniVersion":"0.4.0","ips":[{"version":"4","address":"10.0.0.2/24"}],"dns":{}}`, true, false},
		{"the bare result of older libcni", `{"ip4":{"ip":"10.0.0.2/24"}}`, true, false},
	}
	for _, test := range tests {
		t.Run(test.about, func(t *testing.T) {
			b := newBench(t)
			chaintest.Write(t, b.CacheDir, map[string]string{"results/net-c1-eth0": test.data})
			list := chaintest.List(t, three)
			check := b.Check(t.Context(), list, attachment)
			if test.broken != (check != nil) {
				t.Errorf("CHECK: %v", check)
			}
			_, err := b.Attachments("")
			if wrong := test.broken && test.about != "another attachment's" && err == nil; wrong {
				t.Error("the list does not report it")
			}
			keep := chain.Keep{List: list, Valid: []spec.AttachmentKey{{ContainerID: "c1", IfName: "eth0"}, {ContainerID: "other", IfName: "eth0"}}}
			if err := b.GC(t.Context(), keep); err != nil {
				t.Errorf("GC: %v", err)
			}
			b.Calls()
			b.Warned = nil
			if err := b.Del(t.Context(), list, attachment); err != nil {
				t.Errorf("DEL: %v", err)
			}
			calls := b.Calls()
			if got := chaintest.Order(calls); got != "DEL rec3, DEL rec2, DEL rec1" {
				t.Errorf("calls: %s", got)
			}
			if got := strings.Contains(string(calls[0].Stdin), "prevResult"); got != test.prev {
				t.Errorf("DEL with previous result: %v", got)
			}
			if test.broken != (len(b.Warned) > 0) {
				t.Errorf("warned: %v", b.Warned)
			}
			other := test.about == "another attachment's"
			if got := b.Cached(); (got != "") != other {
				t.Errorf("cached after DEL: %q", got)
			}
			if _, err := b.Add(t.Context(), list, attachment); err != nil {
				t.Errorf("ADD: %v", err)
			}
		})
	}
}

// Another user plants a symbolic link in place of a cached result. We do not follow it.
func TestCacheFollowsNoLink(t *testing.T) {
	b := newBench(t)
	secret := filepath.Join(b.CacheDir, "secret")
	chaintest.Write(t, b.CacheDir, map[string]string{"secret": "precious", "results/x": "{}"})
	if err := os.Symlink(secret, filepath.Join(b.CacheDir, "results", "net-c1-eth0")); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Add(t.Context(), chaintest.List(t, three), attachment); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(secret); err != nil || string(data) != "precious" {
		t.Errorf("the file behind the link: %q, %v", data, err)
	}
}

func FuzzCache(f *testing.F) {
	f.Add([]byte(`{"kind":"cniCacheV1","containerId":"c1","ifName":"eth0","networkName":"net","result":{"cniVersion":"1.0.0","ips":[{"address":"10.0.0.1/8"}]}}`))
	f.Add([]byte(`{"cniVersion":"0.2.0","ip4":{"ip":"10.0.0.2/24"}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		dir := t.TempDir()
		rt := chain.New(chain.WithCacheDir(dir), chain.WithRunDir(dir))
		chaintest.Write(t, dir, map[string]string{"results/net-c1-eth0": string(data)})
		c, err := rt.Cached("net", attachment)
		if err == nil && (c.Network != "net" || c.ContainerID != "c1") {
			t.Fatalf("%+v", c)
		}
		if _, err := rt.Attachments(""); err == nil && len(data) == 0 {
			t.Fatal("an empty file goes unnoticed")
		}
	})
}
