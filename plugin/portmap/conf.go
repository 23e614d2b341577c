// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package portmap

import (
	"cmp"
	"fmt"
	"net/netip"
	"strings"

	"github.com/patchbay-net/patchbay/internal/nft"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// Conf is the configuration of this plugin.
type Conf struct {
	// SNAT masquerades connections whose answers would be lost otherwise. Such connections come
	// from 127.0.0.0/8, or from the container's own subnet. Default: true. Reference: with
	// iptables, masquerades the whole subnet, for any connection to the port.
	SNAT *bool `json:"snat"`

	// MasqAll masquerades every client of a published port, so that the container sees only the
	// host's address. It needs snat. Reference: same, but not correct with nftables in v1.9.1.
	MasqAll bool `json:"masqAll"`

	// MarkMasqBit must be 0 to 31 and has no effect: no packet is marked, so no bit can conflict
	// with another program's. It excludes externalSetMarkChain. Reference: the bit that marks
	// packets to masquerade, 13 by default.
	MarkMasqBit *int `json:"markMasqBit"`

	// ExternalSetMarkChain may be KUBE-MARK-MASQ, which asks kube-proxy to masquerade; portmap
	// then masquerades itself. Any other chain is refused with code 2, because its content is not
	// known and nftables cannot jump into iptables. Reference: the iptables chain to jump to for
	// packets to masquerade.
	ExternalSetMarkChain *string `json:"externalSetMarkChain"`

	// ConditionsV4 limits the mappings of this network to IPv4 packets that meet the conditions:
	// iptables or nft tokens, see "Conditions". Reference: with nftables the conditions of the
	// last ADD apply to every network; any token is passed on.
	ConditionsV4 []string `json:"conditionsV4"`

	// ConditionsV6 limits the mappings of this network to IPv6 packets that meet the conditions.
	// Reference: as conditionsV4.
	ConditionsV6 []string `json:"conditionsV6"`

	// Backend may be iptables or nftables. Both use nftables; the backend decides in which language
	// the conditions must be. Default: the conditions' language. Reference: runs iptables (default)
	// or nft; conditions in nft's language need backend nftables.
	Backend *string `json:"backend"`

	RuntimeConfig struct {
		// PortMappings are the values of the capability portMappings. Keys may be in any letter
		// case; an empty list is accepted. Reference: DEL without the list leaves every rule.
		PortMappings []PortMapping `json:"portMappings"`
	} `json:"runtimeConfig"`

	mappings []mapping
	only     *nft.Conditions // nil if there are no conditions
}

// PortMapping is one entry of the capability portMappings.
type PortMapping struct {
	// HostPort is 1 to 65535; required. Reference: has no upper bound, and accepts a port that is
	// taken, which then has no effect.
	HostPort int `json:"hostPort"`

	// ContainerPort is 1 to 65535; required.
	// Reference: has no upper bound.
	ContainerPort int `json:"containerPort"`

	// Protocol is tcp, udp or sctp, in any letter case. Default: tcp. Reference: does not
	// validate it.
	Protocol string `json:"protocol"`

	// HostIP limits the mapping to one address of the host. 0.0.0.0 means every IPv4 address, ::
	// every IPv6 address; ::1, broadcast and multicast addresses are refused. Default: every local
	// address. Reference: accepts any text for IPv6, and such addresses, which never work.
	HostIP string `json:"hostIP"`
}

// These are the backends of the reference.
const (
	backendIPTables = "iptables"
	backendNFTables = "nftables"
)

// kubeMarkMasq is the only chain that externalSetMarkChain may name, because its meaning is
// known: kube-proxy masquerades packets that passed through it.
const kubeMarkMasq = "KUBE-MARK-MASQ"

// Load validates the configuration, in the reference's order. It refuses conditions that our
// table cannot express. If it ignored one, a port would be published to more clients than
// intended.
func (c *Conf) Load(r *plugin.Request) (err error) {
	if err := c.validate(); err != nil {
		return err
	}
	if c.mappings, err = parseMappings(c.RuntimeConfig.PortMappings); err != nil {
		return err
	}
	if c.only, err = nft.NewConditions(r.Network, trim(c.ConditionsV4), trim(c.ConditionsV6)); err != nil {
		return spec.Errorf(spec.CodeUnsupportedField, "unsupported field: %w", err)
	}
	return nil
}

func (c *Conf) snat() bool { return c.SNAT == nil || *c.SNAT }

func (c *Conf) validate() error {
	if c.MarkMasqBit != nil && c.ExternalSetMarkChain != nil {
		return spec.Invalid("Cannot specify externalSetMarkChain and markMasqBit")
	}
	if bit := c.MarkMasqBit; bit != nil && (*bit < 0 || *bit > 31) {
		return spec.Invalid("MasqMarkBit must be between 0 and 31")
	}
	if err := c.checkBackend(); err != nil {
		return err
	}
	if chain := c.ExternalSetMarkChain; chain != nil && *chain != kubeMarkMasq {
		return spec.Errorf(spec.CodeUnsupportedField, "unsupported externalSetMarkChain %.100q", *chain).
			WithDetails("portmap masquerades by itself in nftables and cannot jump to an iptables chain; "+
				"leave the field out, or name %s", kubeMarkMasq)
	}
	return nil
}

// checkBackend returns an error if options of both backends are used together. If no backend
// is set, the conditions decide, as the reference documents. (The reference's code checks
// whether the iptables program exists.)
func (c *Conf) checkBackend() error {
	options := map[string][]string{}
	note := func(backend, option string) {
		if backend != "" {
			options[backend] = append(options[backend], option)
		}
	}
	if c.ExternalSetMarkChain != nil {
		note(backendIPTables, "externalSetMarkChain")
	}
	note(language(c.ConditionsV4), "conditionsV4")
	note(language(c.ConditionsV6), "conditionsV6")

	backend, other := backendIPTables, backendNFTables
	switch {
	case c.Backend != nil && *c.Backend != backendIPTables && *c.Backend != backendNFTables:
		return spec.Invalid("unrecognized backend %q", *c.Backend)
	case c.Backend != nil && *c.Backend == backendNFTables, c.Backend == nil && len(options[backendIPTables]) == 0:
		backend, other = other, backend
	}
	if wrong := options[other]; len(wrong) > 0 {
		return spec.Invalid("%s backend was requested but configuration contains %s-specific options %v", backend, other, wrong)
	}
	return nil
}

// language returns the program for which the conditions were written. Conditions of iptables
// begin with an option or a negation. Without conditions it returns "".
func language(conditions []string) string {
	switch {
	case len(conditions) == 0 || conditions[0] == "":
		return ""
	case conditions[0][0] == '-' || conditions[0][0] == '!':
		return backendIPTables
	}
	return backendNFTables
}

// mapping is a validated port mapping.
type mapping struct {
	host          netip.Addr // not valid if the mapping is for all addresses of both families
	hostPort      uint16
	containerPort uint16
	protocol      uint8 // IP protocol number
}

// String returns the mapping in the usual notation: 127.0.0.1:8080:80/tcp.
func (m mapping) String() string {
	s := fmt.Sprintf("%d:%d/%s", m.hostPort, m.containerPort, nft.ProtocolName(m.protocol))
	if m.host.IsValid() {
		return netip.AddrPortFrom(m.host, m.hostPort).String() + s[strings.IndexByte(s, ':'):]
	}
	return s
}

// serves reports whether the mapping applies to the family of a container's address.
func (m mapping) serves(container netip.Addr) bool {
	return !m.host.IsValid() || m.host.Is4() == container.Is4()
}

// parseMappings validates the capability. It accepts repeated entries. If two entries send one
// port to different places, it returns an error.
func parseMappings(entries []PortMapping) ([]mapping, error) {
	type key struct {
		host     netip.Addr
		port     uint16
		protocol uint8
	}
	seen := make(map[key]mapping, len(entries))
	var out []mapping
	for _, e := range entries {
		m, err := e.parse()
		if err != nil {
			return nil, err
		}
		fresh := false
		for _, host := range m.hosts() {
			k := key{host, m.hostPort, m.protocol}
			have, ok := seen[k]
			switch {
			case !ok:
				seen[k], fresh = m, true
			case have.containerPort != m.containerPort:
				return nil, spec.Invalid("host port %d/%s is mapped twice: %s and %s", m.hostPort, nft.ProtocolName(m.protocol), have, m)
			}
		}
		if fresh {
			out = append(out, m)
		}
	}
	return out, nil
}

// hosts returns the host's addresses of the mapping. A mapping without an address has one for each
// family: 0.0.0.0 and ::, which mean all addresses.
func (m mapping) hosts() []netip.Addr {
	if m.host.IsValid() {
		return []netip.Addr{m.host}
	}
	return []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()}
}

func (e PortMapping) parse() (m mapping, err error) {
	if e.ContainerPort <= 0 || e.ContainerPort > 65535 {
		return m, spec.Invalid("Invalid container port number: %d", e.ContainerPort)
	}
	if e.HostPort <= 0 || e.HostPort > 65535 {
		return m, spec.Invalid("Invalid host port number: %d", e.HostPort)
	}
	m.hostPort, m.containerPort = uint16(e.HostPort), uint16(e.ContainerPort)
	if m.protocol, err = parseProtocol(e.Protocol); err != nil {
		return m, err
	}
	m.host, err = parseHostIP(e.HostIP)
	return m, err
}

func parseProtocol(s string) (uint8, error) {
	if p, ok := nft.ProtocolNumber(cmp.Or(s, "tcp")); ok {
		return p, nil
	}
	return 0, spec.Invalid("Invalid protocol: %.40q", s).WithDetails("portMappings takes tcp, udp and sctp")
}
