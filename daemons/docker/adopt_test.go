// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import "testing"

// Before Docker 28, Join looks later for the sandbox. By then Docker may be about to delete the
// endpoint, which stays until Docker does so, however short the grace is.
func TestLateAdoption(t *testing.T) {
	n := newNode(t, bridgeNet)
	n.old = true
	c, err := n.begin(run{network: n.network("podnet")})
	must(t, err)
	must(t, c.joins(run{}))
	must(t, c.leave())
	if !n.driver.adoptOnce(n.ctx(), c.endpoint, c.key) {
		t.Error("there is no sandbox")
	}
	if _, err := n.driver.state.Endpoints.Get(c.endpoint); err != nil {
		t.Fatalf("after a late look for the sandbox: %v", err)
	}
	c.unplace()
	must(t, c.delete())
}
