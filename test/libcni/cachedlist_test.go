// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package libcni_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/containernetworking/cni/libcni"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/internal/test/chaintest"
)

// A DEL from the cache calls the plugins that libcni's ADD called: of a single plugin's configuration, and of
// a list to which other files add plugins.
func TestDelOfWhatLibcniCached(t *testing.T) {
	attach := map[string]struct {
		add  func(*testing.T, *bench)
		want string
	}{
		"single":     {func(t *testing.T, b *bench) { addSingle(t, b, "type") }, "DEL rec1"},
		"other case": {func(t *testing.T, b *bench) { addSingle(t, b, "Type") }, "DEL rec1"},
		"list":       {addList, "DEL rec2, DEL rec1"},
	}
	for name, a := range attach {
		t.Run(name+" DelCached", func(t *testing.T) {
			b := newBench(t)
			a.add(t, b)
			if err := b.DelCached(t.Context(), "net", attachment); err != nil {
				t.Fatal(err)
			}
			b.wants(a.want, "")
		})
	}
	t.Run("list GC", func(t *testing.T) {
		b := newBench(t)
		addList(t, b)
		list, err := b.Load("net")
		if err != nil {
			t.Fatal(err)
		}
		if err := b.GC(t.Context(), chain.Keep{List: list}); err != nil {
			t.Fatal(err)
		}
		b.wants("DEL rec2, DEL rec1, GC rec1, GC rec2", "")
	})
}

// If no plugin is cached, a DEL from the cache keeps the cached result: it is the last trace.
func TestDelOfACacheWithoutPlugins(t *testing.T) {
	b := newBench(t)
	addList(t, b)
	if err := os.RemoveAll(b.ConfDir); err != nil {
		t.Fatal(err)
	}
	for what, config := range map[string]string{"no plugins": `{"cniVersion":"1.0.0","name":"net"}`, "another's": `{"cniVersion":"1.0.0","name":"other","type":"rec1"}`} {
		b.recache(config)
		if err := b.DelCached(t.Context(), "net", attachment); !errors.Is(err, chain.ErrNotCached) {
			t.Errorf("%s: %v", what, err)
		}
		b.wants("", "net-c1-eth0")
	}
}

func (b *bench) wants(calls, cached string) {
	b.T.Helper()
	if got := chaintest.Order(b.Calls()); got != calls {
		b.T.Errorf("calls: %q, want %q", got, calls)
	}
	if got := b.Cached(); got != cached {
		b.T.Errorf("cached: %q, want %q", got, cached)
	}
}

// recache changes the configuration in a cached result.
func (b *bench) recache(config string) {
	b.T.Helper()
	path := filepath.Join(b.CacheDir, "results", "net-c1-eth0")
	data, err := os.ReadFile(path)
	if err != nil {
		b.T.Fatal(err)
	}
	var cached map[string]any
	if err := json.Unmarshal(data, &cached); err != nil {
		b.T.Fatal(err)
	}
	cached["config"] = []byte(config)
	if data, err = json.Marshal(cached); err != nil {
		b.T.Fatal(err)
	}
	if err := os.WriteFile(path, data, 0o600); err != nil {
		b.T.Fatal(err)
	}
}

func addSingle(t *testing.T, b *bench, typeKey string) {
	t.Helper()
	conf, err := libcni.NetworkPluginConfFromBytes(fmt.Appendf(nil, `{"cniVersion":"1.0.0","name":"net",%q:"rec1"}`, typeKey))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.libcni().AddNetwork(t.Context(), conf, runtimeConf(attachment)); err != nil {
		t.Fatal(err)
	}
	b.Calls()
}

func addList(t *testing.T, b *bench) {
	t.Helper()
	file := filepath.Join(b.ConfDir, "net.conflist")
	chaintest.Write(t, b.ConfDir, map[string]string{
		"net.conflist":  `{"cniVersion":"1.1.0","name":"net","loadOnlyInlinedPlugins":false,"plugins":[{"type":"rec1"}]}`,
		"net/more.conf": `{"type":"rec2"}`,
	})
	list, err := libcni.NetworkConfFromFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := b.libcni().AddNetworkList(t.Context(), list, runtimeConf(attachment)); err != nil {
		t.Fatal(err)
	}
	if got := chaintest.Order(b.Calls()); got != "ADD rec1, ADD rec2" {
		t.Fatal(got)
	}
}
