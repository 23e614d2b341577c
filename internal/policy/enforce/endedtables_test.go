// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"encoding/binary"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/internal/test/draw"
	"github.com/patchbay-net/patchbay/internal/test/policytest"
	"github.com/patchbay-net/patchbay/internal/test/policytest/api"
)

// Random policies of two nodes change while UDP flows exist whose ends go on sending. What the oracle denies in the second
// state ends, and what it allows in both goes on.
func TestFlowsOfTables(t *testing.T) {
	w := newTown(t)
	fws := [2]*nft.Conn{nft.Open(t.TempDir()), nft.Open(t.TempDir())}
	seed, _ := draw.Seed(t)
	ended, lived := 0, 0
	for n, pairs := 0, policytest.Tables(t, 3, 12); n < pairs || (ended == 0 || lived == 0) && n < 10*pairs; n++ {
		e := &engine{town: w, enforcers: [2]*Enforcer{New(fws[0], Options{}), New(fws[1], Options{})}}
		s := newStream(e, seed+uint64(n))
		must(t, s.load(0))
		denied, allowed := flowsOf(s, s.ends), flowsOf(s, s.allowed)
		for _, f := range slices.Concat(denied, allowed) {
			if !f.arrives(f.forth) || !f.arrives(f.back) {
				t.Fatalf("%s=%d: %s is allowed, and the flow does not begin", draw.SeedEnv, seed+uint64(n), f.Probe)
			}
		}
		must(t, s.change())
		for _, f := range denied {
			if f.lives() {
				t.Errorf("%s=%d: the flow %s is denied, and lives", draw.SeedEnv, seed+uint64(n), f.Probe)
			}
		}
		for _, f := range allowed {
			if !f.arrives(f.forth) || !f.arrives(f.back) {
				t.Errorf("%s=%d: the flow %s is allowed, and does not go on", draw.SeedEnv, seed+uint64(n), f.Probe)
			}
		}
		ended, lived = ended+len(denied), lived+len(allowed)
		must(t, e.Close())
	}
	t.Logf("seed %d: %d flows ended, %d went on", seed, ended, lived)
	if ended == 0 || lived == 0 {
		t.Error("these tables show nothing")
	}
}

// udpFlow is a flow of one probe.
type udpFlow struct {
	policytest.Probe
	*stream
	source uint16
}

// flowsOf returns flows between pods or addresses outside. A node may always reach its pods, so what it answers is no test.
func flowsOf(s *stream, probes []policytest.Probe) (list []udpFlow) {
	const most = 20
	atNode := func(a netip.Addr) bool { return s.town.nodes[0].sockets[a] != nil || s.town.nodes[1].sockets[a] != nil }
	for i, p := range probes {
		if p.Protocol == api.ProtocolUDP && !atNode(p.From) && !atNode(p.To) && len(list) < most {
			list = append(list, udpFlow{p, s, uint16(61000 + i)})
		}
	}
	return list
}

// change loads the second state, with the connections of the first.
func (s *stream) change() error {
	for i, h := range s.town.nodes {
		if err := h.Do(func() error { return s.enforcers[i].Load(s.town.t.Context(), s.programs[1][i], nil) }); err != nil {
			return err
		}
	}
	return nil
}

func (f udpFlow) forth() (uint32, netip.Addr) {
	return f.post(f.From, f.To, f.source, uint16(f.Port)), f.To
}

func (f udpFlow) back() (uint32, netip.Addr) {
	return f.post(f.To, f.From, uint16(f.Port), f.source), f.From
}

// post sends a datagram of one end, and returns its number.
func (f udpFlow) post(from, to netip.Addr, source, dest uint16) uint32 {
	number++
	udp := datagram(from, to, source, dest, string(binary.BigEndian.AppendUint32(nil, number)))
	udp = udp[len(udp)-12:]
	_, err := f.town.homes[from].sockets[from][unix.IPPROTO_UDP].WriteTo(udp, &net.IPAddr{IP: to.AsSlice()})
	must(f.town.t, err)
	return number
}

// arrives sends until a datagram arrives.
func (f udpFlow) arrives(send func() (uint32, netip.Addr)) bool {
	for range 5 {
		n, at := send()
		until(func() bool { return hasArrived(n, at) })
		if hasArrived(n, at) {
			return true
		}
	}
	return false
}

// lives reports whether datagrams of the end that began the flow arrive while both ends send.
func (f udpFlow) lives() bool {
	for range 3 {
		f.back()
		time.Sleep(time.Millisecond)
		n, at := f.forth()
		time.Sleep(2 * time.Millisecond)
		if hasArrived(n, at) {
			return true
		}
	}
	return false
}
