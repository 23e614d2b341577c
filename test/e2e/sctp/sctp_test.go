// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package sctp_test

import (
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/test/e2e/sctp"
)

func TestMain(m *testing.M) { nettest.Main(m) }

// TestAssociation: a client reaches a server over both families, connection tracking takes the
// association for open, and a port without a server does not answer.
func TestAssociation(t *testing.T) {
	if sctp.InKernel() {
		t.Log("the kernel has SCTP, and would answer too")
		return
	}
	nettest.Need(t, nettest.Program("nft"))
	rules := `add table inet t; add chain inet t in {type filter hook input priority 0; policy drop;}
		add rule inet t in meta l4proto != sctp accept
		add rule inet t in ct state established accept
		add rule inet t in ct state new sctp dport {9003, 9009} sctp chunk init exists accept`
	if out, err := exec.Command("nft", rules).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	go sctp.Serve(9003)
	for _, addr := range []string{"127.0.0.1", "::1"} {
		to := netip.MustParseAddr(addr)
		if err := sctp.Connect(netip.AddrPortFrom(to, 9003), 10*time.Second); err != nil {
			t.Errorf("%s: %v", addr, err)
		}
		for _, port := range []uint16{9004, 9009} { // dropped, and without a server
			if err := sctp.Connect(netip.AddrPortFrom(to, port), time.Second); !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("%s port %d: %v", addr, port, err)
			}
		}
	}
}
