// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package dhcptest

import (
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/daemons/dhcp"
)

// Serve serves our keeper of leases at a path, in this process, with state in
// /run/patchbay.
func Serve(t testing.TB, socket string) *Log {
	t.Helper()
	_, log := ServeWith(t, socket, func(o *dhcp.Options) { o.Watch = 200 * time.Millisecond })
	return log
}

// ServeWith serves a keeper whose options change completes.
func ServeWith(t testing.TB, socket string, change func(*dhcp.Options)) (*dhcp.Keeper, *Log) {
	t.Helper()
	log := new(Log)
	o := dhcp.Options{
		RunDir: "/run/patchbay", Proc: "/proc", Timeout: time.Second, ResendMax: 2 * time.Second, ResendTimeout: 30 * time.Second,
		ReleaseTime: 2 * time.Second, Log: log.Printf,
	}
	change(&o)
	k, err := dhcp.New(o)
	must(t, err)
	must(t, os.MkdirAll(filepath.Dir(socket), 0o700))
	l, err := net.Listen("unix", socket)
	must(t, err)
	var served sync.WaitGroup
	served.Go(func() {
		if err := k.Serve(l); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		l.Close() //nolint:errcheck // it ends Serve
		served.Wait()
		if t.Failed() {
			t.Logf("the keeper said:\n%s", log)
		}
	})
	return k, log
}
