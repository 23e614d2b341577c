// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hostdevice

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/internal/test/draw"
	"github.com/patchbay-net/patchbay/internal/test/endpointtest"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/hostlocal"
	"github.com/patchbay-net/patchbay/plugin/plugintest"
	"github.com/patchbay-net/patchbay/spec"
)

// TestKill kills processes at a random moment and looks at the devices that they leave.
func TestKill(t *testing.T) {
	w := newWorld(t)
	dir := plugintest.Install(t, &Plugin, &hostlocal.Plugin)
	p := w.Pod("kill", `"device": "hd0", "ipam": {"type": "host-local", "subnet": "10.9.0.0/24"}`)
	tries, away := draw.Number(t, "PATCHBAY_CRASH_TRIES", 18, 60), 0
	if testing.Short() {
		tries = 12
	}
	kills := nettest.NewKills(t, "ADD")
	for n := 0; kills.More(tries) || away == 0 && n < 10*tries; n++ {
		died := kills.Try(func(after time.Duration) bool { return p.Killed(dir, after) })
		if _, err := w.HostConn().Link("hd0"); err != nil && died {
			away++
		}
		endpointtest.Must(t, []func() error{func() error { return p.Do(spec.Del) }, func() error { return collect(p) }}[n%2]())
		w.isHome("killed", "hd0")
	}
	if away == 0 {
		t.Errorf("the device was home after each of %d kills: the test proves nothing", 10*tries)
	}
}

// An IPAM plugin may work through the interface, as dhcp does. It is called when the interface
// exists. If it fails, the device returns to the host.
func TestIPAMFails(t *testing.T) {
	looked := false
	looker := &plugin.Plugin{Name: "looker", Kind: plugin.IPAM, Add: func(context.Context, *plugin.Request) (*spec.Result, error) {
		looked = true
		return nil, errors.New("nothing to give")
	}}
	w := newWorld(t, looker)
	p := w.Pod("fails", `"device": "hd0", "ipam": {"type": "looker"}`)
	p.Refused("nothing to give")
	w.isHome("ADD", "hd0")
	if !looked {
		t.Error("IPAM was not called")
	}
}

// A real device comes back some time after its namespace ends, and perhaps never. The record
// makes the test's device look like a real one.
func TestNowhere(t *testing.T) {
	w := newWorld(t)
	p := w.pod("nowhere")
	endpointtest.Must(t, p.Do(spec.Add))
	path := records(t)[0]
	edit := func(old, to string) {
		text, err := os.ReadFile(path)
		endpointtest.Must(t, err)
		if !strings.Contains(string(text), old) {
			t.Fatalf("no %s in %s", old, text)
		}
		endpointtest.Must(t, os.WriteFile(path, []byte(strings.Replace(string(text), old, to, 1)), 0o600))
	}
	edit(`"kind":"veth"`, `"kind":"device"`)
	endpointtest.Must(t, p.Conn().LinkDel(p.Link("eth0")))
	start := time.Now()
	endpointtest.Must(t, p.Do(spec.Del))
	if took := time.Since(start); took < endTime {
		t.Errorf("DEL waited %v", took)
	}
	if len(records(t)) != 1 {
		t.Error("DEL forgot a device that may come back")
	}
	hardware := filepath.Join(t.TempDir(), "0000:00:01.0")
	endpointtest.Must(t, os.Mkdir(hardware, 0o755))
	edit(`"kind":"device"`, `"kind":"device","path":"`+hardware+`"`)
	endpointtest.Must(t, collect(p))
	if len(records(t)) != 1 {
		t.Error("GC forgot a device that may come back")
	}
	endpointtest.Must(t, os.Remove(hardware))
	endpointtest.Must(t, collect(p))
	if left := records(t); len(left) > 0 {
		t.Errorf("GC keeps what was unplugged: %q", left)
	}
}
