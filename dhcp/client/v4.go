// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package client

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv4/nclient4"

	"github.com/patchbay-net/patchbay/internal/dhcprpc"
)

// V4 is DHCPv4 (RFC 2131).
type V4 struct {
	ID        string // option 61, with the value that the reference sends
	Options   dhcprpc.Options
	Priority  int  // priority of the routes
	Broadcast bool // ask servers to broadcast their answers
}

// maxID is the length of the longest client id, as in the reference. An option has at most 255
// bytes, and one of them is for the type.
const maxID = 254

// ID returns the client id that the reference uses for an attachment:
// container/network/interface. So an attachment keeps its address when one program replaces the
// other.
func ID(containerID, network, ifName string) string {
	id := containerID + "/" + network + "/" + ifName
	return id[:min(len(id), maxID)]
}

// modifiers returns the changes that every message gets. The client id comes first, because
// `provide` may replace it.
func (c *V4) modifiers() []dhcpv4.Modifier {
	mods := []dhcpv4.Modifier{
		dhcpv4.WithOption(dhcpv4.OptMaxMessageSize(nclient4.MaxMessageSize)),
		dhcpv4.WithOption(dhcpv4.OptClientIdentifier(append([]byte{0}, c.ID...))),
	}
	for _, o := range c.Options.Provide {
		mods = append(mods, dhcpv4.WithOption(dhcpv4.Option{Code: dhcpv4.GenericOptionCode(o.Code), Value: dhcpv4.OptionGeneric{Data: o.Value}}))
	}
	if len(c.Options.Request) > 0 {
		var list dhcpv4.OptionCodeList
		for _, code := range c.Options.Request {
			list.Add(dhcpv4.GenericOptionCode(code))
		}
		mods = append(mods, dhcpv4.WithOption(dhcpv4.Option{Code: dhcpv4.OptionParameterRequestList, Value: list}))
	}
	return mods
}

// Parse parses a stored DHCPACK.
func (c *V4) Parse(raw []byte) (*Lease, error) {
	ack, err := decodeACK(raw)
	if err != nil {
		return nil, err
	}
	return c.grant(ack)
}

func decodeACK(raw []byte) (*dhcpv4.DHCPv4, error) {
	ack, err := dhcpv4.FromBytes(raw)
	if err != nil {
		return nil, fmt.Errorf("decode DHCPACK: %w", err)
	}
	return ack, nil
}

// grant returns the grant in an ACK, or an error for a NAK.
func (c *V4) grant(m *dhcpv4.DHCPv4) (*Lease, error) {
	if m.MessageType() == dhcpv4.MessageTypeNak {
		return nil, fmt.Errorf("%w: %s", ErrNak, m.Message())
	}
	g, err := parseV4(m)
	if err != nil {
		return nil, err
	}
	for i := range g.Routes {
		g.Routes[i].Priority = c.Priority
	}
	return g, nil
}

// Acquire sends DISCOVER, waits for an OFFER, sends REQUEST, and waits for the ACK. wait limits
// each of the two waits.
func (c *V4) Acquire(ctx context.Context, p *Place, wait time.Duration) (*Lease, error) {
	sock, err := broadcast(p, netip.Prefix{})
	if err != nil {
		return nil, err
	}
	client, err := sock.client(wait)
	if err != nil {
		return nil, err
	}
	defer closeLater(client)
	mods := c.modifiers()
	if c.Broadcast {
		mods = append(mods, dhcpv4.WithBroadcast(true))
	}
	discover, err := dhcpv4.NewDiscovery(sock.mac, mods...)
	if err != nil {
		return nil, err
	}
	offer, err := exchange(ctx, client, nclient4.DefaultServers, discover, nclient4.IsMessageType(dhcpv4.MessageTypeOffer))
	if err != nil {
		return nil, fmt.Errorf("discover: %w", err)
	}
	request, err := dhcpv4.NewRequestFromOffer(offer, mods...)
	if err != nil {
		return nil, err
	}
	ack, err := exchange(ctx, client, nclient4.DefaultServers, request, nclient4.IsAll(nclient4.IsCorrectServer(offer.ServerIdentifier()), answers))
	if errors.Is(err, ErrSilent) { // the server exists, because it sent an offer; under another id it may answer
		ack, err = exchange(ctx, client, nclient4.DefaultServers, request, answers)
	}
	if err != nil {
		return nil, fmt.Errorf("request %s: %w", offer.YourIPAddr, err)
	}
	return c.grant(ack)
}

// closeLater closes a client or its socket in the background. To close a packet socket, the
// kernel takes 8-16 ms (docs/adr/0016), for which no ADD should wait.
func closeLater(c io.Closer) {
	go c.Close() //nolint:errcheck // an error of Close changes nothing here
}

// answers reports whether a message is a server's answer to a request.
func answers(m *dhcpv4.DHCPv4) bool {
	return m.MessageType() == dhcpv4.MessageTypeAck || m.MessageType() == dhcpv4.MessageTypeNak
}

// exchange sends a message and waits for an answer for which match returns true.
func exchange(ctx context.Context, c *nclient4.Client, to *net.UDPAddr, m *dhcpv4.DHCPv4, match nclient4.Matcher) (*dhcpv4.DHCPv4, error) {
	answer, err := c.SendAndRead(ctx, to, m, match)
	if errors.Is(err, nclient4.ErrNoResponse) {
		return nil, fmt.Errorf("%w: %w", ErrSilent, err)
	}
	return answer, err
}

// Extend asks the server that granted g, or any server if rebind is set.
func (c *V4) Extend(ctx context.Context, p *Place, g *Lease, rebind bool, wait time.Duration) (*Lease, error) {
	before, err := decodeACK(g.Raw)
	if err != nil {
		return nil, err
	}
	to, open := nclient4.DefaultServers, broadcast
	if server := before.ServerIdentifier(); server != nil && !rebind {
		to, open = &net.UDPAddr{IP: server, Port: nclient4.ServerPort}, toServer
	}
	sock, err := open(p, g.Address)
	if err != nil {
		return nil, err
	}
	client, err := sock.client(wait)
	if err != nil {
		return nil, err
	}
	defer closeLater(client)
	// The request needs a new transaction id. NewRenewFromAck would use the old one again.
	request, err := dhcpv4.New(dhcpv4.PrependModifiers(c.modifiers(),
		dhcpv4.WithHwAddr(sock.mac), dhcpv4.WithMessageType(dhcpv4.MessageTypeRequest), dhcpv4.WithClientIP(before.YourIPAddr),
		dhcpv4.WithRequestedOptions(dhcpv4.OptionSubnetMask, dhcpv4.OptionRouter, dhcpv4.OptionDomainName, dhcpv4.OptionDomainNameServer))...)
	if err != nil {
		return nil, err
	}
	ack, err := exchange(ctx, client, to, request, answers)
	if err != nil {
		return nil, err
	}
	complete(ack, before)
	return c.grant(ack)
}

// Release sends the server a RELEASE, which the server does not answer. The interface may already
// have lost the address, and a DEL may delete it as soon as Release returns.
func (c *V4) Release(ctx context.Context, p *Place, g *Lease) error {
	ack, err := decodeACK(g.Raw)
	if err != nil {
		return err
	}
	release, err := dhcpv4.NewReleaseFromACK(ack, c.modifiers()...)
	if err != nil {
		return err
	}
	release.DeleteOption(dhcpv4.OptionParameterRequestList)
	release.DeleteOption(dhcpv4.OptionMaximumDHCPMessageSize)
	sock, err := toServer(p, g.Address)
	if err != nil {
		return err
	}
	defer closeLater(sock)
	server := ack.ServerIdentifier()
	if server == nil {
		server = net.IPv4bcast
	}
	if _, err = sock.WriteTo(release.ToBytes(), &net.UDPAddr{IP: server, Port: nclient4.ServerPort}); err != nil {
		return err
	}
	return sock.sent(ctx)
}
