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
	"slices"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/dhcpv4/nclient4"

	"github.com/patchbay-net/patchbay/internal/dhcprpc"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/spec"
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
		return nil, fmt.Errorf("%w: %s", ErrNak, said(m.Message()))
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
	offer, err := exchange(ctx, client, nclient4.DefaultServers, discover, offers)
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

// offers reports whether a message is a server's offer.
func offers(m *dhcpv4.DHCPv4) bool {
	return m.MessageType() == dhcpv4.MessageTypeOffer && identified(m)
}

// answers reports whether a message is a server's answer to a request. A refusal counts without the server's identifier, too,
// because it gives nothing.
func answers(m *dhcpv4.DHCPv4) bool {
	return m.MessageType() == dhcpv4.MessageTypeAck && identified(m) || m.MessageType() == dhcpv4.MessageTypeNak
}

// identified reports whether a message says which server sent it, as an OFFER and an ACK must (RFC 2131, section 4.3.1,
// table 3). Without that, nobody could renew or release the lease.
func identified(m *dhcpv4.DHCPv4) bool {
	server, ok := netip.AddrFromSlice(m.ServerIdentifier().To4())
	return ok && !server.IsUnspecified()
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

// The reference uses these values for times that a server did not send.
const (
	defaultLease = time.Hour
	defaultT1V4  = 0.5
	defaultT2V4  = 0.85
)

var errNoMask = errors.New("DHCP option Subnet Mask not found in DHCPACK")

// parseV4 returns the grant in a DHCPACK.
func parseV4(ack *dhcpv4.DHCPv4) (*Lease, error) {
	ip, ok := netip.AddrFromSlice(ack.YourIPAddr.To4())
	if !ok || ip.IsUnspecified() {
		return nil, errors.New("no address in DHCPACK")
	}
	mask := ack.SubnetMask()
	if mask == nil {
		return nil, errNoMask
	}
	bits, size := mask.Size()
	if size != 32 {
		return nil, fmt.Errorf("invalid subnet mask %s in DHCPACK", mask)
	}
	g := &Lease{
		Raw:     ack.ToBytes(),
		Address: netip.PrefixFrom(ip, bits),
		Gateway: gateway(ack),
		Routes:  routes(ack),
		DNS:     dnsV4(ack),
		Valid:   ack.IPAddressLeaseTime(defaultLease),
		T1:      ack.IPAddressRenewalTime(0),
		T2:      ack.IPAddressRebindingTime(0),
	}
	if g.Valid < time.Second {
		return nil, fmt.Errorf("lease of %v in DHCPACK", g.Valid)
	}
	g.Order(defaultT1V4, defaultT2V4)
	return g, nil
}

// gateway returns the first router, and no address if there is none. 0.0.0.0 is no router.
func gateway(ack *dhcpv4.DHCPv4) netip.Addr {
	for _, ip := range ack.Router() {
		if !ip.IsUnspecified() {
			return nl.AddrOf(ip)
		}
	}
	return netip.Addr{}
}

// scopeLink is RT_SCOPE_LINK.
const scopeLink = 253

// routes returns the routes in an ACK. If there are classless routes (option 121), only they
// count (RFC 3442), even if none of them can be used. Otherwise these are the classful routes (option 33) and a default
// route through the router.
func routes(ack *dhcpv4.DHCPv4) []spec.Route {
	if list := ack.ClasslessStaticRoute(); len(list) > 0 {
		return routed(classless(list))
	}
	out := routed(classful(ack.Options.Get(dhcpv4.OptionStaticRoutingTable)))
	if gw := gateway(ack); gw.IsValid() {
		out = append(out, spec.Route{Dst: spec.DefaultDst(true), GW: gw})
	}
	return out
}

// classless returns the routes of option 121. Router 0.0.0.0 means that the destination is on the link. As in the
// reference, it stays in the result, because a route without a gateway would get the grant's gateway.
func classless(list dhcpv4.Routes) (out []spec.Route) {
	for _, r := range list {
		route := spec.Route{Dst: nl.PrefixOf(r.Dest), GW: nl.AddrOf(r.Router)}
		if r.Router.IsUnspecified() {
			scope := scopeLink
			route.Scope = &scope
		}
		out = append(out, route)
	}
	return out
}

// classful returns the routes of option 33, whose destinations have the prefix length of their class.
func classful(opt []byte) (out []spec.Route) {
	for ; len(opt) >= 8; opt = opt[8:] {
		dst := net.IP(opt[:4])
		out = append(out, spec.Route{Dst: nl.PrefixOf(&net.IPNet{IP: dst, Mask: dst.DefaultMask()}), GW: nl.AddrOf(net.IP(opt[4:8]))})
	}
	return out
}

// routed returns the routes whose destinations a router may be asked for: not only addresses of this host, of this
// network (0.0.0.0/8 and 127.0.0.0/8, RFC 6890) or of groups (224.0.0.0/4). A route of more than these, such as the
// default route or its half 0.0.0.0/1, stays.
func routed(routes []spec.Route) []spec.Route {
	return slices.DeleteFunc(routes, func(r spec.Route) bool {
		a, bits := r.Dst.Addr(), r.Dst.Bits()
		return a.IsLoopback() && bits >= 8 || a.IsMulticast() && bits >= 4 || a.Is4() && a.As4()[0] == 0 && bits >= 8
	})
}

func dnsV4(ack *dhcpv4.DHCPv4) spec.DNS {
	d := spec.DNS{Domain: ack.DomainName()}
	for _, ip := range ack.DNS() {
		d.Nameservers = append(d.Nameservers, nl.AddrOf(ip).String())
	}
	if search := ack.DomainSearch(); search != nil {
		d.Search = search.Labels
	}
	return d
}

// complete adds options to the ACK of a renewal. Some servers (Windows) send only options that
// have changed. So if this ACK has no subnet mask, complete copies the options of the earlier
// ACK.
func complete(ack, before *dhcpv4.DHCPv4) {
	if ack.SubnetMask() != nil || !ack.YourIPAddr.Equal(before.YourIPAddr) {
		return
	}
	for code, value := range before.Options {
		if !ack.Options.Has(dhcpv4.GenericOptionCode(code)) {
			ack.Options[code] = value
		}
	}
}
