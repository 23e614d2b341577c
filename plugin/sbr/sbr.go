// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package sbr is the plugin `sbr` (source based routing). Packets that a container sends from
// an address of an interface leave through that interface, even if the container has other
// interfaces. Each address gets a rule and a routing table. The routes of the interface move
// into these tables. Everything is in the container's namespace.
package sbr

import (
	"context"
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/patchbay-net/patchbay/internal/endpoint"
	"github.com/patchbay-net/patchbay/internal/kernel"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/internal/nl"
	"github.com/patchbay-net/patchbay/internal/prefix"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

const (
	name   = "sbr"
	noPrev = "This plugin must be called as chained plugin"
)

// firstTable is the number at which the search for free tables begins.
const firstTable = 100

// Plugin has the name, the versions and the functions of this plugin.
var Plugin = plugin.Plugin{
	Name:  name,
	Kind:  plugin.Chained,
	About: "routes by source: traffic from an interface's address leaves by that interface",
	Conf:  func() any { return new(Conf) },

	NoPrev: plugin.NoPrev{Add: noPrev, Check: noPrev},

	Validate: validate,
	Warnings: doubts,

	Add:   add,
	Del:   del,
	Check: check,
	GC:    kernel.CollectRecords,
}

func add(ctx context.Context, r *plugin.Request) (*spec.Result, error) {
	conf := plugin.ConfOf[Conf](r)
	ips, err := sources(r)
	if err != nil {
		return nil, err
	}
	k := kernel.Of(r)
	env, err := k.Env(r)
	if err != nil {
		return nil, err
	}
	unlock, err := env.Sandbox.Lock(ctx)
	if err != nil {
		return nil, err
	}
	defer unlock()
	list, err := assign(env.Sandbox, conf, ips)
	if err != nil {
		return nil, err
	}
	state, err := desired(r, env, conf, list)
	if err != nil {
		return nil, err
	}
	if err := k.Record(r, &record.Record{Rules: rulesOf(conf, list)}); err != nil {
		return nil, err
	}
	return r.Prev(), k.Apply(ctx, r, env, state)
}

// assign gives each address a table: the configured one, or the one to which a rule for the
// address already leads, or a free one.
func assign(c *nl.Conn, conf *Conf, ips []spec.IPConfig) (list []source, err error) {
	rules, err := c.Rules()
	if err != nil {
		return nil, err
	}
	var used []int
	for _, ip := range ips {
		src := source{IPConfig: ip}
		have := slices.DeleteFunc(rulesFrom(rules, ip.Address.Addr()), func(u rule) bool { return kernels(u.table) })
		switch {
		case conf.Table != nil:
			src.table = *conf.Table
		case len(have) > 0:
			src.table = have[0].table
		default:
			if src.table, err = c.FreeTable(firstTable, used...); err != nil {
				return nil, err
			}
		}
		used = append(used, src.table)
		list = append(list, src)
	}
	return list, nil
}

// kernels reports whether a table is one of the kernel's own.
func kernels(table int) bool {
	return table == unix.RT_TABLE_DEFAULT || table == unix.RT_TABLE_MAIN || table == unix.RT_TABLE_LOCAL
}

// desired compiles the state from the link's routes. In a dry run the link may not exist yet;
// then desired uses the routes that the link will have.
func desired(r *plugin.Request, env *netstate.Env, conf *Conf, list []source) (netstate.State, error) {
	if conf.Table != nil {
		return rulesOnly(list), nil
	}
	link, err := env.Link(netstate.Sandbox, r.IfName)
	if err != nil && r.Session.Dry != nil {
		return compile(conf, r.IfName, list, promised(r.Prev(), list)), nil
	}
	if err != nil {
		return nil, spec.Errorf(spec.CodeInternal, "Cannot find network interface %s: %w", r.IfName, err)
	}
	have, err := env.Sandbox.LinkRoutes(link.Attrs().Index, unix.RT_TABLE_MAIN)
	if err != nil {
		return nil, err
	}
	return compile(conf, r.IfName, list, have), nil
}

func rulesOf(conf *Conf, list []source) (rules []record.Rule) {
	for _, src := range list {
		rules = append(rules, record.Rule{Src: src.Address.Addr(), Table: src.table, Own: conf.Table == nil})
	}
	return rules
}

// check compares the kernel with the previous result. Each address must have a rule. The
// address's table must have the default route and the routes of the address.
func check(ctx context.Context, r *plugin.Request) error {
	conf := plugin.ConfOf[Conf](r)
	ips, err := sources(r)
	if err != nil {
		return err
	}
	env, err := kernel.Of(r).Env(r)
	if err != nil {
		return err
	}
	rules, err := env.Sandbox.Rules()
	if err != nil {
		return err
	}
	var list []source
	for _, ip := range ips {
		have := rulesFrom(rules, ip.Address.Addr())
		if len(have) == 0 {
			return spec.Errorf(spec.CodeInternal, "no rule from %s found", ip.Address.Addr())
		}
		table := have[0].table
		if conf.Table != nil {
			table = *conf.Table
		}
		list = append(list, source{ip, table})
	}
	return kernel.Check(ctx, env, expected(r, conf, list))
}

// expected returns the state for the routes of the previous result. expected leaves out the
// removals, because later plugins and programs may add routes.
func expected(r *plugin.Request, conf *Conf, list []source) (s netstate.State) {
	if conf.Table != nil {
		return rulesOnly(list)
	}
	for _, o := range compile(conf, r.IfName, list, promised(r.Prev(), list)) {
		if o, ok := o.(route); ok && o.absent {
			continue
		}
		s = append(s, o)
	}
	return s
}

// Conf is the configuration of this plugin.
type Conf struct {
	// Table is a routing table that another program fills. Then only rules that lead to it are
	// made, and no route is changed. Without table, each address gets its own table: the first
	// from 100 on that no rule, route or VRF has. Reference: looks for free tables only in rules
	// and the main table.
	Table *int `json:"table"`

	// Gateways has at most one IPv4 and one IPv6 address. In the tables' default routes, they
	// replace the gateways of the addresses. Refused with `table`. Reference: not in v1.9.1; named
	// so in its development branch.
	Gateways []netip.Addr `json:"gateways"`

	// AddSourceHints keeps or adds the route to each address's subnet in the main table, with the
	// address as preferred source. So a program that binds no source address reaches the subnet.
	// Refused with `table`. Reference: not in v1.9.1; the same in its development branch.
	AddSourceHints bool `json:"addSourceHints"`
}

// maxTable is the largest number of a table (32 bits, unsigned).
const maxTable = 1<<32 - 1

// Load validates the configuration.
func (c *Conf) Load(*plugin.Request) error {
	if c.Table != nil && (*c.Table < 1 || *c.Table > maxTable) {
		return spec.Invalid("invalid table %d: must be between 1 and %d", *c.Table, maxTable)
	}
	if c.Table != nil && (len(c.Gateways) > 0 || c.AddSourceHints) {
		return spec.Invalid("gateways and addSourceHints cannot be set with table %d: another program makes the routes of that table", *c.Table)
	}
	var families [2]bool
	for _, gw := range c.Gateways {
		if !gw.IsValid() || gw.Zone() != "" {
			return spec.Invalid("invalid gateway %q", gw)
		}
		family := &families[0]
		if gw.Is4() {
			family = &families[1]
		}
		if *family {
			return spec.Invalid("gateways may have one address of IPv4 and one of IPv6 at most")
		}
		*family = true
	}
	return nil
}

// validate checks the gateways, if the list determines the addresses.
func validate(r *plugin.Request) error {
	if r.InList == nil {
		return nil
	}
	c := plugin.ConfOf[Conf](r)
	for _, gw := range c.Gateways {
		for _, answer := range r.InList.Answers {
			if endpoint.HasFamily(answer.IPs, gw.Is4()) && !reaches(answer, gw) {
				return spec.Invalid("the gateway %s is in no subnet of the interface", gw)
			}
		}
	}
	return nil
}

// reaches reports whether gw is a neighbour of an interface with these addresses and routes.
func reaches(answer *spec.Result, gw netip.Addr) bool {
	near := func(ip spec.IPConfig) bool { return ip.Address.Masked().Contains(gw) || ip.Gateway == gw }
	direct := func(route netstate.Route) bool { return !route.Gateway.IsValid() && route.Dst.Contains(gw) }
	return prefix.IsLinkLocal(gw) || slices.ContainsFunc(answer.IPs, near) ||
		slices.ContainsFunc(endpoint.Routes("", answer), direct)
}

// doubts warns about the three tables that the kernel uses for its own purposes.
func doubts(r *plugin.Request) []string {
	c := plugin.ConfOf[Conf](r)
	if c.Table == nil || *c.Table < unix.RT_TABLE_DEFAULT || *c.Table > unix.RT_TABLE_LOCAL {
		return nil
	}
	return []string{fmt.Sprintf("table %d is the kernel's, which looks it up for every source already", *c.Table)}
}

// gateway returns the next hop of the default route for an address. If it is not valid, the
// address's table gets only the link's own default routes.
func (c *Conf) gateway(ip spec.IPConfig) netip.Addr {
	for _, gw := range c.Gateways {
		if gw.Is4() == ip.Address.Addr().Is4() {
			return gw
		}
	}
	return ip.Gateway
}

// sources returns the addresses of the interface in the previous result. An address without an
// interface counts too.
func sources(r *plugin.Request) (ips []spec.IPConfig, err error) {
	for _, ip := range r.Prev().IPs {
		if in := r.Prev().Of(ip); in == nil || in.Name == r.IfName {
			ips = append(ips, ip)
		}
	}
	if len(ips) == 0 {
		return nil, spec.Invalid("No IP addresses supplied on interface: %s", r.IfName)
	}
	return ips, nil
}
