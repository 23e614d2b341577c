// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package dhcp_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/daemons/dhcp"
	"github.com/patchbay-net/patchbay/daemons/test/dhcptest"
)

// cache writes libcni's file for a container that has an address.
func cache(t *testing.T, dir, name, ns, conf, addr string) {
	t.Helper()
	data, err := json.Marshal(map[string]any{
		"kind": "cniCacheV1", "containerId": "c1", "config": []byte(conf), "ifName": "eth0", "networkName": "net", "cniArgs": [][2]string{{"K", "V"}},
		"result": map[string]any{
			"cniVersion": "1.0.0", "interfaces": []map[string]any{{"name": "eth0", "sandbox": ns}},
			"ips":    []map[string]any{{"address": addr, "gateway": "10.77.0.1", "interface": 0}},
			"routes": []map[string]any{{"dst": "0.0.0.0/0", "gw": "10.77.0.1"}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "results", name), data, 0o600); err != nil {
		t.Fatal(err)
	}
}

// The reference's daemon loses its leases when it ends. Our keeper takes over the leases that the
// runtime's cache shows, and puts the addresses from the server on the interface.
func TestAdopt(t *testing.T) {
	const socket = "/run/cni/dhcp.sock"
	w := newWorld(t)
	dhcptest.Dnsmasq(t, "br0", "--dhcp-range=10.77.0.20,10.77.0.20,255.255.255.0,2m")
	dhcptest.Configure(t, w.ns, "10.77.0.10/24", "10.77.0.1")
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "results"), 0o700); err != nil {
		t.Fatal(err)
	}
	cache(t, dir, "dhcp", w.ns, `{"name":"net","plugins":[{"type":"bridge","ipam":{"type":"dhcp"}},{"type":"tuning"}]}`, "10.77.0.10/24")
	cache(t, dir, "other", w.ns, `{"name":"net","type":"bridge","ipam":{"type":"host-local"}}`, "10.77.0.10/24")
	cache(t, dir, "elsewhere", w.ns, `{"name":"net","type":"bridge","ipam":{"type":"dhcp","daemonSocketPath":"/x"}}`, "10.77.0.10/24")
	cache(t, dir, "nested", w.ns, `{"plugins":[{"type":"patchbay","plugins":[{"type":"wrap","plugin":{"type":"bridge","ipam":{"type":"dhcp"}}}]}]}`, "10.77.0.99/24")
	if err := os.WriteFile(filepath.Join(dir, "results", "torn"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	list, err := dhcp.ReadCache(dir, socket)
	if err == nil || !strings.Contains(err.Error(), "results/torn: broken cached result: ") || len(list) != 2 {
		t.Fatalf("%+v, %v", list, err)
	}
	if a := list[0].Args; a.ContainerID != "c1" || a.Netns != w.ns || a.IfName != "eth0" || a.Args != "K=V" {
		t.Errorf("%+v", a)
	}
	w.keeper.Adopt(list[1:]) // the cache names an address that the interface does not have
	w.keeper.Adopted()
	if w.keeper.Attachments() != 0 {
		t.Error("a lease for nobody")
	}
	w.keeper.Adopt(list)
	w.keeper.Adopted()
	if w.has("10.77.0.10/24") || !w.has("10.77.0.20/24") {
		t.Errorf("%v", dhcptest.Addrs(t, w.ns))
	}
	if got, err := w.keeper.Check(t.Context(), w.args("c1", "")); err != nil || got.IPs[0].Address != prefix("10.77.0.20/24") {
		t.Errorf("%+v, %v", got, err)
	}
	if list, err := dhcp.ReadCache(filepath.Join(dir, "absent"), socket); err != nil || list != nil {
		t.Errorf("%v, %v", list, err)
	}
}
