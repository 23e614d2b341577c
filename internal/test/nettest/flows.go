// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package nettest

import (
	"fmt"
	"os"
	"testing"
)

// Flows returns how many entries of conntrack a benchmark may make that wants so many. A namespace cannot raise the
// machine's net.netfilter.nf_conntrack_max.
func Flows(t testing.TB, want int) int {
	t.Helper()
	text, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_max")
	most := 0
	if err == nil {
		_, err = fmt.Sscan(string(text), &most)
	}
	if err != nil {
		t.Fatalf("read net.netfilter.nf_conntrack_max: %v", err)
	}
	if most = most / 10 * 9; most < want {
		t.Logf("%d entries instead of %d, because of the machine's net.netfilter.nf_conntrack_max", most, want)
		return most
	}
	return want
}
