// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv6"
	"github.com/insomniacslk/dhcp/dhcpv6/nclient6"
	"github.com/insomniacslk/dhcp/iana"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/clock"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/prefix"
	"github.com/patchbay-net/patchbay/spec"
)

// V6 is DHCPv6 (RFC 8415). It requests one address (IA_NA), from the interface's link-local
// address. The default route comes from router advertisements, never from DHCPv6.
type V6 struct {
	ID string // container/network/interface, from which the DUID is made
}

// duid returns the attachment's own DUID-UUID (RFC 6355). The DUID is made from ID, like option
// 61 of DHCPv4.
func (c *V6) duid() dhcpv6.DUID {
	sum := sha256.Sum256([]byte(c.ID))
	d := &dhcpv6.DUIDUUID{}
	copy(d.UUID[:], sum[:])
	return d
}

// iaid returns the id of the identity association. Each attachment has only one, so the id is
// constant.
func (c *V6) iaid() [4]byte { return [4]byte{0, 0, 0, 1} }

// Parse parses a stored reply.
func (c *V6) Parse(raw []byte) (*Lease, error) {
	m, err := dhcpv6.MessageFromBytes(raw)
	if err != nil {
		return nil, fmt.Errorf("decode DHCPv6 reply: %w", err)
	}
	return parseV6(m)
}

// Acquire sends SOLICIT, waits for an ADVERTISE, sends REQUEST, and waits for the REPLY. Before
// that it waits for the link-local address. wait limits this wait and the wait for an ADVERTISE.
func (c *V6) Acquire(ctx context.Context, p *Place, wait time.Duration) (*Lease, error) {
	link, err := p.link()
	if err != nil {
		return nil, err
	}
	client, err := c.open(ctx, p, wait)
	if err != nil {
		return nil, err
	}
	defer client.Close() //nolint:errcheck // an error of Close changes nothing here
	offer, err := c.solicit(ctx, client, link.HardwareAddr)
	if err != nil {
		return nil, err
	}
	request, err := dhcpv6.NewRequestFromAdvertise(offer)
	if err != nil {
		return nil, err
	}
	reply, err := c.exchange(ctx, client, request, isReply)
	if err != nil {
		return nil, err
	}
	return parseV6(reply)
}

// solicit returns the first advertisement that has an address for us. If there is none, the error
// has the last server's reason.
func (c *V6) solicit(ctx context.Context, client *nclient6.Client, mac net.HardwareAddr) (*dhcpv6.Message, error) {
	m, err := dhcpv6.NewSolicit(mac, dhcpv6.WithClientID(c.duid()), dhcpv6.WithIAID(c.iaid()))
	if err != nil {
		return nil, err
	}
	var instead error
	offer, err := c.exchange(ctx, client, m, func(m *dhcpv6.Message) bool {
		if m.MessageType != dhcpv6.MessageTypeAdvertise {
			return false
		}
		_, instead = parseV6(m)
		return instead == nil
	})
	if err != nil && instead != nil {
		return nil, fmt.Errorf("%v: %w", m.MessageType, instead)
	}
	return offer, err
}

// Extend asks the server that granted g, or any server if rebind is set.
func (c *V6) Extend(ctx context.Context, p *Place, g *Lease, rebind bool, wait time.Duration) (*Lease, error) {
	kind := dhcpv6.MessageTypeRenew
	if rebind {
		kind = dhcpv6.MessageTypeRebind
	}
	m, err := c.message(g, kind)
	if err != nil {
		return nil, err
	}
	client, err := c.open(ctx, p, wait)
	if err != nil {
		return nil, err
	}
	defer client.Close() //nolint:errcheck // an error of Close changes nothing here
	reply, err := c.exchange(ctx, client, m, isReply)
	if err != nil {
		return nil, err
	}
	granted, err := parseV6(reply)
	if errors.Is(err, errNoBinding) {
		return c.anew(ctx, client, g, reply)
	}
	return granted, err
}

// anew requests the same address from a server that does not know it (RFC 8415, 18.2.10.1). A
// server that does not grant it may give the address to another client.
func (c *V6) anew(ctx context.Context, client *nclient6.Client, g *Lease, from *dhcpv6.Message) (*Lease, error) {
	m, err := c.message(g, dhcpv6.MessageTypeRequest)
	if err != nil {
		return nil, err
	}
	if server := from.Options.ServerID(); server != nil {
		m.UpdateOption(dhcpv6.OptServerID(server))
	}
	reply, err := c.exchange(ctx, client, m, isReply)
	if err != nil {
		return nil, err
	}
	granted, err := parseV6(reply)
	if err != nil {
		err = fmt.Errorf("%w: it does not know the address and grants none: %w", ErrNak, err)
	}
	return granted, err
}

// Release sends the server a RELEASE, and does not wait for the answer.
func (c *V6) Release(ctx context.Context, p *Place, g *Lease) error {
	m, err := c.message(g, dhcpv6.MessageTypeRelease)
	if err != nil {
		return err
	}
	sock, err := c.listen(ctx, p)
	if err != nil {
		return err
	}
	defer sock.Close() //nolint:errcheck // the message has been sent or has failed
	_, err = sock.WriteTo(m.ToBytes(), nclient6.AllDHCPRelayAgentsAndServers)
	return err
}

// message returns a message about the address of g.
func (c *V6) message(g *Lease, kind dhcpv6.MessageType) (*dhcpv6.Message, error) {
	reply, err := dhcpv6.MessageFromBytes(g.Raw)
	if err != nil {
		return nil, fmt.Errorf("decode DHCPv6 reply: %w", err)
	}
	m, err := dhcpv6.NewMessage(dhcpv6.WithClientID(c.duid()))
	if err != nil {
		return nil, err
	}
	m.MessageType = kind
	if server := reply.Options.ServerID(); server != nil && kind != dhcpv6.MessageTypeRebind {
		m.AddOption(dhcpv6.OptServerID(server))
	}
	m.AddOption(dhcpv6.OptElapsedTime(0))
	if kind != dhcpv6.MessageTypeRelease {
		m.AddOption(dhcpv6.OptRequestedOption(dhcpv6.OptionDNSRecursiveNameServer, dhcpv6.OptionDomainSearchList))
	}
	m.AddOption(&dhcpv6.OptIANA{IaId: c.iaid(), Options: dhcpv6.IdentityOptions{Options: dhcpv6.Options{
		&dhcpv6.OptIAAddress{IPv6Addr: g.Address.Addr().AsSlice()},
	}}})
	return m, nil
}

// isReply accepts the answer to every message except SOLICIT.
func isReply(m *dhcpv6.Message) bool { return m.MessageType == dhcpv6.MessageTypeReply }

// exchange sends a message to all servers, and waits for an answer for which match returns true.
func (c *V6) exchange(ctx context.Context, client *nclient6.Client, m *dhcpv6.Message, match nclient6.Matcher) (*dhcpv6.Message, error) {
	answer, err := client.SendAndRead(ctx, nclient6.AllDHCPRelayAgentsAndServers, m, match)
	if errors.Is(err, nclient6.ErrNoResponse) {
		err = fmt.Errorf("%w: %w", ErrSilent, err)
	}
	if err != nil {
		return nil, fmt.Errorf("%v: %w", m.MessageType, err)
	}
	return answer, nil
}

func (c *V6) open(ctx context.Context, p *Place, wait time.Duration) (*nclient6.Client, error) {
	within, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	sock, err := c.listen(within, p)
	if err != nil {
		return nil, err
	}
	client, err := nclient6.NewWithConn(sock, nil, nclient6.WithTimeout(wait), nclient6.WithRetry(1))
	if err != nil {
		return nil, errors.Join(err, sock.Close())
	}
	return client, nil
}

// zoned sends every packet through the interface, whatever zone the destination has.
type zoned struct {
	net.PacketConn
	zone string
}

func (z *zoned) WriteTo(b []byte, to net.Addr) (int, error) {
	u, ok := to.(*net.UDPAddr)
	if !ok {
		return 0, net.InvalidAddrError("no UDP address")
	}
	return z.PacketConn.WriteTo(b, &net.UDPAddr{IP: u.IP, Port: u.Port, Zone: z.zone})
}

// listen opens a socket on the interface's link-local address. The address's zone is a number,
// not an interface name. Package net has only one table of interface names for the process, but
// the process works in many namespaces.
func (c *V6) listen(ctx context.Context, p *Place) (net.PacketConn, error) {
	local, err := linkLocal(ctx, p)
	if err != nil {
		return nil, err
	}
	z := &zoned{zone: strconv.Itoa(p.Index)}
	err = p.do(func() error {
		z.PacketConn, err = net.ListenUDP("udp6", &net.UDPAddr{IP: local.AsSlice(), Port: dhcpv6.DefaultClientPort, Zone: z.zone})
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("open socket on %s: %w", p.IfName, err)
	}
	return z, nil
}

// linkLocalPause is the pause between two reads of the link-local address. The address appears after
// duplicate address detection, 1-2 s after the link has come up.
const linkLocalPause = 50 * time.Millisecond

func linkLocal(ctx context.Context, p *Place) (local netip.Addr, err error) {
	err = p.with(func(conn *nl.Conn, _ netlink.Link) error {
		if err := enable(conn, p.IfName); err != nil {
			return err
		}
		for {
			addrs, err := conn.Addrs(p.Index)
			if err != nil {
				return err
			}
			for _, a := range addrs {
				if local = a.Prefix.Addr(); prefix.IsLinkLocal(local) && a.Flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) == 0 {
					return nil
				}
			}
			if !clock.Sleep(ctx, linkLocalPause) {
				return fmt.Errorf("%w: %s has no link-local address: %w", ErrSilent, p.IfName, ctx.Err())
			}
		}
	})
	return local, err
}

// enable turns IPv6 on for the interface, because a runtime may have turned it off.
func enable(conn *nl.Conn, ifName string) error {
	key := "net/ipv6/conf/" + ifName + "/disable_ipv6"
	off, err := conn.Sysctl(key)
	if err != nil || off == "0" {
		return err
	}
	return conn.SetSysctl(key, "0")
}

// These values replace times that a server did not send (RFC 8415, 14.2).
const (
	defaultT1V6 = 0.5
	defaultT2V6 = 0.8
)

// parseV6 returns the grant in a reply or an advertisement. The error is ErrNak only if the
// reply says that the address is not on our link or no longer valid.
func parseV6(m *dhcpv6.Message) (*Lease, error) {
	if err := failed(m.Options.Status()); err != nil {
		return nil, err
	}
	na := m.Options.OneIANA()
	if na == nil {
		return nil, errors.New("no IA_NA in the reply")
	}
	if err := failed(na.Options.Status()); err != nil {
		return nil, err
	}
	if len(na.Options.Addresses()) == 0 {
		return nil, errors.New("no address in the reply")
	}
	for _, a := range na.Options.Addresses() {
		ip, ok := netip.AddrFromSlice(a.IPv6Addr)
		if !ok || a.ValidLifetime < time.Second {
			continue
		}
		g := &Lease{Raw: m.ToBytes(), Address: netip.PrefixFrom(ip, 128), DNS: dnsV6(m), Valid: a.ValidLifetime, T1: na.T1, T2: na.T2}
		g.Order(defaultT1V6, defaultT2V6)
		return g, nil
	}
	return nil, fmt.Errorf("%w: the address is no longer valid", ErrNak)
}

// errNoBinding means that the server does not know the address.
var errNoBinding = errors.New("the server does not know the address")

// failed returns the error for a status. A valid address must stay if one of several servers
// fails, or if a failure is temporary (RFC 8415, 18.2.10).
func failed(s *dhcpv6.OptStatusCode) error {
	switch {
	case s == nil || s.StatusCode == iana.StatusSuccess:
		return nil
	case s.StatusCode == iana.StatusNotOnLink:
		return fmt.Errorf("%w: %v %s", ErrNak, s.StatusCode, said(s.StatusMessage))
	case s.StatusCode == iana.StatusNoBinding:
		return fmt.Errorf("%w: %v %s", errNoBinding, s.StatusCode, said(s.StatusMessage))
	}
	return fmt.Errorf("the server gives no address: %v %s", s.StatusCode, said(s.StatusMessage))
}

// said quotes a server's text for an error. Any device on the link may answer, and must not write lines
// of a log, or to a terminal.
func said(text string) string {
	const most = 64
	return strconv.QuoteToASCII(text[:min(len(text), most)])
}

func dnsV6(m *dhcpv6.Message) (d spec.DNS) {
	for _, ip := range m.Options.DNS() {
		d.Nameservers = append(d.Nameservers, ip.String())
	}
	if search := m.Options.DomainSearchList(); search != nil {
		d.Search = search.Labels
	}
	return d
}
