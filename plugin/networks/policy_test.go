// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package networks

import (
	"errors"
	"net/netip"
	"slices"
	"testing"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/policy/mirror"
	"github.com/patchbay-net/patchbay/spec"
)

const policed = `{"cniVersion":"1.1.0","plugins":[
	{"type":"ptp","ipam":{"type":"host-local","subnet":"10.96.0.0/24"}},
	{"type":"policy"}]}`

// closedBy returns the addresses that are closed for an owner.
func closedBy(t *testing.T, ifName, network string) (list []string) {
	t.Helper()
	c := nft.Open("")
	defer c.Close() //nolint:errcheck // read only
	all, err := c.Owned()
	must(t, err)
	for _, e := range all {
		if o, _ := nft.OwnerOf(e.Comment); o == string(owner.Of(network, "c1", ifName)) && e.Set == nft.SetClosedIn4 {
			addr, _ := netip.AddrFromSlice(e.Key)
			list = append(list, addr.String())
		}
	}
	return list
}

// A further interface whose network has the plugin policy is closed as the pod's first one, before it has a link. Each address is closed
// under the owner of its own interface, and that of a network without the plugin under none. All is in force with the one transaction of the ADD.
func TestClosed(t *testing.T) {
	must(t, mirror.Isolate(paths.Default()))
	defer mirror.Remove(paths.Default()) //nolint:errcheck // a test's
	define(t, "shop/policed", policed, "shop/store", store)
	w := newWorld(t, "policed,store")
	commits := 0
	w.fault = func(step string) error {
		if step == "commit" {
			commits++
		}
		return nil
	}
	result := w.add()
	status, err := w.plan().Statuses()
	must(t, err)
	for _, c := range []struct{ ifName, network, addr string }{
		{"eth0", "pods", result.IPs[0].Address.Addr().String()}, {"net1", "policed", status[1].IPs[0]},
	} {
		if got := closedBy(t, c.ifName, c.network); !slices.Equal(got, []string{c.addr}) {
			t.Errorf("%s has closed %q, want %s", c.ifName, got, c.addr)
		}
	}
	if got := closedBy(t, "net2", "store"); len(got) > 0 {
		t.Errorf("net2 has closed %q, want nothing", got)
	}
	if commits != 1 {
		t.Errorf("%d transactions of the ADD, want 1", commits)
	}
	_, err = w.call(spec.Del, "")
	must(t, err)
	if got := closedBy(t, "net1", "policed"); len(got) > 0 {
		t.Errorf("closed after DEL: %q", got)
	}
}

// If the ADD fails after a further interface was closed, nothing stays closed.
func TestClosedAndFailed(t *testing.T) {
	must(t, mirror.Isolate(paths.Default()))
	defer mirror.Remove(paths.Default()) //nolint:errcheck // a test's
	define(t, "shop/policed", policed, "shop/a", `{"cniVersion":"1.0.0","type":"tape"}`)
	w := newWorld(t, "policed,a")
	w.warm()
	w.fault = func(step string) error {
		if step == "plugin tape" {
			return errors.New("stopped")
		}
		return nil
	}
	_ = w.refused("stopped")
}
