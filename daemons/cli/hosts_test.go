// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// hostsSays runs a command of patchbayd hosts.
func hostsSays(t *testing.T, args ...string) (code int, out, log string) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout := os.Stdout
	os.Stdout = w
	var said bytes.Buffer
	code = Main(append([]string{"hosts"}, args...), &said)
	os.Stdout = stdout
	w.Close() //nolint:errcheck // a pipe
	text, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return code, string(text), said.String()
}

func TestHostsCommands(t *testing.T) {
	dir := dockerEnv(t)
	t.Setenv("PATCHBAY_STORE", "file://"+dir+"/state/hosts") // not the machine's
	plugins := filepath.Join(dir, "plugins.json")
	if err := os.WriteFile(plugins, []byte(`{"name":"x","plugins":[{"type":"tuning"}]}`), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"create", "lan"}, 2, "--subnet"},
		{[]string{"create", "--subnet", "10.200.0.0/16"}, 2, "NAME"},
		{[]string{"create", "lan", "--subnet", "10.200.0.0"}, 1, "read --subnet"},
		{[]string{"create", "lan", "--subnet", "10.200.0.0/16", "--transport", "pigeon"}, 2, "pigeon"},
		{[]string{"create", "lan", "--subnet", "10.200.0.0/16", "--block", "8"}, 1, "a block of /8 does not divide"},
		{[]string{"create", "lan", "--subnet", "10.200.0.0/16", "--plugins", dir}, 1, "is a directory"},
		{[]string{"create", "lan", "--subnet", "10.200.0.0/16", "--subnet", "fd00::/48", "--plugins", plugins}, 0, ""},
		{[]string{"create", "lan", "--subnet", "10.201.0.0/16"}, 1, "exists already"},
		{[]string{"create", "small", "--subnet", "10.202.0.0/24"}, 0, ""},
		{[]string{"create", "vault", "--subnet", "10.203.0.0/16", "--transport", "wireguard"}, 0, ""},
		{[]string{"rm", "nosuch"}, 1, "not found"},
		{[]string{"forget", "nosuch"}, 1, "not found"},
		{[]string{"ls", "x"}, 2, `unexpected argument "x"`},
		{[]string{"leave", "x"}, 2, `unexpected argument "x"`},
		{[]string{"tea"}, 2, `unknown command "tea"; use create, rm, ls, forget, leave`},
		{[]string{"--store", "redis://x", "ls"}, 1, "redis"},
		{[]string{"--address", "192.0.2.1", "--address", "192.0.2.2"}, 1, "at most one of each family"},
		{[]string{"--address", "127.0.0.1"}, 1, "no address of one host"},
		{[]string{"--address", "::ffff:192.0.2.1"}, 1, "no address of one host"},
		{[]string{"--upstream", "x"}, 1, "read --upstream"},
		{[]string{"--listen", "192.0.2.77:1", "--address", "192.0.2.1"}, 1, "name another address with --listen"},
		{[]string{"--ttl", "1ms"}, 1, "ttl"},
		{[]string{"--reclaim", "30s"}, 1, "read --reclaim: 30s is too short, a living host could lose its block: it must be 10m0s at least with a --ttl of 30s"},
		{[]string{"--reclaim", "1h", "--ttl", "10m"}, 1, "must be 1h40m0s at least with a --ttl of 10m0s"},
	} {
		code, _, log := hostsSays(t, c.args...)
		if code != c.code || !strings.Contains(log, c.says) {
			t.Errorf("%q: %d %s", c.args, code, log)
		}
	}
	code, out, log := hostsSays(t, "ls", "--json")
	var l struct {
		Networks []struct {
			Name, Transport        string
			BlockBits4, BlockBits6 int
			Plugins                []json.RawMessage
		}
	}
	if err := json.Unmarshal([]byte(out), &l); err != nil || code != 0 || len(l.Networks) != 3 {
		t.Fatalf("%d %v %s %s", code, err, out, log)
	}
	if n := l.Networks[0]; n.Name != "lan" || n.BlockBits4 != 24 || n.BlockBits6 != 64 || len(n.Plugins) != 1 || !bytes.Contains(n.Plugins[0], []byte("tuning")) {
		t.Errorf("%+v", n)
	}
	if n := l.Networks[1]; n.BlockBits4 != 28 || n.Plugins != nil {
		t.Errorf("%+v", n)
	}
	if n := l.Networks[2]; n.Name != "vault" || n.Transport != "wireguard" {
		t.Errorf("%+v", n)
	}
	if code, out, log := hostsSays(t, "rm", "lan"); code != 0 {
		t.Errorf("%d %s %s", code, out, log)
	}
	if _, out, _ := hostsSays(t, "ls"); strings.Contains(out, "lan") || !strings.Contains(out, "small") || !strings.Contains(out, "wireguard") {
		t.Error(out)
	}
}

func TestHostsServes(t *testing.T) {
	dir := dockerEnv(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // the agent starts and ends at once
	c := newHostsCommand(&app{ctx: ctx, log: &bytes.Buffer{}})
	c.TTL, c.Reclaim, c.ConfDir, c.DataRoot = 30e9, 3600e9, dir, dir
	c.service = filepath.Join(dir, "hosts.env") // not the machine's
	if err := c.Execute(nil); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "state/hosts/node.json")); err != nil {
		t.Error(err)
	}
	unlock, err := lockState(t.Context(), filepath.Join(dir, "state/hosts"), 0)
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	if err := c.Execute(nil); err == nil || !strings.Contains(err.Error(), "another patchbayd hosts runs") {
		t.Errorf("a second one: %v", err)
	}
}
