// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"fmt"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/record"
)

// TestStandingOfDrivers checks that ps lists attachments of Docker's drivers from the records of
// patchbay-cnm. It leaves out those that only wait for their driver.
func TestStandingOfDrivers(t *testing.T) {
	p := paths.From(func(string) string { return t.TempDir() })
	store := record.OfDrivers(p.State)
	defer store.Close()
	const (
		network = `{"driver":{"name":"lab","url":"unix:///x"},"interface":{"Address":"10.88.0.2/24","AddressIPv6":"","MacAddress":"02:42:aa:bb:cc:01"}}`
		ipam    = `{"driver":{"url":"unix:///y"},"addresses":[{"poolId":"p","address":"10.88.0.2/24"},{"poolId":"q","address":"fd88::2/64"}]}`
		ended   = `{"driver":{"name":"lab","url":"unix:///x"},"ended":true}`
	)
	for id, remote := range map[string]map[string]string{
		"a": {"cnm": network, "cnm-ipam": ipam}, "b": {"cnm": ended, "cnm-ipam": ipam}, "c": {"cnm": `{"driver":{},"interface":{}}`}, "d": {"cnm": `{"driver":7}`},
	} {
		for plugin, data := range remote {
			if err := store.Write(&record.Record{Plugin: plugin, Owner: owner.Of("net", id, "eth0"), Network: "net", ContainerID: id, IfName: "eth0", Remote: []byte(data)}); err != nil {
				t.Fatal(err)
			}
		}
	}
	a := &app{paths: p, getenv: func(string) string { return "" }}
	list, err := a.attachments("")
	if err == nil || !strings.Contains(err.Error(), "record of d/eth0: broken record") {
		t.Errorf("the torn record: %v", err)
	}
	got := ""
	for _, s := range list {
		got += fmt.Sprintln(s.ContainerID, s.Driver, s.Addresses, s.Plugins)
	}
	if want := "a lab [10.88.0.2/24 fd88::2/64] [cnm cnm-ipam]\nc  [] [cnm]\n"; got != want {
		t.Errorf("got:\n%swant:\n%s", got, want)
	}
}
