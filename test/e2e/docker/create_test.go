// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package docker

import (
	"strings"

	"github.com/patchbay-net/patchbay/test/e2e/docker/lab"
)

// ourIPAM are the flags of a network with our IPAM driver.
func ourIPAM(network string, more ...string) []string {
	args := []string{"network", "create", "-d", "patchbay", "-o", "cni.network=" + network, "--ipam-driver", "patchbay", "--ipam-opt", "cni.network=" + network}
	return append(args, more...)
}

// mistakes: wrong options are refused with a clear reason, and leave nothing.
func mistakes(l *lab.Lab) {
	plain := []string{"network", "create", "-d", "patchbay", "--ipam-driver", "null"}
	for _, c := range []struct {
		args []string
		want string
	}{
		{append(plain, "bad"), "name the CNI network"},
		{append(plain, "-o", "cni.network=nosuch", "bad"), "nosuch"},
		{append(plain, "-o", "cni.network=podnet", "-o", "cni.prtmap=off", "bad"), `"cni.prtmap" is not one of this driver`},
		{append(plain, "-o", "cni.network=podnet", "-o", "cni.portmap=of", "bad"), "want auto or off"},
		{append(plain, "-o", "cni.conf={", "bad"), "error parsing configuration list"},
		{append(plain, "-o", "cni.network=podnet", "podnet"), "already exists"},
		{ourIPAM("podnet", "--subnet", "10.1.0.0/16", "bad"), "the configuration has 10.91.0.0/24"},
		{ourIPAM("podnet", "--subnet", "10.91.0.0/24", "--ip-range", "10.91.0.0/25", "bad"), "--ip-range"},
		{ourIPAM("podnet", "--subnet", "10.91.0.0/24", "--gateway", "10.91.0.9", "bad"), "the configuration has 10.91.0.1"},
	} {
		if text := l.Refused(c.args...); !strings.Contains(text, c.want) {
			l.Errorf("%v: %s", c.args[3:], text)
		}
	}
	if left := l.Sh("ls /var/lib/patchbay/docker/pools"); left != "" {
		l.Errorf("pools left: %s", left)
	}
}

// overlap: without --subnet, our pool overlaps a route of the host. dockerd must not repeat its
// request for a pool forever. The old dockerd requests another pool, and gets an error with a hint.
func overlap(l *lab.Lab) {
	l.Conf("overnet", `{"cniVersion":"1.1.0","name":"overnet","plugins":[{"type":"bridge","bridge":"cnio","isGateway":true,`+ipamOf(88)+`}]}`)
	l.In("sh", "-ec", "ip link add over type bridge; ip addr add 10.88.0.200/16 dev over; ip link set over up")
	made := make(chan error, 1)
	go func() {
		_, err := l.TryDocker(ourIPAM("overnet", "overnet")...)
		made <- err
	}()
	l.Eventually("docker network create", func() bool { return len(made) == 1 })
	switch err := <-made; {
	case err == nil:
	case l.API < docker28 && strings.Contains(err.Error(), "use --subnet"):
		l.Docker(ourIPAM("overnet", "--subnet", "10.88.0.0/24", "overnet")...)
	default:
		l.Fatal(err)
	}
	shown := l.Docker("network", "inspect", "overnet", "--format", "{{json .IPAM.Config}}")
	gateway := l.API >= docker28 // before, Docker shows only the user's values
	if !strings.Contains(shown, `"10.88.0.0/24"`) || gateway && !strings.Contains(shown, `"10.88.0.1"`) {
		l.Errorf("inspect shows %s", shown)
	}
	l.In("ip", "link", "del", "over")
	l.Start("c1", "overnet")
	l.Start("c2", "overnet")
	l.Ping("c2", "c1")
	l.Remove("c1", "c2")
	l.Docker("network", "rm", "overnet")
}

// zeroPool: if the ranges of an IPAM plugin cannot be read, Docker gets a pool with every
// address.
func zeroPool(l *lab.Lab) {
	l.Conf("zeronet", `{"cniVersion":"1.1.0","name":"zeronet","plugins":[{"type":"bridge","bridge":"cniz","ipam":{"type":"static",
		"addresses":[{"address":"10.87.0.5/24","gateway":"10.87.0.1"}],"routes":[{"dst":"10.0.0.0/8"}]}}]}`)
	l.Docker(ourIPAM("zeronet", "zeronet")...)
	if shown := l.Docker("network", "inspect", "zeronet", "--format", "{{json .IPAM.Config}}"); !strings.Contains(shown, `"0.0.0.0/0"`) {
		l.Errorf("inspect shows %s", shown)
	}
	l.Start("c1", "zeronet")
	if got := l.Inspect("c1", "zeronet", "IPAddress"); got != "10.87.0.5" {
		l.Errorf("the address is %s", got)
	}
	l.Remove("c1")
	l.Docker("network", "rm", "zeronet")
}
