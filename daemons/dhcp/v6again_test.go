// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package dhcp_test

import (
	"os"
	"reflect"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/iana"

	"github.com/patchbay-net/patchbay/daemons/test/dhcptest"
)

// away stops the keeper for some time. A killed keeper writes nothing at its end.
func (w *world) away(d time.Duration, killed bool) {
	w.Helper()
	left := w.opts.RunDir
	if killed {
		left = w.TempDir() + "/run"
		must(w.T, os.CopyFS(left, os.DirFS(w.opts.RunDir)))
	}
	w.keeper.Close()
	w.opts.RunDir = left
	if d > 0 {
		go w.clock.Sleep(w.Context(), d)
		dhcptest.Eventually(w, "the time is known", func() bool { return w.clock.Asleep() == 1 })
		w.clock.Jump()
	}
	w.start()
}

// The next keeper renews or rebinds the leases of both families as the same client. It releases
// what the first keeper got.
func TestV6TakenUpAgain(t *testing.T) {
	for name, c := range map[string]struct {
		away   time.Duration
		killed bool
		asks   dhcpv6.MessageType
	}{
		"ended":          {asks: dhcpv6.MessageTypeRenew},
		"killed":         {killed: true, asks: dhcpv6.MessageTypeRenew},
		"ended past T1":  {away: 12 * time.Minute, asks: dhcpv6.MessageTypeRenew},
		"killed past T2": {away: 19 * time.Minute, killed: true, asks: dhcpv6.MessageTypeRebind},
	} {
		t.Run(name, func(t *testing.T) {
			w, s := newWorld(t), newScript(t)
			d := dhcptest.Dnsmasq(t, "br0", "--dhcp-range=10.77.0.10,10.77.0.10,255.255.255.0,200m", "--dhcp-option=option:T1,660")
			s.answerWith(dhcpv6.MessageTypeRequest, func(m *dhcpv6.Message) {
				na := ia(22*time.Minute, iana.StatusSuccess)
				na.T2 = 18 * time.Minute
				m.UpdateOption(na)
			})
			w.opts.Timeout = time.Minute // so that a slow machine does not make the keeper ask twice
			w.restart()
			before := w.add(`"dhcpv6":true`)
			dhcptest.Configure(t, w.ns, "10.77.0.10/24", "10.77.0.1")
			dhcptest.Configure(t, w.ns, "fd77::40/128", "")
			acks := d.Count("DHCPACK")
			w.away(c.away, c.killed)
			if got, err := w.keeper.Check(t.Context(), w.args("c1", "")); err != nil || !reflect.DeepEqual(got, before) {
				t.Errorf("CHECK: %+v, %v; want %+v", got, err, before)
			}
			w.passes("both are asked for again", func() bool { return s.was(c.asks) > 0 && d.Count("DHCPACK") > acks })
			w.passes("the keeper says so", func() bool { return w.logged("lease renewed")+w.logged("lease rebound") >= 2 })
			if got, err := w.keeper.Check(t.Context(), w.args("c1", "")); err != nil || !reflect.DeepEqual(got, before) {
				t.Errorf("renewed: CHECK: %+v, %v; want %+v", got, err, before)
			}
			if !w.has("10.77.0.10/24") || !w.has("fd77::40/128") || s.was(dhcpv6.MessageTypeSolicit) > 1 || d.Said("DHCPRELEASE") {
				t.Errorf("addresses %v, %d solicits", dhcptest.Addrs(t, w.ns), s.was(dhcpv6.MessageTypeSolicit))
			}
			w.del()
			d.WaitFor("DHCPRELEASE")
			dhcptest.Eventually(t, "the other is given back", func() bool { return s.was(dhcpv6.MessageTypeRelease) > 0 })
			if all := s.whose(); len(all) != 1 || w.files() != 0 {
				t.Errorf("clients %v, %d files", all, w.files())
			}
		})
	}
}
