// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nft

import (
	"errors"
	"net"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/patchbay-net/patchbay/internal/test/nettest"
)

const flowRules = `table inet patchbay_flows {
	counter seen {
		packets 0 bytes 0
	}
	chain new {
		counter name "seen"
		limit rate 500/second burst 500 packets log prefix "patchbay flow" group 9473 snaplen 64
	}
	chain leaves {
		type filter hook postrouting priority srcnat - 10; policy accept;
		ct status ! confirmed jump new
	}
	chain arrives {
		type filter hook input priority 90; policy accept;
		ct status ! confirmed jump new
	}
}`

// The rules are those that a reader expects, a packet of a known connection meets one of them, and they go with the socket.
func TestNewConnections(t *testing.T) {
	nettest.Need(t, nettest.OwnedTables())
	n, err := TellNewConnections(9473, 500)
	if err != nil {
		t.Fatal(err)
	}
	list := func() string {
		out, err := exec.Command("nft", "list", "ruleset").CombinedOutput()
		if err != nil {
			t.Fatalf("nft: %v: %s", err, out)
		}
		var lines []string
		for line := range strings.Lines(string(out)) {
			line, _, _ = strings.Cut(strings.TrimRight(line, "\n"), " # progname")
			if line != "" && !strings.HasPrefix(line, "# ") && line != "\tflags owner" {
				lines = append(lines, line)
			}
		}
		return strings.Join(lines, "\n")
	}
	if got := list(); got != flowRules {
		t.Errorf("the rules are\n%s\nwant\n%s", got, flowRules)
	}
	if _, err := TellNewConnections(9473, 500); !errors.Is(err, syscall.EPERM) && !errors.Is(err, syscall.EEXIST) {
		t.Errorf("a second one got %v", err)
	}
	conn, err := net.Dial("udp", "127.0.0.1:9")
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		conn.Write([]byte("x")) //nolint:errcheck // nobody listens there
	}
	conn.Close() //nolint:errcheck // a test
	if count, err := n.Count(); err != nil || count != 1 {
		t.Errorf("%d connections began, %v; want 1", count, err)
	}
	if err := n.Close(); err != nil {
		t.Error(err)
	}
	if left := list(); left != "" {
		t.Errorf("left:\n%s", left)
	}
}
