// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package macvlan

import (
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/test/endpointtest"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/static"
	"github.com/patchbay-net/patchbay/spec"
)

// The kernel makes a macvlan on a master that is down, but it carries nothing. ADD and STATUS say so, as CHECK does.
func TestMasterIsDown(t *testing.T) {
	w := newWorld(t)
	endpointtest.Must(t, w.HostConn().LinkSetDown(w.Master("m0")))
	p := w.Pod("down", at(60, `"master": "m0", `))
	err := p.Do(spec.Add)
	w.Fails(err, `failed to set "eth0" UP: network is down: master "m0" is down`)
	if code := spec.ErrorCode(err); code != spec.CodeTryAgain {
		t.Errorf("code %d", code)
	}
	if _, err := p.Conn().Link("eth0"); !nl.IsNotFound(err) {
		t.Errorf("a failed ADD left eth0 (%v)", err)
	}
	err = p.Do(spec.Status)
	w.Fails(err, `master "m0" is down`)
	if code := spec.ErrorCode(err); code != spec.CodeNotAvailable {
		t.Errorf("code %d", code)
	}
	if doubts := judged(t, p); !strings.Contains(doubts, `master "m0" is down (ip link set m0 up)`) {
		t.Errorf("validate says %q", doubts)
	}
	endpointtest.Must(t, w.HostConn().LinkSetUp(w.HostLink("m0")))
	p.Add()
	endpointtest.Must(t, p.Do(spec.Check))
	endpointtest.Must(t, p.Do(spec.Status))
	if doubts := judged(t, p); doubts != "" {
		t.Errorf("validate says %q", doubts)
	}
	endpointtest.Must(t, w.HostConn().LinkSetDown(w.HostLink("m0")))
	w.Fails(p.Do(spec.Check), "master m0 of eth0 is down")
}

// judged returns the warnings of validate.
func judged(t *testing.T, p *endpointtest.Pod) string {
	t.Helper()
	s := plugin.NewSession([]*plugin.Plugin{&Plugin, &static.Plugin})
	call := p.Call
	call.Config = []byte("{" + p.Conf + "}")
	doubts, err := s.Validate("macvlan", &call, plugin.InList{First: true})
	endpointtest.Must(t, err)
	return strings.Join(doubts, "; ")
}
