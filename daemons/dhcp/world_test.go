// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package dhcp_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/daemons/dhcp"
	"github.com/patchbay-net/patchbay/daemons/test/dhcptest"
	"github.com/patchbay-net/patchbay/internal/dhcprpc"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/spec"
)

// world is a network with a container, and a keeper.
type world struct {
	*testing.T
	ns     string
	opts   dhcp.Options
	keeper *dhcp.Keeper
	log    *dhcptest.Log
	clock  *dhcptest.Clock
}

// newWorld makes a world in which no address waits for the detection of duplicates.
func newWorld(t *testing.T) *world {
	ns := nettest.NewNS(t, "c1")
	dhcptest.NoDAD(t, ns)
	return newWorldOf(t, ns)
}

// newWorldOf makes a world with a container in a namespace.
func newWorldOf(t *testing.T, ns string) *world {
	dhcptest.LAN(t, "br0", "10.77.0.1/24", "fd77::1/64")
	w := &world{T: t, ns: ns, log: new(dhcptest.Log), clock: dhcptest.NewClock()}
	dhcptest.Plug(t, "br0", w.ns)
	w.opts = dhcp.Options{
		RunDir: t.TempDir(), Proc: "/proc", Timeout: 2 * time.Second, ResendMax: 62 * time.Second, ResendTimeout: 208 * time.Second, ReleaseTime: time.Minute, Watch: time.Minute, Clock: w.clock, Log: w.log.Printf,
	}
	w.start()
	t.Cleanup(func() {
		w.keeper.Close()
		if t.Failed() {
			t.Logf("the keeper said:\n%s", w.log)
		}
	})
	return w
}

func (w *world) start() {
	w.Helper()
	k, err := dhcp.New(w.opts)
	if err != nil {
		w.Fatal(err)
	}
	w.keeper = k
}

func (w *world) restart() {
	w.Helper()
	w.keeper.Close()
	w.start()
}

// impatient shortens the time that the keeper gives missing servers.
func (w *world) impatient() {
	w.Helper()
	w.opts.Timeout = 200 * time.Millisecond // of an ADD; a renewal takes at least 500 ms
	w.restart()
}

// inVain runs an ADD that no server answers. Whenever the ADD waits, for its next try or for its
// end, the clock jumps.
func (w *world) inVain(ipam string) error {
	w.Helper()
	failed := make(chan error, 1)
	go func() {
		_, err := w.keeper.Allocate(w.Context(), w.args("c1", ipam))
		failed <- err
	}()
	dhcptest.Eventually(w, "the end of an ADD in vain", func() bool {
		if w.clock.Asleep() == 2 {
			w.clock.Jump()
		}
		return len(failed) == 1
	})
	return <-failed
}

// args returns the arguments of a call for a container. ipam has more fields of the section ipam.
func (w *world) args(id, ipam string) *dhcprpc.Args {
	if ipam != "" {
		ipam = "," + ipam
	}
	return &dhcprpc.Args{ContainerID: id, Netns: w.ns, IfName: "eth0", StdinData: fmt.Appendf(nil, `{"name":"net","ipam":{"type":"dhcp"%s}}`, ipam)}
}

func (w *world) add(ipam string) *spec.Result {
	w.Helper()
	r, err := w.keeper.Allocate(w.Context(), w.args("c1", ipam))
	if err != nil {
		w.Fatal(err)
	}
	return r
}

func (w *world) del() {
	w.Helper()
	if err := w.keeper.Release(w.Context(), w.args("c1", "")); err != nil {
		w.Fatal(err)
	}
}

// configured runs an ADD and puts the first address on the interface.
func (w *world) configured(ipam string) string {
	w.Helper()
	r := w.add(ipam)
	gw := ""
	if r.IPs[0].Gateway.IsValid() {
		gw = r.IPs[0].Gateway.String()
	}
	dhcptest.Configure(w, w.ns, r.IPs[0].Address.String(), gw)
	return r.IPs[0].Address.String()
}

// passes lets time pass until ok returns true. Whenever the whole keeper sleeps, the clock jumps
// to the next wake-up. A request to a server takes real time.
func (w *world) passes(what string, ok func() bool) {
	w.Helper()
	dhcptest.Eventually(w, what, func() bool {
		if ok() {
			return true
		}
		if w.asleep() {
			w.clock.Jump()
		}
		return false
	})
}

// asleep reports whether every goroutine of every entry sleeps.
func (w *world) asleep() bool {
	all, ok := w.keeper.Sleepers()
	return ok && w.clock.Asleep() == all
}

// logged counts the keeper's log lines that contain a text.
func (w *world) logged(what string) int { return strings.Count(w.log.String(), what) }

func (w *world) has(addr string) bool {
	for _, a := range dhcptest.Addrs(w, w.ns) {
		if a == addr {
			return true
		}
	}
	return false
}

// files lists the leases on disk.
func (w *world) files() int {
	list, err := os.ReadDir(w.opts.RunDir + "/dhcp")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		w.Fatal(err)
	}
	return len(list)
}
