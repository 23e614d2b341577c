// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cnmcli

import (
	"io"
	"testing"

	"github.com/patchbay-net/patchbay/daemons/test/cnmtest"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/all"
	"github.com/patchbay-net/patchbay/spec"
)

// TestItsOwnIPAM configures a plugin as its own IPAM plugin. Dry and real runs refuse that, so the
// plugin does not call itself without end. (FuzzConfiguration found it.)
func TestItsOwnIPAM(t *testing.T) {
	fresh(t)
	d := &cnmtest.Driver{}
	cnmtest.Start(t, "lab", d)
	ns := nettest.NewNS(t, "itself")
	for _, dry := range []func(string){nil, func(string) {}} {
		b := plugin.Builtin{NewSession: func() *plugin.Session {
			s := plugin.NewSession(append(Plugins(), all.Plugins()...))
			s.Stderr, s.Dry = io.Discard, dry
			return s
		}}
		for _, kind := range []string{"bridge", "ptp", "macvlan", "cnm"} {
			conf := `{"cniVersion":"1.1.0","name":"itself","type":"` + kind + `","driver":"lab","master":"lo","ipam":{"type":"` + kind + `"}}`
			call := &spec.Call{Verb: spec.Add, ContainerID: "c", NetNS: ns, IfName: "eth0", Path: []string{"/nonexistent"}, Config: []byte(conf)}
			if _, err := b.Invoke(t.Context(), kind, call); err == nil {
				t.Errorf("%s is its own IPAM plugin", kind)
			}
			call.Verb = spec.Del
			if _, err := b.Invoke(t.Context(), kind, call); err != nil {
				t.Errorf("%s: DEL: %v", kind, err)
			}
		}
	}
	if n := d.Endpoints(); n > 0 {
		t.Errorf("%d endpoints", n)
	}
}
