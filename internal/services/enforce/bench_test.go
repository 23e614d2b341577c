// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"fmt"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/internal/l4"
	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/services"
)

// large returns 45,000 Services with 240,000 endpoints: most have one, and some many.
func large(n int, ipv6 bool) *services.State {
	s := &services.State{
		Node:     services.Node{Name: "n1", Pods: prefixes("10.0.0.0/24")},
		Services: make(map[services.Name]*services.Service), Slices: make(map[services.Name][]*services.Slice),
	}
	at := uint32(10 << 24)
	next := func() netip.Addr {
		at++
		return addrOf(at, ipv6)
	}
	for i := range n {
		name := services.Name{Namespace: "ns", Name: fmt.Sprint("s", i)}
		s.Services[name] = &services.Service{
			Name: name, Type: "ClusterIP", ClusterIPs: []netip.Addr{next()}, Ports: []services.ServicePort{{Protocol: l4.TCP, Number: 80}},
		}
		count := []int{1, 1, 1, 1, 1, 1, 2, 2, 6, 6}[i%10]
		if i%25 == 8 {
			count = 80
		}
		slice := &services.Slice{Name: "x", Service: name, IPv6: ipv6, Ports: []services.SlicePort{{Protocol: l4.TCP, Number: 80}}}
		for range count {
			slice.Endpoints = append(slice.Endpoints, services.SliceEndpoint{Address: next(), Node: "n2", Ready: true, Serving: true})
		}
		s.Slices[name] = []*services.Slice{slice}
	}
	return s
}

func addrOf(n uint32, ipv6 bool) netip.Addr {
	four := [4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)}
	if !ipv6 {
		return netip.AddrFrom4(four)
	}
	return netip.AddrFrom16([16]byte{0: 0xfd, 12: four[0], 13: four[1], 14: four[2], 15: four[3]})
}

// BenchmarkLarge loads 45,000 Services, reads them again as after a restart, and then changes one endpoint.
func BenchmarkLarge(b *testing.B) {
	for _, ipv6 := range []bool{false, true} {
		b.Run(fmt.Sprintf("ipv6=%v", ipv6), func(b *testing.B) { benchmarkLarge(b, ipv6) })
	}
}

func benchmarkLarge(b *testing.B, ipv6 bool) {
	s := large(45_000, ipv6)
	fw := nft.Open(b.TempDir())
	defer fw.Close() //nolint:errcheck // a benchmark's socket
	var longest, all time.Duration
	count := 0
	opts := Options{Committed: func(d time.Duration) { longest, all, count = max(longest, d), all+d, count+1 }}
	e := New(fw, opts)
	p := services.Compile(s, nil)
	start := time.Now()
	must(b, e.Load(b.Context(), p))
	b.Logf("loaded in %v, of which %v in %d transactions, the longest %v", time.Since(start), all, count, longest)

	runtime.GC()
	start, count = time.Now(), 0
	e = New(fw, opts)
	again, err := e.Compile(s)
	must(b, err)
	b.Logf("read and compiled in %v", time.Since(start))
	start = time.Now()
	must(b, e.Load(b.Context(), again))
	b.Logf("compared in %v, %d transactions", time.Since(start), count)

	name := services.Name{Namespace: "ns", Name: "s6"}
	longest, all, count = 0, 0, 0
	for i := 0; b.Loop(); i++ {
		s.Slices[name][0].Endpoints[0].Address = addrOf(10<<24|100<<16|uint32(i&0xffff), ipv6)
		must(b, e.Apply(b.Context(), again, again.Update(s, name)))
	}
	b.ReportMetric(float64(all.Nanoseconds())/float64(count), "ns/transaction")
	must(b, e.Remove(b.Context()))
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
