// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cnmipam

import (
	"fmt"
	"os"
	"testing"

	"github.com/patchbay-net/patchbay/daemons/test/cnmtest"
	"github.com/patchbay-net/patchbay/internal/test/draw"
	"github.com/patchbay-net/patchbay/internal/test/endpointtest"
	"github.com/patchbay-net/patchbay/plugin/ptp"
	"github.com/patchbay-net/patchbay/spec"
)

// TestAgainWhileAway attaches a container again before the driver could release its old address.
// The record of that old address must not be lost.
func TestAgainWhileAway(t *testing.T) {
	must := endpointtest.Must
	must(t, os.RemoveAll("/var/lib/patchbay")) // other tests use the same network name
	t.Cleanup(func() { must(t, os.RemoveAll("/var/lib/patchbay")) })
	d := &cnmtest.Driver{}
	srv := cnmtest.Start(t, "away", d)
	w := endpointtest.New(t, &ptp.Plugin, &Plugin)
	p := w.Pod("a", `"ipam":{"type":"cnm-ipam","driver":"away","subnet":"10.83.0.0/24"}`)
	must(t, p.Do(spec.Add))
	srv.Stop()
	must(t, p.Do(spec.Del))
	if err := p.Do(spec.Add); spec.ErrorCode(err) != spec.CodeTryAgain {
		t.Errorf("ADD without the driver: code %d, %v", spec.ErrorCode(err), err)
	}
	srv.Serve(t)
	must(t, p.Do(spec.Add))
	must(t, p.Do(spec.Del))
	w.Want("addresses out", fmt.Sprint(d.Addresses()), "1") // the gateway's
	must(t, p.Do(spec.Add))
	back := srv.Away(t, draw.All(t))
	must(t, p.Do(spec.Del))
	back()
	srv.Fault("IpamDriver.ReleaseAddress", -1, cnmtest.Cut()) // like a driver that panics over an unknown address
	must(t, p.Do(spec.Add))                                   // the error must not stop the ADD
}
