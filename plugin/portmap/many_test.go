// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package portmap

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/test/draw"
	"github.com/patchbay-net/patchbay/internal/test/nettest/node"
	"github.com/patchbay-net/patchbay/spec"
)

// many is a configuration that publishes n ports from 1024 on, as a range of ports does.
func many(n int, protocol string) string {
	var list []string
	for p := 1024; p < 1024+n; p++ {
		list = append(list, fmt.Sprintf(`{"hostPort": %d, "containerPort": %d, "protocol": %q}`, p, p, protocol))
	}
	return ports(strings.Join(list, ", "))
}

// processorTime is the processor time of this process. Unlike the time of a clock, it does not depend on what
// else the machine does.
func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// TestPortsCostTheSame: what a port costs does not grow with the number of ports, also if the container publishes them for a
// second network. It costs about 25 µs. (Lists that were searched for each port cost 400 µs with 10,000 ports, and 24 ms with
// 2,000 ports of two networks.)
func TestPortsCostTheSame(t *testing.T) {
	n := draw.Number(t, "PATCHBAY_PORTS", 5000, 20000)
	web := node.New(t).Bridge("cni0", "10.1.0.1/24").Container("web", "10.1.0.5/24")
	few, all := costs(t, web, n/20), costs(t, web, n)
	for call, each := range all {
		t.Logf("%s: each of %d ports takes %v, each of %d %v", call, n, each, n/20, few[call])
		if each > 3*few[call] {
			t.Errorf("%s: each of %d ports takes %v, and each of %d %v", call, n, each, n/20, few[call])
		}
	}
}

// costs returns what a port costs in each call that publishes n ports, in processor time.
func costs(t *testing.T, web *node.Container, n int) map[string]time.Duration {
	t.Helper()
	one, two := of(web), of(web)
	two.network = "other"
	each, left := map[string]time.Duration{}, elements(t)
	for _, protocol := range []string{"tcp", "udp"} {
		run := func(a *attachment, verb spec.Verb) {
			t.Helper()
			begin := processorTime(t)
			a.must(t, verb, many(n, protocol))
			each[fmt.Sprintf("%s %s %s", protocol, a.network, verb)] = (processorTime(t) - begin) / time.Duration(n)
		}
		run(one, spec.Add)
		if got := elements(t) - left; got < 2*n {
			t.Errorf("%d elements for %d ports", got, n)
		}
		run(one, spec.Check)
		run(two, spec.Add)
		run(two, spec.Del)
		run(one, spec.Check)
		run(one, spec.Del)
		if got := elements(t); got != left {
			t.Errorf("%d elements left", got-left)
		}
	}
	return each
}
