// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/daemons/cnm"
	"github.com/patchbay-net/patchbay/internal/test/draw"
)

// media is the beginning of the usual range of RTP, or all of it.
func media(t *testing.T) (out []cnm.PortBinding) {
	many := uint16(draw.Number(t, "PATCHBAY_DOCKER_PORTS", 1000, 10001))
	for port := uint16(10000); port < 10000+many; port++ {
		out = append(out, cnm.PortBinding{Proto: unix.IPPROTO_UDP, Port: port, HostPort: port, HostPortEnd: port})
	}
	return out
}

// Ten thousand ports, in `make test` fewer, are published within the time of a call. When they are
// unpublished, their record can be read.
func TestTenThousandPorts(t *testing.T) {
	n := newNode(t, portNet)
	ports := media(t)
	c := n.mustStart(run{network: n.network("ports"), ports: ports})
	if got := len(n.published(c)); got != len(ports) {
		t.Errorf("%d ports are published", got)
	}
	begin := time.Now()
	c.stop(true)
	t.Logf("removed in %v", time.Since(begin))
}
