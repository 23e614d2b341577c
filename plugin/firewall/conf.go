// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"cmp"
	"fmt"
	"net/netip"

	"github.com/patchbay-net/patchbay/internal/nft/iptnft"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// Conf is the configuration of this plugin.
type Conf struct {
	// Backend may be firewalld, or iptables, which means nftables without asking for firewalld
	// (saves 0.5 ms if there is a bus). Any other value means the default. Default: firewalld if
	// it owns its name on the system bus, else nftables. Reference: needs iptables and ip6tables,
	// and has no nftables.
	Backend string `json:"backend"`

	// IptablesAdminChainName is a chain for the operator's own rules in the filter tables of
	// iptables-nft. It is used if those tables drop packets; `inet patchbay` has its own chain,
	// `admin`. Default: CNI-ADMIN. Reference: accepts names that iptables cannot have.
	IptablesAdminChainName string `json:"iptablesAdminChainName"`

	// AcceptNew also accepts new connections to the container, from anywhere, if FORWARD of
	// iptables-nft drops. Kubernetes needs it: pods reach each other across nodes, and nodes reach
	// pods. Without it, only the container's own connections and published ports are accepted.
	// Reference: none, ours only.
	AcceptNew bool `json:"acceptNew"`

	// FirewalldZone is the zone to which the container's addresses are added as sources. Default:
	// trusted. Reference: CHECK accepts any answer; after a reload of firewalld the sources are
	// lost.
	FirewalldZone string `json:"firewalldZone"`

	// IngressPolicy is open, same-bridge (other bridges with a policy cannot reach this one) or
	// isolated (the containers on this bridge cannot reach each other either). nftables enforces
	// it with every backend. Default: open. Reference: never removes the rules of a bridge, and
	// CHECK ignores them.
	IngressPolicy string `json:"ingressPolicy"`

	// FastPath lets established TCP and UDP connections between the bridge and the links of the host's
	// default routes skip the hooks prerouting, forward and postrouting of every firewall on the host,
	// by a flowtable of the kernel: counters and rules made later do not see them (see below).
	// Reference: none, ours only.
	FastPath bool `json:"fastPath"`
}

// These are values of Conf's fields.
const (
	backendIPTables  = "iptables"
	backendFirewalld = "firewalld"
	defaultZone      = "trusted"

	policyOpen       = "open"
	policySameBridge = "same-bridge"
	policyIsolated   = "isolated"
)

// Load sets the defaults and validates the configuration.
func (c *Conf) Load(r *plugin.Request) error {
	c.FirewalldZone = cmp.Or(c.FirewalldZone, defaultZone)
	c.IptablesAdminChainName = cmp.Or(c.IptablesAdminChainName, iptnft.DefaultAdminChain)
	return cmp.Or(c.validate(), c.fastPathInList(r.InList))
}

// xtNameMax is the length of the longest name of an iptables chain (XT_FUNCTION_MAXNAMELEN
// without the NUL).
const xtNameMax = 28

func (c *Conf) validate() error {
	switch c.IngressPolicy {
	case "", policyOpen, policySameBridge, policyIsolated:
	default:
		return spec.Invalid("unknown ingress policy: %.60q", c.IngressPolicy)
	}
	if n := c.IptablesAdminChainName; len(n) > xtNameMax || !plainName(n) {
		return spec.Invalid("invalid iptablesAdminChainName %.60q", n).
			WithDetails("a chain of iptables has at most %d letters, digits, '-', '_' and '.'", xtNameMax)
	}
	if !plainName(c.FirewalldZone) {
		return spec.Invalid("invalid firewalldZone %.60q", c.FirewalldZone)
	}
	return nil
}

// plainName reports whether s has only characters that are allowed in names of chains and
// zones.
func plainName(s string) bool {
	for i := range len(s) {
		c := s[i]
		alnum := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9'
		if !alnum && c != '-' && c != '_' && c != '.' || i == 0 && c == '-' {
			return false
		}
	}
	return s != ""
}

// isolates reports whether the policy restricts traffic to a bridge.
func (c *Conf) isolates() bool {
	return c.IngressPolicy == policySameBridge || c.IngressPolicy == policyIsolated
}

// bridge returns the bridge to which a policy applies. The bridge is the first interface of
// prevResult, where the plugin bridge puts it.
func (c *Conf) bridge(prev *spec.Result) (string, error) {
	if len(prev.Interfaces) == 0 {
		return "", spec.Invalid(`interface needs to be set for ingress policy %q, make sure to chain "firewall" plugin with "bridge"`, c.IngressPolicy)
	}
	name := prev.Interfaces[0].Name
	if name == "" {
		return "", spec.Invalid("got empty bridge name")
	}
	if prev.Interfaces[0].Sandbox != "" {
		return "", spec.Invalid(`ingress policy %q applies to a bridge, and the first interface of prevResult, %q, is in the container: remove ingressPolicy, or use the plugin "bridge"`, c.IngressPolicy, name)
	}
	if err := spec.ValidateIfName(name); err != nil {
		return "", spec.Invalid("invalid bridge name in prevResult: %w", err)
	}
	return name, nil
}

// sources returns the container's addresses as firewalld writes them, with the full prefix
// length.
func sources(prev *spec.Result) (out []netip.Prefix) {
	for _, ip := range prev.IPs {
		a := ip.Address.Addr()
		out = append(out, netip.PrefixFrom(a, a.BitLen()))
	}
	return out
}

// subnets returns the networks of the container's addresses, without duplicates.
func subnets(prev *spec.Result) (out []netip.Prefix) {
	seen := make(map[netip.Prefix]bool)
	for _, ip := range prev.IPs {
		if p := ip.Address.Masked(); !seen[p] {
			seen[p] = true
			out = append(out, p)
		}
	}
	return out
}

// doubts warns about fields that ADD silently ignores, as the reference does.
func doubts(r *plugin.Request) (list []string) {
	c := plugin.ConfOf[Conf](r)
	switch c.Backend {
	case "", backendIPTables, backendFirewalld:
	default:
		list = append(list, fmt.Sprintf("backend %.60q is unknown, so the default is used: it may be %s or %s", c.Backend, backendIPTables, backendFirewalld))
	}
	if in := r.InList; in != nil && in.Main != "" && in.Main != "bridge" && c.isolates() {
		list = append(list, fmt.Sprintf("ingressPolicy %s applies to bridges, and a %s has none", c.IngressPolicy, in.Main))
	}
	return list
}
