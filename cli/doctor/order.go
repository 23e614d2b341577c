// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/patchbay-net/patchbay/internal/jsonat"
	"github.com/patchbay-net/patchbay/internal/packed"
	"github.com/patchbay-net/patchbay/internal/prefix"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// place describes the plugins of a list before the one that is being judged.
type place struct {
	before int      // number of plugins
	main   string   // our plugin that makes the interface
	seen   []string // the chained plugins

	answers []*spec.Result // what IPAM would give to the plugins that make interfaces
}

// pass adds a plugin to the plugins that come before the next one. For another vendor's plugin,
// p is nil; it may make any interface.
func (at *place) pass(p *plugin.Plugin, pluginType string) {
	at.before++
	switch {
	case p == nil:
	case p.Kind == plugin.Chained:
		at.seen = append(at.seen, pluginType)
	case makes(p):
		at.main = p.Name
	}
}

// makes reports whether a plugin always makes the interface that CNI_IFNAME names. host-device
// does not: it may leave the device to a program in user space.
func makes(p *plugin.Plugin) bool {
	return p.Kind == plugin.Interface && !slices.Contains([]string{"loopback", "host-device", packed.Type, "wrap"}, p.Name)
}

// order checks that a plugin may come after the plugins before it.
func (v *vetter) order(p *plugin.Plugin, n *jsonat.Node, at *place) {
	switch {
	case p.Kind == plugin.Chained && at.before == 0:
		v.problem(n, spec.Errorf(spec.CodeInvalidConfig, "%s: it comes before any plugin that makes an interface", p.Name))
	case makes(p) && at.main != "":
		v.problem(n, spec.Errorf(spec.CodeInvalidConfig, "%s: %s makes the interface already, and only one can", p.Name, at.main))
	case slices.Contains(at.seen, p.Name):
		v.warn(offsetOf(n), "%s: it comes twice, but keeps only one record of an attachment", p.Name)
	case p.Kind == plugin.IPAM:
		v.warn(offsetOf(n), "%s: it makes no interface: it belongs in the ipam of one that does", p.Name)
	}
	if p.Name != packed.Type && p.Name != "wrap" { // their members are judged like plugins of the list
		at.pass(p, p.Name)
	}
}

// granted returns the capabilities that a plugin's configuration declares.
func granted(raw json.RawMessage) map[string]bool {
	var conf struct {
		Capabilities map[string]bool `json:"capabilities"`
	}
	_ = json.Unmarshal(raw, &conf) // the JSON was decoded before
	maps.DeleteFunc(conf.Capabilities, func(_ string, on bool) bool { return !on })
	return conf.Capabilities
}

// capabilities warns about a capability whose name resembles one that the plugin knows.
func (v *vetter) capabilities(p *plugin.Plugin, call *spec.Call, n *jsonat.Node, granted map[string]bool) {
	known := slices.Clone(p.Capabilities)
	if head, err := spec.ParseConf(call.Config); err == nil && head.IPAM.Type != "" {
		if i := v.session.Own(head.IPAM.Type, call); i != nil {
			known = append(known, i.Capabilities...)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(granted)) {
		if near := jsonat.Nearest(name, known); near != "" && !slices.Contains(known, name) {
			v.warn(offsetOf(n), "%s.capabilities: unknown capability %q: did you mean %q?", p.Name, name, near)
		}
	}
}

// members judges the plugins inside a plugin of type patchbay, or the plugin inside one of type
// wrap.
func (v *vetter) members(pluginType string, raw json.RawMessage, n *jsonat.Node, at *place) {
	var conf struct {
		Plugin  json.RawMessage   `json:"plugin"`
		Plugins []json.RawMessage `json:"plugins"`
	}
	if json.Unmarshal(raw, &conf) != nil {
		return
	}
	switch pluginType {
	case packed.Type:
		for i, m := range conf.Plugins {
			v.handedDown(m, granted(raw), nodeOf(nil, n.Get("plugins"), i))
			v.member(m, nodeOf(nil, n.Get("plugins"), i), at)
		}
	case "wrap":
		v.member(inherited(conf.Plugin, raw), n.Get("plugin"), at)
	}
}

// inherited returns the configuration of a wrapped plugin. If the plugin declares no
// capabilities, it gets those of the plugin wrap, as in an ADD.
func inherited(inner, wrapper json.RawMessage) json.RawMessage {
	var own struct {
		Capabilities map[string]bool `json:"capabilities"`
	}
	conf, err := spec.ParseObject(inner)
	if err != nil || json.Unmarshal(inner, &own) != nil || len(own.Capabilities) > 0 || conf.Set("capabilities", granted(wrapper)) != nil {
		return inner
	}
	data, err := conf.JSON()
	if err != nil {
		return inner
	}
	return data
}

func (v *vetter) member(raw json.RawMessage, n *jsonat.Node, at *place) {
	if kind := typeOf(raw); kind != "" {
		v.plugin(kind, raw, n, at)
	}
}

func typeOf(raw json.RawMessage) string {
	var head struct {
		Type string `json:"type"`
	}
	_ = json.Unmarshal(raw, &head) // judging the plugin around it reports the error
	return head.Type
}

// handedDown warns about capabilities that a member declares but the list around it does not.
// The runtime then passes them to neither.
func (v *vetter) handedDown(member json.RawMessage, outer map[string]bool, n *jsonat.Node) {
	for _, name := range slices.Sorted(maps.Keys(granted(member))) {
		if !outer[name] {
			v.warn(offsetOf(n), "%s: no runtime gives it the capability %s, because the plugin patchbay around it does not declare the capability (patchbay convert adds it)", typeOf(member), name)
		}
	}
}

// nameServers warns about name servers that are not IP addresses.
func (v *vetter) nameServers(path string, config []byte, n *jsonat.Node) {
	var conf struct {
		DNS spec.DNS `json:"dns"`
	}
	_ = json.Unmarshal(config, &conf) // judging the plugin itself reports the error
	for i, s := range conf.DNS.Nameservers {
		if !isAddress(s) {
			v.warn(offsetOf(n), "%s: %q is no address", fmt.Sprintf("%s.nameservers[%d]", path, i), s)
		}
	}
}

// answers returns the result that IPAM would give to an ADD, and warns about values in it that
// cannot be intended.
func (v *vetter) answers(path string, call *spec.Call, head *spec.Conf, n *jsonat.Node, in plugin.InList) []*spec.Result {
	r := &plugin.Request{Call: call, Network: head.Name, Version: head.CNIVersion, Head: head, Session: v.session, InList: &in}
	samples := r.Samples()
	var reported []string
	for _, sample := range samples {
		for _, doubt := range doubtsOf(sample) {
			if !slices.Contains(reported, doubt) {
				reported = append(reported, doubt)
				v.warn(offsetOf(n), "%s: %s", path, doubt)
			}
		}
	}
	return samples
}

func doubtsOf(r *spec.Result) (list []string) {
	addf := func(format string, args ...any) { list = append(list, fmt.Sprintf(format, args...)) }
	for _, ip := range r.IPs {
		p, gw := ip.Address, ip.Gateway
		switch a := p.Addr(); {
		case outer(p, a):
			addf("%s is the first or last address of its subnet, which no host can have", p)
		case ofRouters(p):
			addf("%s is the first address of its subnet, which every router of the subnet has (RFC 4291)", p)
		case reserved(a):
			addf("no container can have the address %s", p)
		}
		switch {
		case !gw.IsValid():
		case gw.Is4() != p.Addr().Is4():
			addf("the gateway %s of %s is of the other address family", gw, p)
		case !p.Contains(gw) && !gw.IsLinkLocalUnicast() && !p.IsSingleIP():
			addf("the gateway %s is outside of %s", gw, p.Masked())
		case outer(p, gw):
			addf("the gateway %s is the first or last address of %s, which no host can have", gw, p.Masked())
		case gw == p.Addr():
			addf("%s is its own gateway", gw)
		}
	}
	for i, route := range r.Routes {
		list = append(list, routeDoubts(fmt.Sprintf("routes[%d]", i), route, r.IPs)...)
	}
	for i, s := range r.DNS.Nameservers {
		if !isAddress(s) {
			addf("dns.nameservers[%d]: %q is no address", i, s)
		}
	}
	return list
}

func routeDoubts(at string, r spec.Route, ips []spec.IPConfig) (list []string) {
	addf := func(format string, args ...any) { list = append(list, at+fmt.Sprintf(format, args...)) }
	for _, f := range []struct {
		key   string
		value int
	}{{"mtu", r.MTU}, {"advmss", r.AdvMSS}, {"priority", r.Priority}} {
		if f.value < 0 {
			addf(".%s is negative: %d", f.key, f.value)
		}
	}
	if r.Dst != r.Dst.Masked() {
		addf(".dst %s is an address in %s", r.Dst, r.Dst.Masked())
	}
	sameFamily := func(ip spec.IPConfig) bool { return ip.Address.Addr().Is4() == r.Dst.Addr().Is4() }
	if !slices.ContainsFunc(ips, sameFamily) {
		addf(" to %s: the container has no address of that family", r.Dst)
	}
	return list
}

// outer reports whether an address is the first or last address of its IPv4 subnet.
func outer(p netip.Prefix, a netip.Addr) bool {
	if !a.Is4() || p.Bits() > 30 || !p.Contains(a) {
		return false
	}
	next := a.Next()
	return a == p.Masked().Addr() || !next.IsValid() || !p.Contains(next)
}

// ofRouters reports whether an address is the Subnet-Router anycast address of its IPv6 subnet. A subnet of one or two
// addresses has none (RFC 6164).
func ofRouters(p netip.Prefix) bool {
	return p.Addr().Is6() && p.Bits() < 127 && p.Addr() == p.Masked().Addr()
}

// reserved reports whether no container can get the address. It is a loopback, multicast or
// unspecified address, or one that the kernel gives to every interface with IPv6.
func reserved(a netip.Addr) bool {
	return a.IsLoopback() || a.IsMulticast() || a.IsUnspecified() || a.Is4() && a.As4()[0] == 0 || prefix.IsLinkLocal(a)
}

func isAddress(s string) bool {
	_, err := netip.ParseAddr(s)
	return err == nil
}
