// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package all_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/internal/test/draw"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/internal/test/nettest/leak"
	"github.com/patchbay-net/patchbay/netns"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/all"
	"github.com/patchbay-net/patchbay/spec"
)

// limited is a list whose runtime sends limits in the form that containerd uses.
const limited = `{"cniVersion":"1.0.0","name":"limited","type":"patchbay","plugins":[
	{%s,"ipam":{"type":"host-local","ranges":[[{"subnet":"198.18.93.0/24"}]]}},
	{"type":"bandwidth","capabilities":{"bandwidth":true}}],
	"runtimeConfig":{"bandwidth":%s}}`

func limitedCall(verb spec.Verb, ns, kind, bandwidth string) *spec.Call {
	return &spec.Call{
		Verb: verb, ContainerID: "c1", NetNS: ns, IfName: "eth0", Path: []string{"/nonexistent"},
		Config: fmt.Appendf(nil, limited, kind, bandwidth),
	}
}

func invokeList(c *spec.Call) ([]byte, error) {
	b := plugin.Builtin{NewSession: func() *plugin.Session { return plugin.NewSession(all.Plugins()) }}
	return b.Invoke(context.Background(), "patchbay", c)
}

// If a pod sets no burst, runtimes send a huge burst. With that burst, a limit of 10 Mbit/s let 512
// MiB or 4 GiB pass at full speed (kubernetes#90838). Here the limit holds from the first packet,
// both ways.
func TestLimitFromTheFirstSecond(t *testing.T) {
	const rate, burst = 10_000_000 / 8, 131072 // bytes
	for _, kind := range []string{`"type":"ptp"`, `"type":"bridge","bridge":"lim0","isGateway":true`} {
		for _, none := range []uint64{1<<32 - 1, 8*(1<<32-1) - 1} {
			limits := fmt.Sprintf(`{"IngressRate":10000000,"IngressBurst":%d,"EgressRate":10000000,"EgressBurst":%d}`, none, none)
			t.Run(fmt.Sprint(strings.Split(kind, `"`)[3], none), func(t *testing.T) {
				ns := nettest.NewNS(t, "limited")
				out, err := invokeList(limitedCall(spec.Add, ns, kind, limits))
				if err != nil {
					t.Fatal(err)
				}
				result, err := spec.ParseResult(out, "1.0.0")
				if err != nil {
					t.Fatal(err)
				}
				pod, host := result.IPs[0].Address.Addr(), result.IPs[0].Gateway
				for way, pair := range map[string][2]end{"in": {{"", host}, {ns, pod}}, "out": {{ns, pod}, {"", host}}} {
					got, took := flood(t, pair[0], pair[1])
					if most := burst + rate*took.Seconds(); float64(got) > most || got < burst/2 {
						t.Errorf("%s: %d bytes in %v, the limit lets %.0f pass", way, got, took, most)
					}
					t.Logf("%s: %d bytes in %v: %.1f Mbit/s", way, got, took, float64(got)*8/took.Seconds()/1e6)
				}
				if _, err := invokeList(limitedCall(spec.Del, ns, kind, limits)); err != nil {
					t.Error(err)
				}
			})
		}
	}
	if l, err := netlink.LinkByName("lim0"); err == nil {
		netlink.LinkDel(l) //nolint:errcheck // the network ends with the test
	}
}

// end is an address in a namespace. The path "" is the host's namespace.
type end struct {
	ns   string
	addr netip.Addr
}

func (e end) listen(t *testing.T) *net.UDPConn {
	t.Helper()
	var c *net.UDPConn
	open := func() (err error) {
		c, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(e.addr, 0)))
		return err
	}
	err := open
	if e.ns != "" {
		err = func() error {
			ns, err := netns.Open(e.ns)
			if err != nil {
				return err
			}
			defer ns.Close() //nolint:errcheck // read only
			return ns.Do(open)
		}
	}
	if err := err(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() }) //nolint:errcheck // a test
	if err := c.SetReadBuffer(4 << 20); err != nil {
		t.Fatal(err)
	}
	return c
}

// meet waits until a byte arrives. On a busy machine the neighbours may need longer to find each other
// than flood sends.
func meet(t *testing.T, src, dst *net.UDPConn, at netip.AddrPort) {
	t.Helper()
	for range 100 {
		src.WriteToUDPAddrPort([]byte{0}, at) //nolint:errcheck // as in flood
		if err := dst.SetReadDeadline(time.Now().Add(100 * time.Millisecond)); err != nil {
			t.Fatal(err)
		}
		if _, err := dst.Read(make([]byte, 1)); err == nil {
			if err := dst.SetReadDeadline(time.Time{}); err != nil {
				t.Fatal(err)
			}
			return
		}
	}
	t.Fatalf("nothing arrives at %v", at)
}

// flood sends for some time without a pause. It returns how many bytes arrived, and the time from
// the first packet sent to the last one received.
func flood(t *testing.T, from, to end) (bytes int, took time.Duration) {
	t.Helper()
	src, dst := from.listen(t), to.listen(t)
	at := dst.LocalAddr().(*net.UDPAddr).AddrPort()
	meet(t, src, dst, at)
	start := time.Now()
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 2048)
		for {
			n, err := dst.Read(buf)
			if err != nil {
				return
			}
			bytes, took = bytes+n, time.Since(start)
		}
	}()
	packet := make([]byte, 1400)
	for most := draw.Time(t, "PATCHBAY_LIMIT_TIME", 200*time.Millisecond, time.Second); time.Since(start) < most; {
		src.WriteToUDPAddrPort(packet, at) //nolint:errcheck // the limit drops most, and the sender's queue may say so
	}
	if err := dst.SetReadDeadline(time.Now().Add(200 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	<-done
	return bytes, took
}

// A pod's annotation can make a runtime send impossible limits. They are refused before anything
// exists, and the error names the value.
func TestHostileLimits(t *testing.T) {
	before := leak.Must(t)
	ns := nettest.NewNS(t, "limited")
	for limits, want := range map[string]string{
		`{"IngressRate":-1,"IngressBurst":4294967295}`:                    "number -1",
		`{"IngressRate":18446744073709551615,"IngressBurst":4294967295}`:  "invalid rate: 18446744073709551615",
		`{"EgressRate":9223372036854775809,"EgressBurst":34359738359}`:    "invalid rate: 9223372036854775809",
		`{"EgressRate":99999999999999999999999,"EgressBurst":4294967295}`: "number 99999999999999999999999",
		`{"EgressRate":1e400,"EgressBurst":4294967295}`:                   "number 1e400",
		`{"EgressRate":7,"EgressBurst":4294967295}`:                       "invalid rate: 7",
		`{"EgressRate":"10M","EgressBurst":4294967295}`:                   "string",
		`{"EgressRate":10000000}`:                                         "burst must also be set",
		`{"EgressRate":10000000,"EgressBurst":-1}`:                        "number -1",
	} {
		touched := false
		b := plugin.Builtin{NewSession: func() *plugin.Session {
			s := plugin.NewSession(all.Plugins())
			s.Fault = func(string) error { touched = true; return nil }
			return s
		}}
		_, err := b.Invoke(t.Context(), "patchbay", limitedCall(spec.Add, ns, `"type":"ptp"`, limits))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", limits, err, want)
		}
		if touched {
			t.Errorf("%s: refused after changes", limits)
		}
	}
	p := paths.Default()
	leak.NoLeaks(t, before, p.Run, p.CNI)
	for _, limits := range []string{
		`{"IngressRate":1000000000000000,"IngressBurst":4294967295}`, // 1 Pbit/s, the most that Kubernetes accepts
		`{"EgressRate":1000,"EgressBurst":4294967295}`,               // 1 kbit/s, the least
		`{"IngressRate":0,"IngressBurst":4294967295}`,                // no limit
	} {
		if _, err := invokeList(limitedCall(spec.Add, ns, `"type":"ptp"`, limits)); err != nil {
			t.Errorf("%s: %v", limits, err)
		}
		if _, err := invokeList(limitedCall(spec.Del, ns, `"type":"ptp"`, limits)); err != nil {
			t.Errorf("%s: %v", limits, err)
		}
	}
}
