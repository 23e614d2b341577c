// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package portmap

import (
	"fmt"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/nettest/node"
	"github.com/patchbay-net/patchbay/spec"
)

// Of many that ask for one port at the same time exactly one has it.
func TestRace(t *testing.T) {
	n := node.New(t)
	b := n.Bridge("cni0", "10.1.0.1/24")
	const callers = 8
	var all []*attachment
	for i := range callers {
		all = append(all, of(b.Container(fmt.Sprintf("c%d", i), fmt.Sprintf("10.1.0.%d/24", 10+i))))
	}
	errs := make(chan error, callers)
	for _, a := range all {
		go func() { errs <- a.call(t, spec.Add, ports(webPort)) }()
	}
	won := 0
	for range callers {
		if err := <-errs; err == nil {
			won++
		} else if !strings.Contains(err.Error(), "host port is taken by container") {
			t.Errorf("lost with %v", err)
		}
	}
	if won != 1 {
		t.Errorf("%d have the port", won)
	}
	for _, a := range all {
		a.del(t)
	}
	nothingLeft(t)
}
