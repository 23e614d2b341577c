// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package daemon

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/patchbay-net/patchbay/node/plan"
	"github.com/patchbay-net/patchbay/paths"
)

// The network's file stays until the last pod of the network that ours took over is gone.
func TestRemoveNetwork(t *testing.T) {
	d := t.TempDir()
	where := paths.Paths{Run: d + "/run", State: d + "/state", CNI: d + "/cni"}
	n := plan.Network{Node: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}, Pool: plan.Pool{Name: "cbr0"}}
	file, reservation := filepath.Join(d, "net.d", plan.NetworkFile), filepath.Join(where.CNI, "networks/cbr0/10.244.1.5")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for path, text := range map[string]string{file: string(n.Text()), reservation: "old\r\neth0", filepath.Dir(reservation) + "/lock": ""} {
		must(os.MkdirAll(filepath.Dir(path), 0o755))
		must(os.WriteFile(path, []byte(text), 0o600))
	}
	must(removeNetwork(where, filepath.Dir(file)))
	if _, err := os.Stat(file); err != nil {
		t.Errorf("a pod needs the file: %v", err)
	}
	must(os.Remove(reservation))
	must(removeNetwork(where, filepath.Dir(file)))
	if _, err := os.Stat(file); err == nil {
		t.Error("no pod needs the file, and it stays")
	}
}
