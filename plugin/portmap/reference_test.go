// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package portmap

import (
	"os/exec"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/spec"
)

// Another plugin of the reference made rules for the container, and the rules of the reference's
// portmap are gone. CHECK reports this and advises the right repair.
func TestCheckOfTheReferencesPorts(t *testing.T) {
	nettest.Need(t, nettest.Program("iptables-nft"))
	_, web, _ := world(t)
	a := of(web)
	iptables(t, "-N", "CNI-FORWARD")
	t.Cleanup(func() { iptables(t, "-F", "CNI-FORWARD"); iptables(t, "-X", "CNI-FORWARD") })
	iptables(t, "-A", "CNI-FORWARD", "-s", a.prev.IPs[0].Address.Addr().String(), "-j", "ACCEPT")
	err := a.call(t, spec.Check, ports(webPort))
	if err == nil || !strings.Contains(err.Error(), "published port 8080/tcp and hairpin are missing (attach it again") {
		t.Errorf("CHECK: %v", err)
	}
}

func iptables(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command("iptables-nft", args...).CombinedOutput(); err != nil {
		t.Fatalf("iptables-nft %v: %v: %s", args, err, out)
	}
}
