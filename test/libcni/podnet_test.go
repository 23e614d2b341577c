// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package libcni_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/containernetworking/cni/libcni"

	"github.com/patchbay-net/patchbay/internal/podnet"
)

// libcni, as in containerd 2 and CRI-O, chooses version 1.1.0, which has STATUS, and calls no GC,
// which would remove the pods of other runtimes. IsOurs also recognizes the file of an older agent,
// which lacks both keys, or the plugin policy.
func TestNetworkVersions(t *testing.T) {
	n := podnet.Network{Cluster: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}, Node: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}}
	list, err := libcni.NetworkConfFromBytes(n.Text())
	if err != nil || list.CNIVersion != "1.1.0" || !list.DisableGC {
		t.Errorf("%+v, %v", list, err)
	}
	before := strings.Replace(string(n.Text()), ",\n  \"cniVersions\": [\"1.0.0\", \"1.1.0\"],\n  \"disableGC\": true", "", 1)
	if before == string(n.Text()) || !podnet.IsOurs([]byte(before)) {
		t.Errorf("%s", before)
	}
	before = strings.Replace(string(n.Text()), ",\n        {\"type\": \"policy\"}", "", 1)
	if before == string(n.Text()) || !podnet.IsOurs([]byte(before)) {
		t.Errorf("%s", before)
	}
}
