// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"bufio"
	"encoding/json"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/internal/drops"
	"github.com/patchbay-net/patchbay/internal/sight"
)

var aDrop = drops.Drop{
	Time: time.Date(2026, 12, 1, 12, 0, 1, 250e6, time.Local), Direction: "ingress", Cause: "isolated", Protocol: "tcp", Port: 5433,
	From: sight.End{Address: netip.MustParseAddr("10.1.0.5"), Pod: "shop/web"}, To: sight.End{Address: netip.MustParseAddr("10.1.0.6")},
	Reason: "no rule allows it",
}

// Each kind of line has a text.
func TestDropText(t *testing.T) {
	ping, other := aDrop, aDrop
	ping.Protocol, ping.Port = "icmpv6", 128
	other.Protocol, other.Port = "protocol 89", 0
	for _, c := range []struct {
		line drops.Line
		want string
	}{
		{drops.Line{Drop: &aDrop}, "2026-12-01 12:00:01.250  shop/web 10.1.0.5 -> 10.1.0.6  tcp 5433  ingress: no rule allows it"},
		{drops.Line{Drop: &ping}, "2026-12-01 12:00:01.250  shop/web 10.1.0.5 -> 10.1.0.6  icmpv6 type 128  ingress: no rule allows it"},
		{drops.Line{Drop: &other}, "2026-12-01 12:00:01.250  shop/web 10.1.0.5 -> 10.1.0.6  protocol 89  ingress: no rule allows it"},
		{drops.Line{More: &drops.More{Direction: "egress", Cause: "denied", Packets: 1}}, "1 packet not shown: egress, denied"},
		{drops.Line{Missed: 3}, "3 lines are missing, because they came faster than they were printed"},
		{
			drops.Line{Totals: &drops.Totals{Since: aDrop.Time, Counted: 12, Shown: 3, Lost: 1, NotShown: 8}},
			"12 packets of the node dropped since 2026-12-01 12:00:01: 3 shown, 1 lost on the way, 8 not shown",
		},
		{drops.Line{}, "a line of a newer agent, which this patchbay does not know"},
	} {
		if got := dropText(c.line); got != c.want {
			t.Errorf("got  %s\nwant %s", got, c.want)
		}
	}
}

// What a terminal would obey is not printed: controls of C0 and C1, and those that turn text around.
func TestPrintable(t *testing.T) {
	if got := printable("shop/\x1b[31mweb\u009b1m\u202eevil\x7f\n é"); got != "shop/[31mweb1mevil é" {
		t.Errorf("got %q", got)
	}
}

// dropsRun runs the command with a directory of records.
func dropsRun(dir, args string) (status int, out, errs string) {
	var stdout, stderr strings.Builder
	a := newApp(nil)
	a.args, a.stdout, a.stderr, a.paths.Run = strings.Fields(args), &stdout, &stderr, dir
	status = a.main()
	return status, stdout.String(), strings.TrimSpace(stderr.String())
}

// agentSays answers each client with lines, and tells what it was asked.
func agentSays(t *testing.T, path string, lines ...any) (asked chan string) {
	t.Helper()
	if err := os.Mkdir(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() }) //nolint:errcheck // a test
	asked = make(chan string, 1)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			line, _ := bufio.NewReader(conn).ReadString('\n')
			asked <- strings.TrimSpace(line)
			enc := json.NewEncoder(conn)
			for _, line := range lines {
				enc.Encode(line) //nolint:errcheck // the test sees the output
			}
			conn.Close() //nolint:errcheck // as well
		}
	}()
	return asked
}

// printed is what a command asks of the agent, how its output begins, and its remarks.
type printed struct{ request, out, errs string }

// commandsPrint runs commands, by their arguments, beside the agent of agentSays.
func commandsPrint(t *testing.T, dir string, asked <-chan string, commands map[string]printed) {
	t.Helper()
	for args, want := range commands {
		status, out, errs := dropsRun(dir, args)
		if status != 0 {
			t.Fatalf("%s: status %d: %s", args, status, errs)
		}
		if got := <-asked; got != want.request {
			t.Errorf("%s asks %s, want %s", args, got, want.request)
		}
		if !strings.HasPrefix(out, want.out) || errs != want.errs {
			t.Errorf("%s prints\n%s\nand\n%s", args, out, errs)
		}
	}
}

// The command asks for what the flags say, and prints what the agent says.
func TestDropsCommand(t *testing.T) {
	dir := t.TempDir()
	asked := agentSays(t, drops.Socket(dir), drops.Line{Drop: &aDrop}, drops.Line{Error: "another\n reader"})
	commandsPrint(t, dir, asked, map[string]printed{
		"drops -f --pod shop/web": {`{"follow":true,"last":100,"end":"shop/web"}`, dropText(drops.Line{Drop: &aDrop}), "patchbay: another reader"},
		"drops --json -n 0":       {`{}`, `{"drop":{"time":"2026-12-01T12:00:01.25`, ""},
	})
	if status, _, errs := dropsRun(t.TempDir(), "drops"); status != 1 || !strings.Contains(errs, sight.ErrDial.Error()) {
		t.Errorf("without an agent: status %d, %s", status, errs)
	}
	if status, _, errs := dropsRun(dir, "drops --last -1"); status == 0 || !strings.Contains(errs, "--last") {
		t.Errorf("with less than nothing: status %d, %s", status, errs)
	}
}
