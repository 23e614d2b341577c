// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package examples_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/internal/test/nettest/leak"
	"github.com/patchbay-net/patchbay/internal/test/reftest"
	"github.com/patchbay-net/patchbay/spec"
)

// hooked is an example of wrap/, copied into a directory with its hooks as programs.
type hooked struct {
	t    *testing.T
	rt   *chain.Runtime
	list *chain.List
	at   chain.Attachment
	root string // replaces /run in announce and gate
}

func wrapExample(t *testing.T, file string, edit ...func(string) string) *hooked {
	t.Helper()
	h := &hooked{t: t, root: t.TempDir()}
	moved := strings.NewReplacer("/opt/cni/hooks/", h.root+"/", "/run/announce", h.root+"/announced", "/run/maintenance", h.root+"/maintenance", "/run/gated.log", h.root+"/log")
	for _, program := range []string{"announce", "gate", "bridge-announced"} {
		text := h.read("wrap/" + program)
		if err := os.WriteFile(filepath.Join(h.root, program), []byte(moved.Replace(text)), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	ours := reftest.Ours(t)
	if err := os.Symlink(filepath.Join(ours, "bridge"), filepath.Join(h.root, "bridge")); err != nil {
		t.Fatal(err)
	}
	text := moved.Replace(h.read(file))
	for _, e := range edit {
		text = e(text)
	}
	var err error
	if h.list, err = chain.ParseList([]byte(text)); err != nil {
		t.Fatal(err)
	}
	h.rt = chain.New(chain.WithPath(install(t), h.root, ours), chain.WithWarn(func(err error) { t.Log(err) }))
	h.at = chain.Attachment{ContainerID: "w1", NetNS: nettest.NewNS(t, strings.ReplaceAll(t.Name(), "/", "-")), IfName: "eth0"}
	return h
}

func (h *hooked) read(path string) string {
	h.t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		h.t.Fatal(err)
	}
	return string(data)
}

func (h *hooked) must(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

// TestAnnounce: a network with wrap does the same as a network with the plain shell wrapper.
func TestAnnounce(t *testing.T) {
	plain := func(string) string {
		return `{"cniVersion":"1.1.0","name":"announced","plugins":[
			{"type":"bridge-announced","bridge":"ann0","isGateway":true,"ipam":{"type":"host-local","subnet":"10.47.0.0/24"}}]}`
	}
	for name, edit := range map[string]func(string) string{"wrap": func(s string) string { return s }, "shell": plain} {
		t.Run(name, func(t *testing.T) {
			h := wrapExample(t, "wrap/announce.conflist", edit)
			before := leak.Must(t)
			result, err := h.rt.Add(t.Context(), h.list, h.at)
			h.must(err)
			announcement := filepath.Join(h.root, "announced", "w1.eth0")
			if got := strings.TrimSpace(h.read(announcement)); got != result.IPs[0].Address.Addr().String() {
				t.Errorf("announced is %q, the address %s", got, result.IPs[0].Address)
			}
			h.must(h.rt.Check(t.Context(), h.list, h.at))
			h.must(os.Remove(announcement))
			if err := h.rt.Check(t.Context(), h.list, h.at); err == nil {
				t.Error("CHECK misses the announcement")
			}
			h.must(h.rt.Status(t.Context(), h.list))
			h.must(h.rt.Del(t.Context(), h.list, h.at))
			h.must(h.rt.Del(t.Context(), h.list, h.at))
			leak.NoLeaks(t, before)

			h.must(os.RemoveAll(filepath.Join(h.root, "announced")))
			h.must(os.WriteFile(filepath.Join(h.root, "announced"), nil, 0o600)) // a file where the hook needs a directory
			if _, err := h.rt.Add(t.Context(), h.list, h.at); err == nil || !strings.Contains(err.Error(), "announce") {
				t.Errorf("ADD without a place to announce: %v", err)
			}
			leak.NoLeaks(t, before)
		})
	}
}

// TestGate: a hook refuses an ADD with an error code of its choice, wrap retries a plugin whose
// error code asks for it, and the log has each of these steps.
func TestGate(t *testing.T) {
	h := wrapExample(t, "wrap/gate.conflist")
	before := leak.Must(t)
	h.must(os.WriteFile(filepath.Join(h.root, "maintenance"), nil, 0o600))
	if err := h.rt.Status(t.Context(), h.list); spec.ErrorCode(err) != spec.CodeNotAvailable || !strings.Contains(err.Error(), "this node is in maintenance") {
		t.Errorf("STATUS: %v", err)
	}
	if _, err := h.rt.Add(t.Context(), h.list, h.at); spec.ErrorCode(err) != spec.CodeNotAvailable {
		t.Errorf("ADD: %v", err)
	}
	h.must(os.Remove(filepath.Join(h.root, "maintenance")))
	_, err := h.rt.Add(t.Context(), h.list, h.at)
	h.must(err)
	h.must(h.rt.Del(t.Context(), h.list, h.at))
	leak.NoLeaks(t, before)
	var steps []string
	for line := range strings.Lines(h.read(filepath.Join(h.root, "log"))) {
		var s struct{ Verb, Step, Name string }
		h.must(json.Unmarshal([]byte(line), &s))
		steps = append(steps, s.Verb+" "+s.Step+" "+filepath.Base(s.Name))
	}
	const want = "STATUS before gate,ADD before gate,ADD before gate,ADD plugin ptp,DEL plugin ptp"
	if got := strings.Join(steps, ","); !strings.HasPrefix(got, "STATUS before gate,ADD before gate,") || !strings.HasSuffix(got, want[len("STATUS before gate,ADD before gate,"):]) {
		t.Errorf("log: %s\nwant: %s", got, want)
	}
}

// TestSecondInterface: hooks change the configuration and the result of another plugin, in a chain
// and in one process.
func TestSecondInterface(t *testing.T) {
	h := wrapExample(t, "wrap/second-interface.conflist")
	before := leak.Must(t)
	h.at.Capabilities = map[string]any{"mac": "02:00:00:00:00:77"}
	result, err := h.rt.Add(t.Context(), h.list, h.at)
	h.must(err)
	if len(result.Routes) != 1 || result.Routes[0].Dst.String() != "10.50.0.0/16" || !result.DNS.IsZero() {
		t.Errorf("result: %+v", result)
	}
	if mac := result.Interfaces[len(result.Interfaces)-1].Mac; mac != "02:00:00:00:00:77" {
		t.Errorf("the capability did not reach the wrapped plugin: %s", mac)
	}
	h.must(h.rt.Check(t.Context(), h.list, h.at))
	h.must(h.rt.Del(t.Context(), h.list, h.at))
	leak.NoLeaks(t, before)
}

// TestShellWrapperIsOnThePage: docs/plugins/wrap.md shows exactly the wrapper that these tests run.
func TestShellWrapperIsOnThePage(t *testing.T) {
	page, err := os.ReadFile("../docs/plugins/wrap.md")
	if err != nil {
		t.Fatal(err)
	}
	script, err := os.ReadFile("wrap/bridge-announced")
	if err != nil {
		t.Fatal(err)
	}
	_, body, _ := strings.Cut(string(script), "set -u\n")
	if !strings.Contains(string(page), body) {
		t.Errorf("docs/plugins/wrap.md does not show examples/wrap/bridge-announced as it is:\n%s", body)
	}
}
