// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package crash

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/spec"
)

// given is a chain. Its network assigns an address that another network assigns too.
const given = `{"cniVersion":"1.1.0","name":%q,"type":"patchbay","plugins":[
	{"type":"bridge","bridge":%q,"isGateway":true,"ipMasq":true,
	 "ipam":{"type":"static","addresses":[{"address":"10.78.0.5/24","gateway":"10.78.0.1"}]}},
	{"type":"portmap","capabilities":{"portMappings":true}}],
	"runtimeConfig":{"portMappings":[{"hostPort":%d,"containerPort":80,"protocol":"tcp"}]}%s}`

func sameAddress(verb spec.Verb, id, ns, extra string) *spec.Call {
	port := map[string]int{"keeps": 11000, "killed": 11001}[id]
	c := &spec.Call{Verb: verb, Path: []string{"/nonexistent"}, Config: fmt.Appendf(nil, given, "net-"+id, id, port, extra)}
	if c.PerContainer() {
		c.ContainerID, c.NetNS, c.IfName = id, ns, "eth0"
	}
	return c
}

// An attachment has the address of another one. Its ADD, DEL and GC are killed with kill -9 at
// random points. The other attachment keeps all its objects.
func TestKillSameAddress(t *testing.T) {
	keeps, killed := nettest.NewNS(t, "crash-keeps"), nettest.NewNS(t, "crash-killed")
	do := func(c *spec.Call) {
		if died(t, c, time.Minute) {
			t.Fatalf("%s takes a minute", c.Verb)
		}
	}
	do(sameAddress(spec.Add, "keeps", keeps, ""))
	was := ofAddress(t)
	adds, ends := nettest.NewKills(t, "ADD"), []*nettest.Kills{nettest.NewKills(t, "DEL"), nettest.NewKills(t, "GC")}
	end := []*spec.Call{sameAddress(spec.Del, "killed", killed, ""), sameAddress(spec.GC, "killed", "", keepNobody)}
	for n := 0; adds.More(tries(t)/2) || ends[0].More(tries(t)/4) || ends[1].More(tries(t)/4); n++ {
		try(t, adds, sameAddress(spec.Add, "killed", killed, ""))
		try(t, ends[n/2%2], end[n/2%2])
		do(end[n%2])
		if now := ofAddress(t); now != was {
			t.Fatalf("try %d:\n%s\nwas\n%s", n, now, was)
		}
	}
	do(sameAddress(spec.Add, "killed", killed, ""))
	do(sameAddress(spec.Del, "keeps", keeps, ""))
	do(sameAddress(spec.Del, "killed", killed, ""))
	if left := ofAddress(t); left != "" {
		t.Errorf("left:\n%s", left)
	}
}

// ofAddress lists the firewall elements of the address.
func ofAddress(t *testing.T) string {
	t.Helper()
	fw := nft.Open("")
	defer fw.Close() //nolint:errcheck // a test
	elems, err := fw.Owned()
	if err != nil {
		t.Fatal(err)
	}
	var b strings.Builder
	for _, e := range elems {
		if strings.Contains(e.String(), "10.78.0.5") {
			fmt.Fprintln(&b, e)
		}
	}
	return b.String()
}
