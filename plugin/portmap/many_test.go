// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package portmap

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
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

// transactions returns how often nftables were changed in this namespace.
func transactions(t *testing.T) uint32 {
	t.Helper()
	c, err := netlink.Dial(unix.NETLINK_NETFILTER, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()  //nolint:errcheck // read only
	const family = 4 // the size of struct nfgenmsg
	answers, err := c.Execute(netlink.Message{Header: netlink.Header{Type: unix.NFNL_SUBSYS_NFTABLES<<8 | unix.NFT_MSG_GETGEN, Flags: netlink.Request}, Data: make([]byte, family)})
	if err != nil {
		t.Fatal(err)
	}
	attrs, err := netlink.NewAttributeDecoder(answers[0].Data[family:])
	if err != nil {
		t.Fatal(err)
	}
	attrs.ByteOrder = binary.BigEndian
	for attrs.Next() {
		if attrs.Type() == unix.NFTA_GEN_ID {
			return attrs.Uint32()
		}
	}
	t.Fatal("the kernel tells no generation of nftables")
	return 0
}

// cost is what a call costs.
type cost struct {
	each         time.Duration // processor time of each port
	transactions uint32
}

// TestPortsCostTheSame: what a port costs does not grow with the number of ports, also if the container publishes them for a
// second network. It costs about 25 µs. (Lists that were searched for each port cost 400 µs with 10,000 ports, and 24 ms with
// 2,000 ports of two networks.) If a list is searched for each port, a port costs up to 20 times as much among 20 times as many, so the
// limit leaves room for a busy machine. However many ports there are, they are one transaction. The longer draw publishes all ports
// from 1024 on.
func TestPortsCostTheSame(t *testing.T) {
	n := draw.Number(t, "PATCHBAY_PORTS", 5000, 64512)
	web := node.New(t).Bridge("cni0", "10.1.0.1/24").Container("web", "10.1.0.5/24")
	few, all := costs(t, web, n/20), costs(t, web, n)
	for call, c := range all {
		t.Logf("%s: each of %d ports takes %v, each of %d %v; %d and %d transactions", call, n, c.each, n/20, few[call].each, c.transactions, few[call].transactions)
		if c.each > 4*few[call].each {
			t.Errorf("%s: each of %d ports takes %v, and each of %d %v", call, n, c.each, n/20, few[call].each)
		}
		if want := map[bool]uint32{false: 1}[strings.HasSuffix(call, string(spec.Check))]; c.transactions != want || few[call].transactions != want {
			t.Errorf("%s: %d transactions for %d ports, and %d for %d, want %d", call, c.transactions, n, few[call].transactions, n/20, want)
		}
	}
}

// costs returns what each call costs that publishes n ports.
func costs(t *testing.T, web *node.Container, n int) map[string]cost {
	t.Helper()
	one, two := of(web), of(web)
	two.network = "other"
	each, left := map[string]cost{}, elements(t)
	for _, protocol := range []string{"tcp", "udp"} {
		run := func(a *attachment, verb spec.Verb) {
			t.Helper()
			conf := many(n, protocol)
			begin, before := processorTime(t), transactions(t)
			a.must(t, verb, conf)
			took := processorTime(t) - begin
			each[fmt.Sprintf("%s %s %s", protocol, a.network, verb)] = cost{took / time.Duration(n), transactions(t) - before}
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
