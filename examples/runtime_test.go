// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package examples_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/internal/test/nettest/leak"
	"github.com/patchbay-net/patchbay/internal/test/reftest"
	"github.com/patchbay-net/patchbay/spec"
)

// TestRuntime: the example runtime runs a command on the default network and on two networks, and leaves nothing, also
// if the second network fails.
func TestRuntime(t *testing.T) {
	conf := t.TempDir()
	for i, name := range []string{"front", "storage", "broken"} {
		plugin := fmt.Sprintf(`{"type":"ptp","ipam":{"type":"host-local","subnet":"10.48.%d.0/24"}}`, i)
		if name == "broken" {
			plugin = `{"type":"ptp","ipam":{"type":"host-local","subnet":"10.48.9.0/33"}}`
		}
		text := fmt.Sprintf(`{"cniVersion":"1.0.0","name":%q,"plugins":[%s]}`, name, plugin)
		if err := os.WriteFile(filepath.Join(conf, fmt.Sprintf("%d0-%s.conflist", i, name)), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	before := leak.Must(t)
	for _, c := range []struct {
		networks, links, text string
		fails                 bool
	}{
		{"", "lo eth0\n", "address 10.48.0.2/24\n", false},
		{"storage front", "lo eth0 eth1\n", "address 10.48.1.2/24\n", false},
		{"front broken", "", "network broken", true},
	} {
		cmd := exec.Command(program(t, "runtime"), "sh", "-c", `echo $(awk -F: 'NR > 2 {print $1}' /proc/self/net/dev)`)
		cmd.Env = append(os.Environ(), "CNI_PATH="+reftest.Ours(t), "NETCONFPATH="+conf, "NETWORKS="+c.networks)
		out, err := cmd.CombinedOutput()
		if (err != nil) != c.fails || !strings.Contains(string(out), c.text) || !strings.Contains(string(out), c.links) {
			t.Errorf("on %q: %v\n%s", c.networks, err, out)
		}
		leak.NoLeaks(t, before)
	}
}

// TestResolver: the plugin sets the DNS of the configuration, and that of the runtime instead if there is one.
func TestResolver(t *testing.T) {
	rt := chain.New(chain.WithPath(install(t), reftest.Ours(t)), chain.WithWarn(func(err error) { t.Error(err) }))
	list, err := chain.ParseList([]byte(`{"cniVersion":"1.1.0","name":"dns","plugins":[
		{"type":"ptp","ipam":{"type":"host-local","subnet":"10.49.0.0/24"}},
		{"type":"resolver","capabilities":{"dns":true},"dns":{"nameservers":["192.0.2.53"]}}]}`))
	if err != nil {
		t.Fatal(err)
	}
	before := leak.Must(t)
	for _, want := range []string{"192.0.2.53", "192.0.2.54"} {
		c := chain.Container{ID: "dns", NetNS: nettest.NewNS(t, "dns"+want)}
		if want != "192.0.2.53" {
			c.Capabilities = spec.Capabilities{DNS: spec.CapabilityDNS{Servers: []string{want}}}.Map()
		}
		results, err := rt.Attach(t.Context(), c, chain.Network{List: list})
		if err != nil {
			t.Fatal(err)
		}
		if got := results[0].DNS.ResolvConf(); got != "nameserver "+want+"\n" {
			t.Errorf("DNS is %q, want %s", got, want)
		}
		if err := rt.Detach(t.Context(), c); err != nil {
			t.Error(err)
		}
	}
	leak.NoLeaks(t, before)
}
