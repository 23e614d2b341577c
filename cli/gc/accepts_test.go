// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package gc_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/internal/test/nettest/leak"
	"github.com/patchbay-net/patchbay/netns"
)

// iptables accepts an address, and the rule names the address's attachment. So gc removes the
// rule with the container even if every record is lost. It does not remove the rule before.
func TestLostAccept(t *testing.T) {
	nettest.Need(t, nettest.Program("iptables-nft"))
	iptables := func(args ...string) string {
		out, err := exec.Command("iptables-nft", args...).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
		return string(out)
	}
	iptables("-P", "FORWARD", "DROP")
	t.Cleanup(func() { iptables("-P", "FORWARD", "ACCEPT") })
	l := list(t, fmt.Sprintf(`{"cniVersion":"1.0.0","name":"single","plugins":[
		{"type":"ptp","ipam":{"type":"host-local","ranges":[[{"subnet":"%s.0/24"}]]}},{"type":"firewall"}]}`, subnet))
	rt := runtimeOf()
	warm(t, rt, l)
	before := leak.Must(t)
	path := attach(t, rt, l, "c1", 1)
	for _, dir := range []string{"attachments", "shared"} {
		if err := os.RemoveAll(filepath.Join(paths.Default().Run, dir)); err != nil {
			t.Fatal(err)
		}
	}
	collect(t, rt, nil)
	age(t)
	collect(t, rt, nil)
	if got := iptables("-S"); strings.Count(got, "-A PATCHBAY-ADDRESSES") != 2 {
		t.Errorf("of a living container:\n%s", got)
	}
	if err := netns.Delete(path); err != nil {
		t.Fatal(err)
	}
	for range 3 {
		collect(t, rt, nil)
		age(t)
	}
	leak.NoLeaks(t, before)
	if got := iptables("-S"); strings.Contains(got, "PATCHBAY") {
		t.Errorf("left:\n%s", got)
	}
}
