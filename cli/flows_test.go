// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/internal/flows"
	"github.com/patchbay-net/patchbay/internal/sight"
)

var aFlow = flows.Flow{
	From: sight.End{Address: netip.MustParseAddr("10.1.0.5"), Pod: "shop/web"}, To: sight.End{Address: netip.MustParseAddr("10.1.0.6"), Pod: "shop/db"},
	Protocol: "tcp", Port: 5432, Via: netip.MustParseAddrPort("10.96.0.10:5432"), Now: 12, Seen: 340, Last: aDrop.Time, Bytes: 1841,
}

// Each kind of line that is no flow has a text.
func TestFlowText(t *testing.T) {
	at := aDrop.Time
	for _, c := range []struct {
		line flows.Line
		want string
	}{
		{flows.Line{Connection: &flows.Connection{Time: at, From: aFlow.From, To: aFlow.To, Protocol: "udp", Port: 53}},
			"2026-12-01 12:00:01.250  shop/web 10.1.0.5 -> shop/db 10.1.0.6  udp 53"},
		{flows.Line{Folded: &flows.Folded{From: "shop/spy", Now: 2, Seen: 1}}, "1 connection of further flows from shop/spy, of which 2 are there now"},
		{flows.Line{Folded: &flows.Folded{To: "shop/web", Seen: 3}}, "3 connections of further flows from unknown addresses to shop/web, of which 0 are there now"},
		{flows.Line{Folded: &flows.Folded{Seen: 3}}, "3 connections of further flows, of which 0 are there now"},
		{flows.Line{More: &flows.More{NotShown: 7, Lost: 1}}, "7 connections not shown, 1 lost on the way"},
		{flows.Line{Missed: 3}, "3 lines are missing, because they came faster than they were printed"},
		{flows.Line{Totals: &flows.Totals{At: at, Connections: 5, Flows: 2, Counted: true}}, "5 connections at 12:00:01: 2 flows"},
		{
			flows.Line{Totals: &flows.Totals{
				Since: at.Add(-time.Minute), At: at, Dumps: 7, Seconds: 0.0077, Next: 10, Connections: 1, Flows: 2, Seen: 9, Folded: 3, Forgotten: 1, Unmarked: 4,
			}},
			"1 connection at 12:00:01, 9 seen since 2026-12-01 11:59:01 in 7 dumps, the last of which took 8 ms; the next one comes 10 s later: 2 flows, " +
				"3 connections of further flows, 1 connection of flows that were forgotten, 4 connections too many to know whether they are new; " +
				"bytes are not known, because net.netfilter.nf_conntrack_acct is 0",
		},
		{flows.Line{}, "a line of a newer agent, which this patchbay does not know"},
	} {
		if got := flowText(c.line); got != c.want {
			t.Errorf("got  %s\nwant %s", got, c.want)
		}
	}
}

// The command asks for what the flags say, and prints a table and what follows it.
func TestFlowsCommand(t *testing.T) {
	dir := t.TempDir()
	asked := agentSays(t, flows.Socket(dir), flows.Line{Flow: &aFlow}, flows.Line{Folded: &flows.Folded{Seen: 2}}, flows.Line{Error: "a\n problem"})
	table := `FROM               TO                PORT      VIA              NOW  SEEN  LAST      BYTES
shop/web 10.1.0.5  shop/db 10.1.0.6  tcp 5432  10.96.0.10:5432  12   340   12:00:01  1841
2 connections of further flows, of which 0 are there now
`
	commandsPrint(t, dir, asked, map[string]printed{
		"flows --pod shop/web": {`{"most":100,"end":"shop/web"}`, table, "patchbay: a problem"},
		"flows -f -n 0 --json": {`{"follow":true}`, `{"flow":{"from":{"address":"10.1.0.5","pod":"shop/web"},"to":`, ""},
	})
	if status, _, errs := dropsRun(t.TempDir(), "flows -f"); status != 1 || !strings.Contains(errs, sight.ErrDial.Error()) {
		t.Errorf("without an agent: status %d, %s", status, errs)
	}
	if status, _, errs := dropsRun(dir, "flows --most -1"); status == 0 || !strings.Contains(errs, "--most") {
		t.Errorf("with less than nothing: status %d, %s", status, errs)
	}
}
