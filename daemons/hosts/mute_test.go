// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hosts

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// While another program has port 53 of a network's address, the configuration names no DNS server.
func TestConfWhileThePortIsTaken(t *testing.T) {
	n := lan()
	h, a := stillAgent(t, &n)
	a.opts.DNS = []string{"*"}
	t.Cleanup(a.names.Close)
	bridge(t, "pb-lan", prefix("10.200.3.1/24"))
	names := func(about string, want bool) {
		t.Helper()
		a.apply(t.Context(), true)
		text, err := os.ReadFile(filepath.Join(h.dir, "lan.conflist"))
		if err != nil || strings.Contains(string(text), `"10.200.3.1"`) != want {
			t.Errorf("%s: the configuration is %s (%v)", about, text, err)
		}
	}
	theirs, err := net.ListenPacket("udp", "10.200.3.1:53")
	must(t, err)
	names("taken", false)
	must(t, theirs.Close())
	names("free", true)
	names("still free", true)
}
