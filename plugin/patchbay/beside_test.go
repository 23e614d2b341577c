// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package patchbay_test

import (
	"context"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/all"
	"github.com/patchbay-net/patchbay/spec"
)

// A runtime gives up an ADD and calls DEL while the ADD still runs. The DEL does not wait for ever. Whatever
// it finds, a fact or a record names each element that the firewall has afterwards.
func TestDelBesideAdd(t *testing.T) {
	for _, at := range []string{"commit", "member firewall", "member portmap"} {
		t.Run(at, func(t *testing.T) {
			ns := nettest.NewNS(t, "beside")
			conf := node
			if _, err := ask(spec.Del, ns, conf); err != nil {
				t.Fatal(err)
			}
			fault := func(step string) error {
				if step == at {
					if _, err := ask(spec.Del, ns, conf); err != nil {
						t.Error("DEL", err)
					}
				}
				return nil
			}
			err := addWith(ns, conf, fault)
			t.Log("ADD:", err)
			if _, err := ask(spec.Del, ns, conf); err != nil {
				t.Error(err)
			}
			unnamed(t)
		})
	}
}

// addWith runs an ADD that calls fault before every change.
func addWith(ns, fields string, fault func(string) error) error {
	b := plugin.Builtin{NewSession: func() *plugin.Session {
		s := plugin.NewSession(all.Plugins())
		s.Fault = fault
		return s
	}}
	_, err := b.Invoke(context.Background(), "patchbay", &spec.Call{
		Verb: spec.Add, ContainerID: "c1", NetNS: ns, IfName: "eth0", Path: []string{"/nonexistent"},
		Config: []byte(`{"cniVersion":"1.1.0","name":"rec","type":"patchbay",` + fields + `}`),
	})
	return err
}

// unnamed fails if the firewall has elements, or the run directory has facts or records.
func unnamed(t *testing.T) {
	t.Helper()
	c := nft.Open("")
	defer c.Close() //nolint:errcheck // read only
	ofNetworks, err := c.OfNetworks()
	owned, oerr := c.Owned()
	if err != nil || oerr != nil || len(ofNetworks)+len(owned) > 0 {
		t.Error(err, oerr, ofNetworks, owned)
	}
	_, facts, err := record.New("/run/patchbay").Facts()
	records, _ := filepath.Glob("/run/patchbay/attachments/*/*")
	if err != nil || len(facts)+len(records) > 0 {
		t.Error(err, fmt.Sprintf("%+v", facts), records)
	}
}
