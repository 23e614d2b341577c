// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"io"
	"net"
	"net/netip"
	"testing"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/test/nettest"
	"github.com/patchbay-net/patchbay/internal/test/nettest/node"
	"github.com/patchbay-net/patchbay/spec"
)

// BenchmarkFastPath measures a masqueraded TCP connection of a container to a server behind a router,
// with and without the fast path: round trips of 1000 bytes, and a stream.
func BenchmarkFastPath(b *testing.B) {
	nettest.Need(b, nettest.Flowtables())
	for _, conf := range []string{`{}`, fast, `{}`, fast} {
		name := "without"
		if conf == fast {
			name = "with"
		}
		conn := func(b *testing.B, port string, serve func(net.Conn)) net.Conn {
			reset(b)
			n := node.New(b)
			c := n.Bridge("cni0", "10.1.0.1/24").Container("c1", "10.1.0.5/24")
			fw := nft.Open("")
			fw.Add(nft.Masqueraded(netip.MustParsePrefix("10.1.0.5/24"), "")...)
			if err := fw.Commit(b.Context()); err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { fw.Close() }) //nolint:errcheck // a test
			a := of(c)
			a.must(b, spec.Add, conf)
			b.Cleanup(func() { a.del(b) })
			return dialed(b, n.Client, port, c.Space, node.Client4+port, serve)
		}
		b.Run("round-trips/"+name, func(b *testing.B) {
			tcp := conn(b, ":5001", func(c net.Conn) { _, _ = io.Copy(c, c) })
			for b.Loop() {
				if err := talk(tcp, 1, patience); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run("stream/"+name, func(b *testing.B) {
			tcp := conn(b, ":5002", func(c net.Conn) { _, _ = io.Copy(io.Discard, c) })
			data := make([]byte, 1<<20)
			b.SetBytes(int64(len(data)))
			for b.Loop() {
				if _, err := tcp.Write(data); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
