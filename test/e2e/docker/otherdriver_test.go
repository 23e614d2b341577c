// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"time"

	"github.com/patchbay-net/patchbay/test/e2e/docker/lab"
)

// otherDriver: Docker's bridge driver with our IPAM driver. After the grace time, a running
// container still has its address. The address of a container that ended with its dockerd is free.
func otherDriver(l *lab.Lab) {
	l.Conf("othernet", `{"cniVersion":"1.1.0","name":"othernet","plugins":[{"type":"bridge","bridge":"cnio","isGateway":true,`+ipamOf(84)+`}]}`)
	l.Docker("network", "create", "-d", "bridge", "--ipam-driver", "patchbay", "--ipam-opt", "cni.network=othernet", "--subnet", "10.84.0.0/24", "other")
	defer l.Docker("network", "rm", "other")
	l.Start("c1", "other")
	defer l.Remove("c1")
	address := l.Inspect("c1", "other", "IPAddress")
	time.Sleep(11 * time.Second) // more than the least age
	gc := []string{l.Patchbayd, "docker", "gc", "--apply", "--docker", dockerHost(l), "--data-root", l.DataRoot(), "--grace", "0s"}
	asDocker(l, gc...)
	if has := l.Sh("ls /var/lib/cni/networks/othernet | grep '^10' | grep -vx 10.84.0.1"); has != address {
		l.Errorf("c1 runs with %s, reserved is %q", address, has)
	}
	l.KillDocker()
	l.Up()
	l.Eventually("its address is collected", func() bool {
		asDocker(l, gc...)
		return l.Sh("ls /var/lib/patchbay/docker/leases") == ""
	})
}
