// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package bridge

import (
	"errors"
	"os/exec"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/test/endpointtest"
	"github.com/patchbay-net/patchbay/internal/test/nettest/node"
	"github.com/patchbay-net/patchbay/spec"
)

// A network is encrypted, and the agent has made no route yet, as after a boot. Nothing leaves by the default
// route, and containers of the host reach each other. The routes stay for the agent.
func TestUnreachable(t *testing.T) {
	w := newWorld(t)
	const network = `, "unreachable": ["10.9.0.0/16", "fd09::/48", "` + node.Client4 + `/32"]`
	w.Client.Serve("tcp", endpointtest.Join(node.Client4, "80"))
	before := w.Pod("a", dual+`, "ipMasq": true`).Add()
	w.Want("without the field", before.Ask("tcp", endpointtest.Join(node.Client4, "80")), "client "+node.Uplink4)
	a, b := w.Pod("b", dual+`, "ipMasq": true`+network).Add(), w.Pod("c", dual+network).Add()
	if got := a.AskBriefly("tcp", endpointtest.Join(node.Client4, "80")); !strings.Contains(got, "no route to host") {
		t.Errorf("a packet left: %q", got)
	}
	for n := range 2 {
		b.Serve("tcp", endpointtest.Join(b.IP(n), "80"))
		w.Want("container to container", a.Ask("tcp", endpointtest.Join(b.IP(n), "80")), "c "+a.IP(n))
	}
	for _, p := range []*endpointtest.Pod{a, b} {
		if err := errors.Join(p.Do(spec.Check), p.Do(spec.Del)); err != nil {
			t.Error(err)
		}
	}
	var routes []byte
	endpointtest.Must(t, w.Host.Do(func() (err error) {
		routes, err = exec.Command("sh", "-c", "ip route; ip -6 route").CombinedOutput()
		return err
	}))
	for _, want := range []string{"unreachable 10.9.0.0/16 proto 112", "unreachable fd09::/48 dev lo proto 112"} {
		if strings.Count(string(routes), want) != 1 {
			t.Errorf("the host has not once %s in\n%s", want, routes)
		}
	}
}
