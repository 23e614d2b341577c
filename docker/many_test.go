// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/cnm"
)

// media is the usual range of RTP.
func media() (out []cnm.PortBinding) {
	for port := uint16(10000); port <= 20000; port++ {
		out = append(out, cnm.PortBinding{Proto: unix.IPPROTO_UDP, Port: port, HostPort: port, HostPortEnd: port})
	}
	return out
}

// Ten thousand ports are published within the time of a call. When they are unpublished, their
// record can be read.
func TestTenThousandPorts(t *testing.T) {
	n := newNode(t, portNet)
	c := n.mustStart(run{network: n.network("ports"), ports: media()})
	if got := len(n.published(c)); got != 10001 {
		t.Errorf("%d ports are published", got)
	}
	begin := time.Now()
	c.stop(true)
	t.Logf("removed in %v", time.Since(begin))
}
