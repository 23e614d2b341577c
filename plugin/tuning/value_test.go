// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package tuning

import (
	"fmt"
	"strings"
	"testing"

	"github.com/patchbay-net/patchbay/spec"
)

func TestSame(t *testing.T) {
	const ports, reserved, ms = "net/ipv4/ip_local_port_range", "net/ipv4/ip_local_reserved_ports", "net/ipv4/neigh/eth0/retrans_time_ms"
	for _, tc := range []struct {
		key, want, now string
		same           bool
	}{
		{ports, "20000 30000", "20000\t30000", true},
		{ports, " 20000\t30000\n", "20000\t30000", true},
		{ports, "20000 30000", "20000\t30001", false},
		{ports, "20000", "20000\t60999", true}, // the kernel leaves the second number unchanged
		{ports, "30000", "20000\t30000", false},
		{"net/core/somaxconn", "0x400", "1024", true},
		{"net/core/somaxconn", "02000", "1024", true},
		{"net/core/somaxconn", "1_024", "1024", false},
		{"net/core/somaxconn", "1024", "1025", false},
		{reserved, "8080,8081,8082", "8080-8082", true},
		{reserved, "9000,8080-8082", "8080-8082,9000", true},
		{reserved, "8080,8082", "8080-8082", false},
		{reserved, "", "", true},
		{reserved, "8080", "", false},
		{ms, "1001", "1004", true},
		{ms, "1001", "1000", false},
		{ms, "1001", "1012", false},
		{"net/ipv4/neigh/eth0/locktime", "99", "98", true},
		{"net/ipv4/neigh/eth0/app_solicit", "99", "98", false},
		{"net/ipv6/conf/eth0/stable_secret", "2001:db8::1", "2001:0db8:0000:0000:0000:0000:0000:0001", true},
		{"net/ipv6/conf/eth0/stable_secret", "2001:db8::1", "2001:0db8:0000:0000:0000:0000:0000:0002", false},
		{"net/ipv4/tcp_fastopen_key", "0000000A-0000000B-0000000C-0000000D", "0000000a-0000000b-0000000c-0000000d", true},
		{"net/ipv4/tcp_allowed_congestion_control", "cubic reno", "reno cubic", true},
		{"net/ipv4/tcp_allowed_congestion_control", "cubic", "reno cubic", false},
	} {
		if got := same(tc.key, tc.want, tc.now); got != tc.same {
			t.Errorf("%s: %q and the kernel's %q: same is %t", tc.key, tc.want, tc.now, got)
		}
	}
}

// CHECK agrees with the ADD before it, in whatever form the kernel prints the value.
func TestCheckReadsAsTheKernel(t *testing.T) {
	w := newWorld(t)
	var many []string
	for p := 1000; p < 7000; p += 2 {
		many = append(many, fmt.Sprint(p))
	}
	for _, kv := range [][2]string{
		{"net.ipv4.ping_group_range", "0 2147483647"},
		{"net.ipv4.ip_local_port_range", "20000 30000"},
		{"net.ipv4.tcp_rmem", "4096 87380 6291456"},
		{"net.ipv4.tcp_rmem", "8192"},
		{"net.core.somaxconn", "0x400"},
		{"net.ipv4.ip_local_reserved_ports", "8082,8080,8081"},
		{"net.ipv4.ip_local_reserved_ports", strings.Join(many, ",")}, // more than a page
		{"net.ipv4.route.flush", "1"},                                 // nobody can read it
		{"net.ipv6.route.flush", "1"},
		{"net.ipv4.neigh.IFNAME.retrans_time_ms", "1001"},
		{"net.ipv4.neigh.IFNAME.base_reachable_time_ms", "30001"},
		{"net.ipv4.neigh.IFNAME.locktime", "99"},
		{"net.ipv6.conf.IFNAME.stable_secret", "2001:db8::1"},
	} {
		conf := fmt.Sprintf(`,"sysctl":{%q:%q}}`, kv[0], kv[1])
		for _, verb := range []spec.Verb{spec.Add, spec.Check, spec.Del} {
			if _, err := w.call(verb, conf, options{}); err != nil {
				t.Errorf("%s of %s = %.40s: %.300v", verb, kv[0], kv[1], err)
			}
		}
	}
	const two = `,"sysctl":{"net.ipv4.ip_local_port_range":"20000 30000"}}`
	if _, err := w.call(spec.Add, two, options{}); err != nil {
		t.Fatal(err)
	}
	if err := w.inside().SetSysctl("net/ipv4/ip_local_port_range", "20000 30001"); err != nil {
		t.Fatal(err)
	}
	if _, err := w.call(spec.Check, two, options{}); err == nil || !strings.Contains(err.Error(), "current value is 20000\t30001") {
		t.Errorf("CHECK of a changed value: %v", err)
	}
}

// Both spellings of sysctl.d(5) reach an interface whose name has a dot. If both name one sysctl, the later counts.
func TestSpellings(t *testing.T) {
	w := newWorld(t)
	link, err := w.inside().Link("eth0")
	if err != nil {
		t.Fatal(err)
	}
	if err := w.inside().LinkSetName(link, "eth0.7"); err != nil {
		t.Fatal(err)
	}
	const key = "net/ipv4/conf/eth0.7/arp_filter"
	for _, conf := range []string{
		`{"net/ipv4/conf/eth0.7/arp_filter":"1"}`,
		`{"net.ipv4.conf.eth0/7.arp_filter":"1"}`,
		`{"net.ipv4.conf.eth0/7.arp_filter":"0","net/ipv4/conf/eth0.7/arp_filter":"1"}`,
	} {
		if err := w.inside().SetSysctl(key, "0"); err != nil {
			t.Fatal(err)
		}
		for _, verb := range []spec.Verb{spec.Add, spec.Check} {
			if _, err := w.call(verb, `,"sysctl":`+conf+`}`, options{}); err != nil {
				t.Errorf("%s of %s: %v", verb, conf, err)
			}
		}
		if v, err := w.inside().Sysctl(key); v != "1" {
			t.Errorf("%s: arp_filter is %q, %v", conf, v, err)
		}
	}
}
