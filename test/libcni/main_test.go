// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package libcni_test compares our library with that of containernetworking/cni: both do the same, and each reads what
// the other has written.
package libcni_test

import (
	"os"
	"testing"

	"github.com/containernetworking/cni/libcni"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/conformance/runtimes"
	"github.com/patchbay-net/patchbay/internal/test/chaintest"
)

// TestMain makes the test binary a plugin under the name of one, and a driver of a library with an argument.
func TestMain(m *testing.M) {
	switch {
	case runtimes.Recorder(os.Args[0]):
		os.Exit(runtimes.Record())
	case len(os.Args) == 4 && os.Args[1] == driverArgument:
		os.Exit(driver(os.Args[2], os.Args[3]))
	}
	chaintest.Main(m)
}

// bench is our runtime and libcni's, with the same plugins and the same cache.
type bench struct{ *chaintest.Bench }

func newBench(t *testing.T) *bench {
	t.Helper()
	return &bench{chaintest.New(t)}
}

// libcni returns a libcni runtime that uses the same plugins and the same cache.
func (b *bench) libcni() *libcni.CNIConfig {
	return libcni.NewCNIConfigWithCacheDir(b.Path, b.CacheDir, nil)
}

func runtimeConf(a chain.Attachment) *libcni.RuntimeConf {
	return &libcni.RuntimeConf{ContainerID: a.ContainerID, NetNS: a.NetNS, IfName: a.IfName, Args: a.Args, CapabilityArgs: a.Capabilities}
}

var attachment = chain.Attachment{ContainerID: "c1", NetNS: "/run/netns/c1", IfName: "eth0"}
