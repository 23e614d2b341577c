// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/daemons/cnm"
)

// joinedOld sets up an endpoint that joined before its sandbox existed, as before Docker 28. At
// the sandbox's path is a file, which dockerd left, or which hides the mount.
func (n *node) joinedOld(network string) *container {
	n.Helper()
	n.old = true
	c, err := n.begin(run{network: network})
	must(n, err)
	_, err = n.c.Join(n.ctx(), &cnm.JoinRequest{NetworkID: c.network, EndpointID: c.endpoint, SandboxKey: c.key})
	must(n, err)
	writeFile(n, c.key, "")
	n.Cleanup(func() { must(n, os.Remove(c.key)) })
	return c
}

// The collector reports unsure items and keeps them, until Docker's answer decides whether they
// are dead.
func TestUnsureIsReportedAndKept(t *testing.T) {
	n := newNode(t, bridgeNet)
	network := n.network("podnet")
	a := n.asking(network)
	a.err = errors.New("it boots")
	c := n.joinedOld(network)
	for _, dry := range []bool{true, false} {
		out := n.driver.Collect(n.ctx(), Collection{Apply: !dry})
		if len(out.Items) != 1 || out.Failed != "" || out.Items[0].State != "unsure" || out.Items[0].Removed || !strings.Contains(out.Items[0].Why, c.key) {
			t.Errorf("dry %v: %s", dry, asJSON(out))
		}
	}
	n.sweep(0)
	a.err = nil
	a.ends[network] = map[string]engineEndpoint{c.endpoint: {}}
	n.collect(false)
	a.ends[network] = map[string]engineEndpoint{}
	n.collect(false, kindEndpoint+": "+forgot)
}

// The same reason is logged once. Another reason is logged again.
func TestUnsureIsLoggedOnce(t *testing.T) {
	var log []string
	d := &Driver{opts: Options{Log: func(format string, args ...any) { log = append(log, fmt.Sprintf(format, args...)) }}}
	item := func(name, state, why string) Item {
		return Item{Kind: kindEndpoint, Name: name, State: state, Why: why}
	}
	var h logged
	for _, found := range [][]Item{
		{item("a", "unsure", "x"), item("b", "dead", "y")},
		{item("a", "unsure", "x")},
		{item("a", "unsure", "z"), item("c", "unsure", "x")},
		{item("c", "unsure", "x")},
		{item("a", "unsure", "z")},
	} {
		h.unsure(d, found)
	}
	want := []string{"endpoint a is kept: x", "endpoint a is kept: z", "endpoint c is kept: x", "endpoint a is kept: z"}
	if !slices.Equal(log, want) {
		t.Errorf("%q, want %q", log, want)
	}
}
