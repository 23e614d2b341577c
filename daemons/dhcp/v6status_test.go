// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package dhcp_test

import (
	"context"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/iana"

	"github.com/patchbay-net/patchbay/daemons/test/dhcptest"
)

// script is a DHCPv6 server on br0 that grants fd77::40. The test sets how it answers messages
// that extend the lease.
type script struct {
	mu      sync.Mutex
	asked   map[dhcpv6.MessageType]int
	clients map[string]bool // DUID, IAID and address of every message about a lease
	answers map[dhcpv6.MessageType]func(*dhcpv6.Message)
}

func newScript(t *testing.T) *script {
	t.Helper()
	br, err := net.InterfaceByName("br0")
	must(t, err)
	conn, err := net.ListenMulticastUDP("udp6", br, &net.UDPAddr{IP: dhcpv6.AllDHCPRelayAgentsAndServers, Port: dhcpv6.DefaultServerPort})
	must(t, err)
	s := &script{asked: map[dhcpv6.MessageType]int{}, clients: map[string]bool{}, answers: map[dhcpv6.MessageType]func(*dhcpv6.Message){}}
	var serving sync.WaitGroup
	serving.Go(func() { s.serve(conn) })
	t.Cleanup(func() {
		must(t, conn.Close())
		serving.Wait()
	})
	return s
}

func (s *script) serve(conn *net.UDPConn) {
	buf := make([]byte, 1<<16)
	for {
		n, from, err := conn.ReadFrom(buf)
		if err != nil {
			return
		}
		if m, err := dhcpv6.MessageFromBytes(buf[:n]); err == nil {
			_, _ = conn.WriteTo(s.answer(m).ToBytes(), from)
		}
	}
}

// answer returns a correct answer, which the test then changes.
func (s *script) answer(m *dhcpv6.Message) *dhcpv6.Message {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked[m.MessageType]++
	if na := m.Options.OneIANA(); na != nil && na.Options.OneAddress() != nil {
		s.clients[fmt.Sprintf("%v %x %v", m.Options.ClientID(), na.IaId, na.Options.OneAddress().IPv6Addr)] = true
	}
	out := &dhcpv6.Message{MessageType: dhcpv6.MessageTypeReply, TransactionID: m.TransactionID}
	if m.MessageType == dhcpv6.MessageTypeSolicit {
		out.MessageType = dhcpv6.MessageTypeAdvertise
	}
	out.AddOption(dhcpv6.OptClientID(m.Options.ClientID()))
	out.AddOption(dhcpv6.OptServerID(&dhcpv6.DUIDEN{EnterpriseNumber: 1, EnterpriseIdentifier: []byte("script")}))
	out.AddOption(ia(22*time.Minute, iana.StatusSuccess))
	if spoil := s.answers[m.MessageType]; spoil != nil {
		spoil(out)
	}
	return out
}

// answerWith sets how the server answers messages of one kind from now on. It starts counting
// these messages.
func (s *script) answerWith(kind dhcpv6.MessageType, spoil func(*dhcpv6.Message)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.answers[kind] = spoil
	clear(s.asked)
}

func (s *script) was(kind dhcpv6.MessageType) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.asked[kind]
}

// whose returns the clients and the addresses in the messages about a lease.
func (s *script) whose() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.clients))
}

func ia(valid time.Duration, status iana.StatusCode) *dhcpv6.OptIANA {
	na := &dhcpv6.OptIANA{IaId: [4]byte{0, 0, 0, 1}, T1: valid / 2, T2: valid}
	na.Options.Add(&dhcpv6.OptIAAddress{IPv6Addr: net.ParseIP("fd77::40"), PreferredLifetime: valid, ValidLifetime: valid})
	if status != iana.StatusSuccess {
		na.Options.Options = dhcpv6.Options{&dhcpv6.OptStatusCode{StatusCode: status}}
	}
	return na
}

// The server fails, or has lost an address and grants it again: no container loses the address.
// The server reports that the address is not ours: the container loses it.
func TestV6Status(t *testing.T) {
	w, s := newWorld(t), newScript(t)
	addr := w.configured(`"dhcpv4":false,"dhcpv6":true`)
	for name, spoil := range map[string]func(*dhcpv6.Message){
		"failed":     func(m *dhcpv6.Message) { m.AddOption(&dhcpv6.OptStatusCode{StatusCode: iana.StatusUnspecFail}) },
		"no IA_NA":   func(m *dhcpv6.Message) { m.Options.Del(dhcpv6.OptionIANA) },
		"no address": func(m *dhcpv6.Message) { m.UpdateOption(ia(0, iana.StatusNoAddrsAvail)) },
		"forgotten":  func(m *dhcpv6.Message) { m.UpdateOption(ia(0, iana.StatusNoBinding)) },
	} {
		s.answerWith(dhcpv6.MessageTypeRenew, spoil)
		w.passes(name+": it is asked twice", func() bool { return s.was(dhcpv6.MessageTypeRenew) >= 2 })
		s.answerWith(dhcpv6.MessageTypeRenew, nil)
		renewed := w.logged("lease renewed")
		w.passes(name+": a renewal", func() bool { return w.logged("lease renewed") > renewed })
		if s.was(dhcpv6.MessageTypeSolicit) > 0 || !w.has(addr) || w.logged("lease regained") > 0 {
			t.Fatalf("%s: the address was taken off", name)
		}
	}
	for name, spoil := range map[string]func(*dhcpv6.Message){
		"not on the link": func(m *dhcpv6.Message) { m.UpdateOption(ia(0, iana.StatusNotOnLink)) },
		"valid no more":   func(m *dhcpv6.Message) { m.UpdateOption(ia(0, iana.StatusSuccess)) },
	} {
		regained := w.logged("lease regained")
		s.answerWith(dhcpv6.MessageTypeRenew, spoil)
		w.passes(name+": another lease", func() bool { return w.logged("lease regained") > regained })
	}
	s.answerWith(dhcpv6.MessageTypeRequest, func(m *dhcpv6.Message) { m.UpdateOption(ia(0, iana.StatusNoAddrsAvail)) })
	s.answerWith(dhcpv6.MessageTypeRenew, func(m *dhcpv6.Message) { m.UpdateOption(ia(0, iana.StatusNoBinding)) })
	w.passes("forgotten, and not given again", func() bool { return !w.has(addr) })
	dhcptest.Eventually(w, "it asks anew", func() bool { return s.was(dhcpv6.MessageTypeSolicit) > 0 })
}

// The error distinguishes a server without free addresses from a server that does not answer.
func TestV6NoneLeft(t *testing.T) {
	w := newWorld(t)
	newScript(t).answerWith(dhcpv6.MessageTypeSolicit, func(m *dhcpv6.Message) { m.UpdateOption(ia(0, iana.StatusNoAddrsAvail)) })
	ctx, giveUp := context.WithCancel(t.Context())
	failed := make(chan error, 1)
	go func() {
		_, err := w.keeper.Allocate(ctx, w.args("c1", `"dhcpv4":false,"dhcpv6":true`))
		failed <- err
	}()
	dhcptest.Eventually(t, "a try in vain", func() bool { return w.logged("NoAddrsAvail") > 0 })
	giveUp()
	if err := <-failed; err == nil || !strings.Contains(err.Error(), "NoAddrsAvail") {
		t.Error(err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
