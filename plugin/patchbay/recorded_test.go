// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package patchbay_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/internal/test/nettest/leak"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/all"
	"github.com/patchbay-net/patchbay/spec"
)

// node is a chain with a plugin of every kind.
const node = `"plugins":[
	{"type":"bridge","bridge":"rec0","isGateway":true,"ipMasq":true,"ipam":{"type":"host-local","subnet":"10.67.0.0/24","dataDir":"/run/elsewhere"}},
	{"type":"portmap","capabilities":{"portMappings":true}},
	{"type":"firewall","ingressPolicy":"same-bridge"},
	{"type":"tuning","mtu":1400,"dataDir":"/run/tuned"},
	{"type":"bandwidth","ingressRate":8000000,"ingressBurst":80000}],
	"runtimeConfig":{"portMappings":[{"hostPort":10091,"containerPort":80}]}`

func ask(verb spec.Verb, ns, fields string) (stderr string, err error) {
	var log bytes.Buffer
	b := plugin.Builtin{NewSession: func() *plugin.Session {
		s := plugin.NewSession(all.Plugins())
		s.Stderr = &log
		return s
	}}
	call := &spec.Call{
		Verb: verb, ContainerID: "c1", NetNS: ns, IfName: "eth0", Path: []string{"/nonexistent"},
		Config: []byte(`{"cniVersion":"1.1.0","name":"rec","type":"patchbay",` + fields + `}`),
	}
	if !call.PerContainer() {
		call.ContainerID, call.NetNS, call.IfName = "", "", ""
	}
	_, err = b.Invoke(context.Background(), "patchbay", call)
	return log.String(), err
}

// TestDelWithoutPlugins damages the configuration in every way. DEL and GC still remove
// everything that has a record.
func TestDelWithoutPlugins(t *testing.T) {
	damaged := map[string]string{
		"missing": `"x":1`,
		"empty":   `"plugins":[]`,
		"a word":  `"plugins":"bridge"`,
		"partly":  `"plugins":[{"type":"bridge","bridge":"rec0"},{"type":"../x"},7]`,
	}
	for name, fields := range damaged {
		for _, verb := range []spec.Verb{spec.Del, spec.GC} {
			t.Run(fmt.Sprintf("%s %s", verb, name), func(t *testing.T) {
				ns := nettest.NewNS(t, "rec")
				dirs := append(leak.Dirs(), "/run/elsewhere", "/run/tuned")
				warm(t, ns)
				before := leak.Must(t, dirs...)
				if _, err := ask(spec.Add, ns, node); err != nil {
					t.Fatal(err)
				}
				if _, err := ask(spec.Check, ns, fields); err == nil {
					t.Error("CHECK takes a damaged configuration")
				}
				conf := fields
				if verb == spec.GC {
					conf += `,"cni.dev/valid-attachments":[]`
				}
				log, err := ask(verb, ns, conf)
				if err != nil || !strings.Contains(log, "warning") {
					t.Errorf("%v, and on standard error %q", err, log)
				}
				leak.NoLeaks(t, before, dirs...)
				if _, err := ask(spec.Del, ns, fields); err != nil {
					t.Errorf("second DEL: %v", err)
				}
			})
		}
	}
}

// warm makes the objects that stay with the network.
func warm(t *testing.T, ns string) {
	t.Helper()
	for _, verb := range []spec.Verb{spec.Add, spec.Del} {
		if _, err := ask(verb, ns, node); err != nil {
			t.Fatal(err)
		}
	}
}

// If a GC cannot read its list of attachments, it keeps all of them.
func TestGCKeepsTheLiving(t *testing.T) {
	ns := nettest.NewNS(t, "rec")
	if _, err := ask(spec.Add, ns, node); err != nil {
		t.Fatal(err)
	}
	before := leak.Must(t)
	for _, fields := range []string{`"x":1`, `"x":1,"cni.dev/valid-attachments":[{"containerID":"c1","ifname":"eth0"}]`} {
		if _, err := ask(spec.GC, ns, fields); err != nil {
			t.Error(err)
		}
		leak.NoLeaks(t, before)
		if gone := before.Beyond(leak.Must(t)); len(gone) > 0 {
			t.Errorf("GC %s removed\n%s", fields, gone)
		}
	}
	if _, err := ask(spec.Del, ns, node); err != nil {
		t.Error(err)
	}
}
