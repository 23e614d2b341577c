// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"path/filepath"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/internal/apart"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/paths"
	"github.com/patchbay-net/patchbay/netns"
	"github.com/patchbay-net/patchbay/spec"
)

const demoLong = `Attach two containers to the built-in network and prove, over IPv4 and IPv6,
that they reach each other, that the host reaches them, that a published
port is reached from outside, and that traffic to the outside is
masqueraded: each server reports the client's address. Then everything is
removed, and that is proven too.

All of it happens in separate namespaces: nothing touches this machine's
network. An ordinary user can run it; nothing needs to be
installed.`

// demoInside is an environment variable. It is set in the process that runs in the new
// namespaces.
const demoInside = "PATCHBAY_DEMO_INSIDE"

type demoCommand struct {
	app  *app
	JSON bool `long:"json" description:"print a JSON object"`
}

// Execute starts this program again in new namespaces.
func (c *demoCommand) Execute([]string) error {
	if c.app.getenv(demoInside) != "" {
		return c.inside()
	}
	return c.app.reexec(demoInside, apart.Flags())
}

// noNamespaces adds to err why this machine does not allow new namespaces, and what to do.
func (a *app) noNamespaces(err error) error {
	if hint := apart.Hint(err, a.paths.Proc); hint != "" {
		return hinted(err, "%s", hint)
	}
	return err
}

// inside runs the demo. This process is in the new namespaces already.
func (c *demoCommand) inside() error {
	if err := apart.Check(demoInside, c.app.getenv(demoInside)); err != nil {
		return err
	}
	if err := privateRun(); err != nil {
		return c.app.noNamespaces(err)
	}
	p := &c.app.paths // all state is in the private /run
	p.Run, p.State, p.CNI, p.NetNS = "/run/patchbay", "/run/state", "/run/cni", "/run/netns"
	d := &demo{app: c.app}
	err := d.run()
	if c.JSON {
		return errors.Join(c.app.printJSON(&d.report), err)
	}
	return err
}

// privateRun mounts an empty file system over /run, only for this process.
func privateRun() error {
	if err := unix.Mount("", "/", "none", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("make mounts private: %w", err)
	}
	if err := unix.Mount("tmpfs", "/run", "tmpfs", 0, "mode=0755"); err != nil {
		return fmt.Errorf("mount tmpfs on /run: %w", err)
	}
	return nil
}

// place is one network namespace of the demo: the host, a container, or the outside world. It
// ends with the process.
type place struct {
	*nl.Conn
	name    string
	path    string       // empty for the host
	addrs   []netip.Addr // one per family, IPv4 first
	gateway []netip.Addr // the gateway of each address
	server  net.Listener
}

// newPlace creates a network namespace and sets its loopback interface up.
func newPlace(p paths.Paths, name string) (*place, error) {
	pl := &place{name: name, path: filepath.Join(p.NetNS, name)}
	if err := netns.Create(pl.path); err != nil {
		return nil, err
	}
	ns, err := netns.Open(pl.path)
	if err == nil {
		pl.Conn, err = nl.In(ns, p.Proc)
	}
	if err == nil {
		err = setUp(pl.Conn, "lo")
	}
	if err != nil {
		return nil, fmt.Errorf("make %s: %w", name, err)
	}
	return pl, nil
}

// setUp adds addresses to a link and sets the link up. It does not wait for duplicate address
// detection, which takes a second for IPv6.
func setUp(c *nl.Conn, link string, prefixes ...netip.Prefix) error {
	env := &netstate.Env{Host: c}
	for _, p := range prefixes {
		addr := netstate.Addr{Where: netstate.Host, Link: link, Prefix: p}
		if _, err := addr.Ensure(context.Background(), env); err != nil {
			return err
		}
	}
	_, err := netstate.Up{Where: netstate.Host, Link: link}.Ensure(context.Background(), env)
	return err
}

// connect makes a veth pair with the end link in p and the end peer in the other place. In each
// subnet, link gets the first address and peer the second.
func (p *place) connect(to *place, link, peer string, subnets []netip.Prefix) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = link
	veth := &netlink.Veth{LinkAttrs: attrs, PeerName: peer, PeerNamespace: netlink.NsFd(to.NS.Fd())}
	if err := p.LinkAdd(veth); err != nil {
		return fmt.Errorf("make %s: %w", link, err)
	}
	var near, far []netip.Prefix
	for _, s := range subnets {
		a := s.Addr().Next()
		near, far = append(near, netip.PrefixFrom(a, s.Bits())), append(far, netip.PrefixFrom(a.Next(), s.Bits()))
		p.addrs, to.addrs = append(p.addrs, a), append(to.addrs, a.Next())
	}
	return errors.Join(setUp(p.Conn, link, near...), setUp(to.Conn, peer, far...))
}

func (p *place) attachment() chain.Attachment {
	return chain.Attachment{ContainerID: "demo-" + p.name, NetNS: p.path, IfName: "eth0"}
}

// learn stores the addresses and gateways in the result of an ADD.
func (p *place) learn(r *spec.Result) {
	for _, ip := range r.IPs {
		p.addrs = append(p.addrs, ip.Address.Addr())
		p.gateway = append(p.gateway, ip.Gateway)
	}
}

// serve listens on a port and answers every connection with the client's address. The socket
// stays in the namespace in which it was created, whatever thread serves it.
func (p *place) serve(port int) error {
	err := p.Do(func() (err error) {
		p.server, err = net.Listen("tcp", fmt.Sprintf(":%d", port))
		return err
	})
	if err != nil {
		return fmt.Errorf("serve in %s: %w", p.name, err)
	}
	go func() {
		for {
			conn, err := p.server.Accept()
			if err != nil {
				return // closed
			}
			_, _ = io.WriteString(conn, conn.RemoteAddr().String())
			_ = conn.Close()
		}
	}()
	return nil
}

// patience limits the time of one connection. Within one machine an answer takes less than a
// millisecond.
const patience = 2 * time.Second

// ask connects to a server from this namespace, and returns the client address that the server
// saw.
func (p *place) ask(ctx context.Context, to netip.AddrPort) (seen netip.Addr, err error) {
	var conn net.Conn
	err = p.Do(func() (err error) {
		conn, err = (&net.Dialer{Timeout: patience}).DialContext(ctx, "tcp", to.String())
		return err
	})
	if err != nil {
		return seen, err
	}
	defer conn.Close() //nolint:errcheck // read only
	if err := conn.SetDeadline(time.Now().Add(patience)); err != nil {
		return seen, err
	}
	text, err := io.ReadAll(io.LimitReader(conn, 100))
	if err != nil {
		return seen, err
	}
	client, err := netip.ParseAddrPort(string(text))
	if err != nil {
		return seen, errors.Join(errors.New("the server's answer is no address"), err)
	}
	return client.Addr().Unmap(), nil
}

// These are the ports of the demo. One is the web container's own port, one is the host's port
// that publishes it, and one is the port of the server in the outside world.
const (
	webPort       = 80
	publishedPort = 8080
	worldPort     = 7
)

// uplinks returns the subnets between the demo's host and its outside world. They are reserved
// for documentation (RFC 5737, RFC 3849). The outside world has no route to the containers, so
// it can answer only packets that were masqueraded.
func uplinks() []netip.Prefix {
	return []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24"), netip.MustParsePrefix("2001:db8:77::/64")}
}

// demo is one run inside the private namespaces.
type demo struct {
	app    *app
	net    *network
	host   *place
	world  *place
	web    *place
	client *place
	report demoReport
}

// demoReport is what the demo proved.
type demoReport struct {
	Network  string   `json:"network"`
	Attached []string `json:"attached"`
	Proofs   []proof  `json:"proofs"`
	Took     int64    `json:"milliseconds"`
	Clean    bool     `json:"nothingLeft"`
}

// proof is the outcome of one trial.
type proof struct {
	Family string `json:"family"`
	What   string `json:"what"`
	From   string `json:"from"`
	To     string `json:"to"`
	Seen   string `json:"seen"` // the client's address, as the server saw it
	Why    string `json:"because,omitempty"`
	Err    string `json:"error,omitempty"`
}

// run attaches the containers, tries all paths, and detaches. If a step fails, the end of the
// process removes the namespaces with everything in them.
func (d *demo) run() (err error) {
	start := time.Now()
	if err := d.begin(); err != nil {
		return err
	}
	if err := d.build(); err != nil {
		return err
	}
	if err := d.attachAll(); err != nil {
		return err
	}
	failed := d.prove()
	if err := d.remove(); err != nil {
		return err
	}
	if d.app.ctx.Err() != nil {
		return fmt.Errorf("%d paths were proven until then", len(d.report.Proofs)-failed)
	}
	d.report.Took = time.Since(start).Milliseconds()
	if failed > 0 {
		return fmt.Errorf("%d of %d paths do not work", failed, len(d.report.Proofs))
	}
	return d.say("\nAll %d proven in %d ms. This machine's own network was not touched.\n", len(d.report.Proofs), d.report.Took)
}

// begin chooses the network, and says what the demo does before it does anything.
func (d *demo) begin() (err error) {
	if d.net, err = defaultNetwork(d.app.paths); err != nil {
		return err
	}
	d.report.Network = d.net.Name
	return d.say("Attaches two containers to the built-in network %q, tries every path between them, a host and an\n"+
		"outside world, and removes them. All are in namespaces of their own, apart from this machine's network.\n\n", d.net.Name)
}

// build creates the namespaces of the outside world and of both containers, and connects the
// world to the host.
func (d *demo) build() (err error) {
	d.host = &place{name: "host"}
	if d.host.Conn, err = nl.Host(d.app.paths.Proc); err != nil {
		return err
	}
	if err := setUp(d.host.Conn, "lo"); err != nil {
		return err
	}
	for _, p := range []struct {
		place **place
		name  string
	}{{&d.world, "world"}, {&d.web, "web"}, {&d.client, "client"}} {
		if *p.place, err = newPlace(d.app.paths, p.name); err != nil {
			return err
		}
	}
	subnets := uplinks()
	if !hasIPv6(d.app.paths.Proc) {
		subnets = subnets[:1]
	}
	return d.host.connect(d.world, "uplink", "eth0", subnets)
}

// attachAll attaches both containers to the network. The container web also publishes a port.
func (d *demo) attachAll() error {
	if err := errors.Join(d.web.serve(webPort), d.world.serve(worldPort)); err != nil {
		return err
	}
	ports := spec.Capabilities{PortMappings: []spec.PortMapping{{HostPort: publishedPort, ContainerPort: webPort, Protocol: "tcp"}}}
	if err := d.attach(d.web, ports.Map()); err != nil {
		return err
	}
	if err := d.attach(d.client, nil); err != nil {
		return err
	}
	return d.say("  %-8s %s, reached from the host as %s\n\n", "world", join(d.world.addrs), join(d.host.addrs))
}

func (d *demo) attach(p *place, capabilities map[string]any) error {
	at := p.attachment()
	at.Capabilities = capabilities
	start := time.Now()
	result, err := d.app.runtime(d.net).Add(d.app.ctx, d.net.List, at)
	if err != nil {
		return fmt.Errorf("attach %s: %w", p.name, err)
	}
	took := time.Since(start)
	p.learn(result)
	d.report.Attached = append(d.report.Attached, p.name+" "+join(p.addrs))
	return d.say("  %-8s %s, attached in %.1f ms\n", p.name, join(p.addrs), float64(took.Microseconds())/1000)
}

// prove tries every path, once per address family, and counts the failures.
func (d *demo) prove() (failed int) {
	for i, client := range d.client.addrs {
		family := "IPv6"
		if client.Is4() {
			family = "IPv4"
		}
		d.app.warn(d.say("%s\n", family))
		for _, t := range d.trials(i) {
			p := t.run(d.app.ctx)
			if d.app.ctx.Err() != nil {
				return failed // the signal ended this trial, so it proves nothing about the path
			}
			p.Family = family
			d.report.Proofs = append(d.report.Proofs, p)
			if p.Err != "" {
				failed++
			}
			d.app.warn(d.say("%s", p.line()))
		}
	}
	return failed
}

// trial is one path to try. The server must see a client with the address want.
type trial struct {
	what string
	from *place
	to   netip.AddrPort
	want netip.Addr // if it is not valid, any address will do
	why  string
}

// trials lists the paths to try for the ith address family.
func (d *demo) trials(i int) []trial {
	web, client, world, uplink, gateway := d.web.addrs[i], d.client.addrs[i], d.world.addrs[i], d.host.addrs[i], d.web.gateway[i]
	at, published := netip.AddrPortFrom(web, webPort), netip.AddrPortFrom(uplink, publishedPort)
	out := []trial{
		{"container to container", d.client, at, client, ""},
		{"host to container", d.host, at, gateway, ""},
		{"published port, from outside", d.world, published, world, "the client's own address"},
		{"published port, from a container", d.client, published, netip.Addr{}, ""},
		{"published port, from the host", d.host, published, netip.Addr{}, ""},
	}
	if web.Is4() {
		local := netip.AddrPortFrom(netip.AddrFrom4([4]byte{127, 0, 0, 1}), publishedPort)
		out = append(out, trial{"published port, on localhost", d.host, local, gateway, ""})
	}
	return append(out, trial{"way out", d.client, netip.AddrPortFrom(world, worldPort), uplink, "masqueraded"})
}

// run tries one path.
func (t *trial) run(ctx context.Context) proof {
	p := proof{What: t.what, From: t.from.name, To: t.to.String(), Why: t.why}
	seen, err := t.from.ask(ctx, t.to)
	switch {
	case err != nil:
		p.Err = err.Error()
	case t.want.IsValid() && seen != t.want:
		p.Err = fmt.Sprintf("the server saw %s, not %s", seen, t.want)
	default:
		p.Seen = seen.String()
	}
	return p
}

func (p *proof) line() string {
	if p.Err != "" {
		return fmt.Sprintf("  FAIL  %-32s %6s -> %s: %s\n", p.What, p.From, p.To, p.Err)
	}
	because := ""
	if p.Why != "" {
		because = ", " + p.Why
	}
	return fmt.Sprintf("  ok    %-32s %6s -> %-24s seen as %s%s\n", p.What, p.From, p.To, p.Seen, because)
}

// remove detaches both containers and fails if anything is left over.
func (d *demo) remove() error {
	var errs []error
	for _, p := range []*place{d.client, d.web} {
		errs = append(errs, d.app.runtime(d.net).Del(context.WithoutCancel(d.app.ctx), d.net.List, p.attachment()))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("detach: %w", err)
	}
	found, err := d.leftovers()
	if err != nil {
		return err
	}
	if len(found) > 0 {
		return fmt.Errorf("left behind: %s", strings.Join(found, ", "))
	}
	d.report.Clean = true
	return d.say("\nRemoved: both containers detached; no address, port, link or record is left.\n")
}

// leftovers lists objects that DEL should have removed. It omits the bridge, because every bridge
// plugin leaves it for other containers.
func (d *demo) leftovers() (found []string, err error) {
	links, err := d.host.LinkList()
	if err != nil {
		return nil, fmt.Errorf("list links: %w", err)
	}
	for _, l := range links {
		if l.Attrs().Alias != "" {
			found = append(found, "link "+l.Attrs().Name)
		}
	}
	attachments, err := d.app.attachments("")
	for _, s := range attachments {
		found = append(found, "record of "+s.ContainerID)
	}
	files, _ := filepath.Glob(filepath.Join(d.app.paths.Pools(), d.net.Name, "*")) // a valid pattern
	for _, f := range files {
		if _, perr := netip.ParseAddr(filepath.Base(f)); perr == nil {
			found = append(found, "address "+filepath.Base(f))
		}
	}
	for _, addr := range d.host.addrs {
		to := netip.AddrPortFrom(addr, publishedPort)
		if _, derr := d.world.ask(context.WithoutCancel(d.app.ctx), to); derr == nil {
			found = append(found, "published port "+to.String())
		}
	}
	return found, err
}

func (d *demo) say(format string, args ...any) error {
	if d.app.json {
		return nil
	}
	return d.app.printf(format, args...)
}

func join(addrs []netip.Addr) string {
	var s []string
	for _, a := range addrs {
		s = append(s, a.String())
	}
	return strings.Join(s, ", ")
}
