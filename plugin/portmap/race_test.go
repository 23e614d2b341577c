// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package portmap

import (
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/patchbay-net/patchbay/internal/test/nettest/node"
	"github.com/patchbay-net/patchbay/spec"
)

// Many attachments ask for one port at the same time. Exactly one gets it.
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
		} else if !strings.Contains(err.Error(), " is taken by container") {
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

// Two ADDs of one attachment run at once, as two entries of a list. One DEL removes both.
func TestAddBesideAdd(t *testing.T) {
	n := node.New(t)
	c := n.Bridge("cni0", "10.1.0.1/24").Container("c", "10.1.0.10/24")
	for range 30 {
		var both sync.WaitGroup
		for _, port := range []string{webPort, newPort} {
			both.Go(func() {
				if err := of(c).call(t, spec.Add, ports(port)); err != nil {
					t.Error("ADD:", err)
				}
			})
		}
		both.Wait()
		of(c).del(t)
		nothingLeft(t)
	}
}

// A DEL and an ADD of the same attachment run at the same time, and the DEL takes effect before or
// after the ADD. Either the ports exist with their record, or neither does. The next DEL leaves
// nothing.
func TestAddBesideDel(t *testing.T) {
	n := node.New(t)
	b := n.Bridge("cni0", "10.1.0.1/24")
	c := b.Container("c", "10.1.0.10/24")
	for round := range 30 {
		var both sync.WaitGroup
		both.Go(func() {
			if err := of(c).call(t, spec.Add, ports(webPort)); err != nil {
				t.Error("ADD:", err)
			}
		})
		both.Go(func() {
			if err := (&attachment{network: "net", id: "c", ifName: "eth0"}).call(t, spec.Del, `{}`); err != nil {
				t.Error("DEL:", err)
			}
		})
		both.Wait()
		if left, err := filepath.Glob("/run/patchbay/attachments/net/*." + name); err != nil || len(left) == 0 && elements(t) > 0 {
			t.Fatalf("round %d: ports without a record: %v", round, err)
		}
		of(c).del(t)
		nothingLeft(t)
	}
}
