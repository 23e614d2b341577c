// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/godbus/dbus/v5"

	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/internal/test/draw"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/internal/test/nettest/node"
	"github.com/patchbay-net/patchbay/spec"
)

const busConfig = `<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
<busconfig><type>custom</type><listen>unix:path=%s</listen><auth>EXTERNAL</auth>
<policy context="default"><allow user="*"/><allow own="*"/><allow send_destination="*"/><allow receive_sender="*"/></policy></busconfig>`

// startBus starts a private system bus for the test.
func startBus(t *testing.T) {
	t.Helper()
	nettest.Need(t, nettest.Program("dbus-daemon"))
	dir := t.TempDir()
	socket, config := filepath.Join(dir, "bus"), filepath.Join(dir, "bus.conf")
	if err := os.WriteFile(config, fmt.Appendf(nil, busConfig, socket), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path="+socket)
	start(t, "dbus-daemon", "--config-file="+config, "--nofork", "--nopidfile")
	eventually(t, "the bus", func() error {
		_, err := os.Stat(socket)
		return err
	})
}

// startFirewalld starts firewalld on the test's bus, with nftables.
func startFirewalld(t *testing.T) *daemon {
	t.Helper()
	nettest.Need(t, nettest.Program("firewalld"))
	startBus(t)
	start(t, "firewalld", "--nofork", "--nopid", "--log-target=console")
	var d *daemon
	eventually(t, "firewalld", func() (err error) {
		if d, err = connect(t.Context()); err != nil {
			return err
		}
		_, err = d.has(t.Context(), "trusted", netip.MustParsePrefix("192.0.2.99/32"))
		return err
	})
	t.Cleanup(d.close)
	return d
}

// start runs a program until the test ends.
func start(t *testing.T, program string, args ...string) {
	t.Helper()
	cmd := exec.Command(program, args...)
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // the process may have ended already
		_ = cmd.Wait()         // the error is our own signal
		if t.Failed() {
			t.Logf("%s: %s", program, out.String())
		}
	})
}

func eventually(t *testing.T, what string, try func() error) {
	t.Helper()
	var err error
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		if err = try(); err == nil {
			return
		}
	}
	t.Fatalf("%s did not come up: %v", what, err)
}

// zone calls a method of firewalld's zone interface.
func (d *daemon) zone(t *testing.T, method string, args ...any) {
	t.Helper()
	obj := d.conn.Object(firewalldName, firewalldPath)
	if err := obj.Call(firewalldName+"."+method, dbus.FlagNoAutoStart, args...).Err; err != nil {
		t.Fatalf("%s: %v", method, err)
	}
}

func TestFirewalld(t *testing.T) {
	reset(t)
	d := startFirewalld(t)
	n := node.New(t)
	c := n.Bridge("cni0", "10.1.0.1/24", "fd00:1::1/64").Container("c1", "10.1.0.5/24", "fd00:1::5/64")
	n.Client.Serve("tcp", ":80")
	d.zone(t, "zone.changeZoneOfInterface", "block", "cni0")
	outside := node.Client4 + ":80"
	blocked := c.AskBriefly("tcp", outside)
	if strings.HasPrefix(blocked, "client") {
		t.Fatalf("zone block let it through: %s", blocked)
	}
	before := sh(t, rules)

	for _, conf := range []string{`{"backend": "firewalld"}`, `{}`, `{"backend": "firewalld", "firewalldZone": "home"}`} {
		t.Run(conf, func(t *testing.T) {
			a := of(c)
			a.must(t, spec.Status, conf)
			a.must(t, spec.Add, conf)
			a.must(t, spec.Check, conf)
			a.must(t, spec.Add, conf) // ZONE_ALREADY_SET is no error
			if !strings.Contains(conf, "home") {
				expect(t, "in the zone", c.Space, outside, "client 10.1.0.5")
				expect(t, "in the zone, IPv6", c.Space, "["+node.Client6+"]:80", "client fd00:1::5")
			}
			d.zone(t, "reload") // drops sources that were added at run time
			d.zone(t, "zone.changeZoneOfInterface", "block", "cni0")
			if err := a.call(t, spec.Check, conf); err == nil || !strings.Contains(err.Error(), "failed to find the address 10.1.0.5/32 in") {
				t.Errorf("CHECK after a reload: %v", err)
			}
			restore(t)
			a.must(t, spec.Check, conf)
			a.del(t)
			for _, zone := range []string{"trusted", "home"} {
				for _, s := range []string{"10.1.0.5/32", "fd00:1::5/128"} {
					if in, err := d.has(t.Context(), zone, netip.MustParsePrefix(s)); err != nil || in {
						t.Errorf("%s is still in %s, %v", s, zone, err)
					}
				}
			}
			expect(t, "after DEL", c.Space, outside, blocked)
			a.del(t)
			nothingLeft(t, before)
		})
	}

	t.Run("another zone has it", func(t *testing.T) {
		d.zone(t, "zone.addSource", "work", "fd00:1::5/128")
		a := of(c)
		err := a.call(t, spec.Add, `{"backend": "firewalld"}`)
		if err == nil || !strings.Contains(err.Error(), "failed to add the address fd00:1::5/128 to trusted zone") {
			t.Errorf("%v", err)
		}
		if in, err := d.has(t.Context(), "trusted", netip.MustParsePrefix("10.1.0.5/32")); err != nil || in {
			t.Errorf("the failed ADD left its first address, %v", err)
		}
		d.zone(t, "zone.removeSource", "work", "fd00:1::5/128")
		nothingLeft(t, before)
	})

	t.Run("ADD again elsewhere, in another zone", func(t *testing.T) {
		a := of(c)
		a.prev.IPs = a.prev.IPs[:1]
		a.must(t, spec.Add, `{"backend": "firewalld", "firewalldZone": "home"}`)
		moved := *a.prev
		moved.IPs = []spec.IPConfig{{Address: netip.MustParsePrefix("10.1.0.6/24"), Interface: a.prev.IPs[0].Interface}}
		b := &attachment{id: a.id, netns: a.netns, prev: &moved}
		b.must(t, spec.Add, `{"backend": "firewalld"}`)
		a.del(t)
		for zone, s := range map[string]string{"home": "10.1.0.5/32", "trusted": "10.1.0.6/32"} {
			if in, err := d.has(t.Context(), zone, netip.MustParsePrefix(s)); err != nil || in {
				t.Errorf("%s is still in %s, %v", s, zone, err)
			}
		}
	})

	t.Run("two attachments with one address", func(t *testing.T) {
		a, b := of(c), of(c)
		b.id = "c2"
		conf := `{"backend": "firewalld"}`
		a.must(t, spec.Add, conf)
		b.must(t, spec.Add, conf)
		failing := &attachment{id: "c3", netns: a.netns, prev: a.prev, fault: func(step string) error {
			if strings.Contains(step, "fd00:1::5") {
				return errors.New("injected")
			}
			return nil
		}}
		if err := failing.call(t, spec.Add, conf); err == nil {
			t.Error("an ADD with a fault succeeds")
		}
		a.del(t)
		b.must(t, spec.Check, conf)
		if err := os.RemoveAll("/run/patchbay/attachments"); err != nil {
			t.Fatal(err)
		}
		b.del(t)
		for _, ip := range a.prev.IPs {
			s := netip.PrefixFrom(ip.Address.Addr(), ip.Address.Addr().BitLen())
			if in, err := d.has(t.Context(), "trusted", s); err != nil || in {
				t.Errorf("%s is still there after both, %v", s, err)
			}
		}
		nothingLeft(t, before)
	})

	t.Run("DEL without a record, as the reference does it", func(t *testing.T) {
		d.zone(t, "zone.addSource", "trusted", "10.1.0.5/32")
		of(c).must(t, spec.Del, `{"backend": "firewalld"}`)
		if in, err := d.has(t.Context(), "trusted", netip.MustParsePrefix("10.1.0.5/32")); err != nil || in {
			t.Errorf("it is still there, %v", err)
		}
	})
}

// restore does what `patchbay repair` does.
func restore(t *testing.T) {
	t.Helper()
	records, err := record.New("/run/patchbay").List("")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range records {
		if added, err := Restore(t.Context(), r); err != nil || len(added) != 2 {
			t.Fatal(added, err)
		}
	}
}

// A bus without firewalld counts as no bus. If firewalld has ended, a DEL does not wait for it.
func TestFirewalldGone(t *testing.T) {
	reset(t)
	n := node.New(t)
	c := n.Bridge("cni0", "10.1.0.1/24").Container("c1", "10.1.0.5/24")
	a := of(c)
	t.Run("with firewalld", func(t *testing.T) {
		startFirewalld(t)
		a.must(t, spec.Add, `{}`)
	})
	sh(t, "nft flush ruleset")
	startBus(t)
	if _, err := connect(context.Background()); err == nil || err.Error() != errNoFirewalld.Error() {
		t.Errorf("a bus without firewalld: %v", err)
	}
	err := a.call(t, spec.Status, `{"backend": "firewalld"}`)
	if spec.ErrorCode(err) != spec.CodeNotAvailable {
		t.Errorf("STATUS: %v", err)
	}
	a.must(t, spec.Status, `{}`)
	a.del(t)
	nothingLeft(t, "")
}

// A bus that accepts and never answers costs a limited time.
func TestHungBus(t *testing.T) {
	path := filepath.Join(t.TempDir(), "bus")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close() //nolint:errcheck // a test
	t.Setenv("DBUS_SYSTEM_BUS_ADDRESS", "unix:path="+path)
	most := draw.Time(t, "PATCHBAY_HUNG_BUS", 200*time.Millisecond, time.Hour) // of the caller
	ctx, cancel := context.WithTimeout(t.Context(), most)
	defer cancel()
	began := time.Now()
	if _, err := connect(ctx); err == nil || time.Since(began) > 2*firewalldTime {
		t.Errorf("after %v: %v", time.Since(began), err)
	}
}

func BenchmarkAutoBackend(b *testing.B) {
	for b.Loop() {
		if d, err := connect(b.Context()); err == nil {
			d.close()
		}
	}
}
