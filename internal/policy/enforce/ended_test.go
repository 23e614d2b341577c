// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package enforce

import (
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/patchbay-net/patchbay/internal/nft"
)

// chat is a flow of which both ends send all the time, whatever they hear. The client begins.
type chat struct {
	t           testing.TB
	there, back atomic.Int64 // datagrams that the server and the client heard
	silent      atomic.Bool  // the client does not send
}

// chat begins a flow of the client: over UDP to a port of the server, or with port 0 over protocol 253, which has no ports.
func (p *pair) chat(from, to string, port int) *chat {
	p.t.Helper()
	network, at := "udp", func(addr string, port int) string {
		return netip.AddrPortFrom(netip.MustParseAddr(addr), uint16(port)).String()
	}
	if port == 0 {
		network, at = "ip:253", func(addr string, _ int) string { return addr }
	}
	c := &chat{t: p.t}
	stop := make(chan struct{})
	client, server := p.socket(p.client, network, at(from, 2000+port)), p.socket(p.server, network, at(to, port))
	p.t.Cleanup(func() { close(stop) })
	go c.hear(server, &c.there)
	go c.hear(client, &c.back)
	go c.say(client, server.LocalAddr(), stop, func() bool { return !c.silent.Load() })
	go c.say(server, client.LocalAddr(), stop, func() bool { return c.there.Load() > 0 })
	return c
}

func (p *pair) socket(h *house, network, addr string) (conn net.PacketConn) {
	p.t.Helper()
	must(p.t, h.Do(func() (err error) { conn, err = net.ListenPacket(network, addr); return err }))
	p.t.Cleanup(func() { conn.Close() }) //nolint:errcheck // a test
	return conn
}

func (*chat) hear(conn net.PacketConn, heard *atomic.Int64) {
	for b := make([]byte, 16); ; heard.Add(1) {
		if _, _, err := conn.ReadFrom(b); err != nil {
			return
		}
	}
}

func (*chat) say(conn net.PacketConn, to net.Addr, stop chan struct{}, speaks func() bool) {
	for tick := time.NewTicker(5 * time.Millisecond); ; {
		select {
		case <-stop:
			return
		case <-tick.C:
			if speaks() {
				conn.WriteTo([]byte("talk"), to) //nolint:errcheck // the other end tells
			}
		}
	}
}

// lives checks that datagrams arrive at both ends.
func (c *chat) lives(what string) {
	c.t.Helper()
	there, back := c.there.Load(), c.back.Load()
	if !eventually(func() bool { return c.there.Load() > there && c.back.Load() > back }) {
		c.t.Errorf("%s: the flow does not work: the server heard %d datagrams more, the client %d", what, c.there.Load()-there, c.back.Load()-back)
	}
}

// ends checks that no datagrams arrive any more.
func (c *chat) ends(what string) {
	c.t.Helper()
	if !eventually(func() bool {
		there, back := c.there.Load(), c.back.Load()
		time.Sleep(silence)
		return c.there.Load() == there && c.back.Load() == back
	}) {
		c.t.Errorf("%s: the flow lives although a policy denies it", what)
	}
}

const (
	udp80   = `{"ports":[{"port":80,"protocol":"UDP"}],"from":[{"podSelector":{"matchLabels":{"pod":"a"}}}]}`
	udp81   = `{"ports":[{"port":81,"protocol":"UDP"}],"from":[{"podSelector":{"matchLabels":{"pod":"a"}}}]}`
	toUDP81 = `{"ports":[{"port":81,"protocol":"UDP"}]}`
)

// A flow that a policy denies ends, although both ends go on sending, and each may send to the other. Other flows do not,
// and the end that answered may begin some. When a policy allows the flow again, it goes on, also if only the end that
// answers sends.
func TestDeniedFlowEnds(t *testing.T) {
	for _, family := range []struct{ client, server string }{{"10.1.1.1", "10.1.1.2"}, {"fd01::1:1", "fd01::1:2"}} {
		for _, side := range []struct{ name, both, one string }{
			{"ingress", onB + "{}]}", onB + udp81 + "]}"},
			{"egress", onA + "{}]}", onA + toUDP81 + "]}"},
		} {
			t.Run(side.name+" "+family.client, func(t *testing.T) {
				p := newPair(t, Options{})
				p.load(side.both)
				denied, allowed, other := p.chat(family.client, family.server, 80), p.chat(family.client, family.server, 81), p.chat(family.client, family.server, 0)
				for _, c := range []*chat{denied, allowed, other} {
					c.lives("before")
				}
				p.load(side.one)
				denied.ends("UDP")
				other.ends("protocol 253")
				allowed.lives("an allowed one")
				p.begins(family.server, family.client)
				p.enforcer = New(p.enforcer.fw, Options{})
				p.load(side.one)
				denied.ends("UDP, with another agent")
				denied.silent.Store(true)
				p.load(side.both)
				if there := denied.back.Load(); !eventually(func() bool { return denied.back.Load() > there }) {
					t.Error("the answers in a flow that is allowed again do not arrive")
				}
				denied.silent.Store(false)
				denied.lives("allowed again")
				other.lives("protocol 253, allowed again")
			})
		}
	}
}

// begins checks that the server may begin flows to the client.
func (p *pair) begins(server, client string) {
	p.t.Helper()
	to, from := p.socket(p.client, "udp", net.JoinHostPort(client, "90")), p.socket(p.server, "udp", net.JoinHostPort(server, "0"))
	if _, err := from.WriteTo([]byte("new"), to.LocalAddr()); err != nil {
		p.t.Fatal(err)
	}
	must(p.t, to.SetReadDeadline(time.Now().Add(5*time.Second)))
	if _, _, err := to.ReadFrom(make([]byte, 8)); err != nil {
		p.t.Errorf("the end that answered in the denied flow cannot begin another one: %v", err)
	}
}

// What the kernel drops stays in the sets as long as packets come. It leaves them when the flow is allowed again, and when
// one of the pods is gone.
func TestEndedAnswers(t *testing.T) {
	p := newPair(t, Options{})
	p.load(onB + "{}]}")
	c := p.chat("10.1.1.1", "10.1.1.2", 80)
	c.lives("before")
	p.load(onB + "]}")
	c.ends("after")
	want := nft.Answer{From: netip.MustParseAddr("10.1.1.2"), To: netip.MustParseAddr("10.1.1.1"), Protocol: 17, Port: 80}
	if list := p.ended(); len(list) != 1 || list[0] != want {
		t.Fatalf("the sets have %v, want %v", list, want)
	}
	began := time.Now()
	if !eventually(func() bool { left := 3*time.Minute - time.Since(began); return p.expires() > left }) {
		t.Error("an element does not stay although packets come")
	}
	p.load(onB + udp80 + "]}")
	if list := p.ended(); len(list) != 0 {
		t.Errorf("the flow is allowed, and the sets have %v", list)
	}
}

// expires returns how long the only element of the set stays.
func (p *pair) expires() (left time.Duration) {
	p.t.Helper()
	must(p.t, p.node.Do(func() (err error) {
		_, after, _ := strings.Cut(nftTool(p.t, "list", "set", "inet", nft.TableName, "policy_ended4"), "expires ")
		text, _, _ := strings.Cut(after, " ")
		left, err = time.ParseDuration(text)
		return err
	}))
	return left
}

// eventually waits for what needs milliseconds, as long as a busy machine may need.
func eventually(holds func() bool) bool {
	for deadline := time.Now().Add(10 * time.Second); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}

func (p *pair) ended() (list []nft.Answer) {
	p.t.Helper()
	must(p.t, p.node.Do(func() (err error) { list, err = p.enforcer.fw.ReadEnded(); return err }))
	return list
}
