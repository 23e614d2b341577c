// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package dhcprpc

import (
	"encoding/json"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/patchbay-net/patchbay/internal/owner"
	"github.com/patchbay-net/patchbay/spec"
)

// DefaultSocket is the socket on which the keeper listens. The reference uses the same path.
const DefaultSocket = "/run/cni/dhcp.sock"

// LeaseDir is the directory of our keeper's leases, inside the run directory.
const LeaseDir = "dhcp"

// LeaseFile returns the path of the file with an attachment's leases. If no keeper runs, the
// plugin removes the file.
func LeaseFile(run string, o owner.Key) string {
	return filepath.Join(run, LeaseDir, string(o)+".json")
}

// Conf is the part of the calling plugin's configuration that this package reads.
type Conf struct {
	IPAM *IPAM `json:"ipam"`
}

// IPAM is the section `ipam`.
type IPAM struct {
	// Type is dhcp.
	// Reference: same.
	Type string `json:"type"`

	// DaemonSocketPath is where the keeper of leases listens.
	// Default: /run/cni/dhcp.sock.
	// Reference: same.
	DaemonSocketPath string `json:"daemonSocketPath"`

	// Provide lists DHCPv4 options to send to the server with every request. Reference: same.
	Provide []Provide `json:"provide"`

	// Request lists DHCPv4 options to request in addition to the default ones: 121 (classless
	// routes), routers, subnet-mask, and 6, 15 and 119, which become the result's dns. Reference:
	// requests no DNS and returns none; requests classless routes only if they are listed.
	Request []Request `json:"request"`

	// Priority is the metric of every route in the result; 0 means the kernel's default.
	// Reference: same.
	Priority int `json:"priority"`

	// DHCPv4 may be false for a network with DHCPv6 only.
	// Default: true.
	// Reference: none, ours only.
	DHCPv4 *bool `json:"dhcpv4"`

	// DHCPv6 also asks for an address by DHCPv6 (IA_NA). The M flag of router advertisements has no
	// influence. Both families must answer, or the ADD fails. Reference: none, ours only; with
	// DHCPv6 the reference's daemon is refused.
	DHCPv6 bool `json:"dhcpv6"`

	// StartKeeper starts `patchbayd dhcp` when no process listens on the socket.
	// Reference: none, ours only.
	StartKeeper bool `json:"startKeeper"`
}

// Provide is one option to send.
type Provide struct {
	// Option is a number, or dhcp-client-identifier, subnet-mask, routers, host-name,
	// user-class or vendor-class-identifier.
	// Reference: same.
	Option string `json:"option"`

	// Value of at most 255 bytes; if it is empty, the option is not sent. Reference: same.
	Value string `json:"value"`

	// FromArg is a key of CNI_ARGS. If CNI_ARGS has the key, its value replaces value. Reference:
	// same.
	FromArg string `json:"fromArg"`
}

// Request is one option to request.
type Request struct {
	// SkipDefault leaves out the default options. If the configuration requests no other option,
	// the client requests only what every client does. Reference: same.
	SkipDefault bool `json:"skipDefault"`

	// Option is named as in provide; it may be empty if skipDefault is set. Reference: same.
	Option string `json:"option"`
}

// Parse reads a configuration. Parse returns an error if the section ipam is missing.
func Parse(config []byte) (*IPAM, error) {
	c := new(Conf)
	if err := json.Unmarshal(config, c); err != nil {
		return nil, spec.Errorf(spec.CodeDecoding, "failed to load netconf: %w", err)
	}
	if c.IPAM == nil {
		return nil, refuse("IPAM config missing 'ipam' key")
	}
	if !c.IPAM.V4() && !c.IPAM.DHCPv6 {
		return nil, refuse("neither dhcpv4 nor dhcpv6 is set: there is nothing to request")
	}
	if c.IPAM.Priority < 0 || int64(c.IPAM.Priority) > math.MaxUint32 {
		return nil, refuse("invalid priority %d", c.IPAM.Priority)
	}
	return c.IPAM, nil
}

func refuse(format string, args ...any) error {
	return spec.Errorf(spec.CodeInvalidConfig, format, args...)
}

// V4 reports whether the configuration asks for an IPv4 address.
func (c *IPAM) V4() bool { return c.DHCPv4 == nil || *c.DHCPv4 }

// Socket returns the path of the keeper's socket.
func (c *IPAM) Socket() string {
	if c.DaemonSocketPath == "" {
		return DefaultSocket
	}
	return c.DaemonSocketPath
}

// Option is a DHCPv4 option to send.
type Option struct {
	Code  uint8  `json:"code"`
	Value []byte `json:"value"`
}

// Options are the options that an attachment sends to a DHCPv4 server and requests from the
// server.
type Options struct {
	Provide []Option `json:"provide,omitempty"`
	Request []uint8  `json:"request,omitempty"` // codes; if empty, the defaults of every client
}

// Options combines the options of the configuration with values from CNI_ARGS. It ignores
// malformed pairs in CNI_ARGS, and keys that the configuration does not name.
func (c *IPAM) Options(cniArgs string) (*Options, error) {
	out := new(Options)
	for _, p := range c.Provide {
		code, err := optionCode(p.Option)
		if err != nil {
			return nil, err
		}
		if len(p.Value) > 255 {
			return nil, refuse("value too long for option %q: %q", p.Option, p.Value)
		}
		value := p.Value
		if arg, ok := lookup(cniArgs, p.FromArg); ok && p.FromArg != "" {
			if value = arg; len(value) > 255 {
				return nil, refuse("value too long for option %q from CNI_ARGS %q: %q", p.Option, p.FromArg, value)
			}
		} else if value == "" {
			continue
		}
		out.Provide = append(out.Provide, Option{code, []byte(value)})
	}
	var err error
	out.Request, err = c.requested()
	return out, err
}

// These options are requested by default.
const (
	subnetMask   = 1
	routers      = 3
	dnsServers   = 6
	domainName   = 15
	domainSearch = 119

	classlessRoutes = 121 // a client that uses it must request it, and before routers (RFC 3442)
)

func (c *IPAM) requested() (codes []uint8, err error) {
	add := func(code uint8) {
		if !slices.Contains(codes, code) {
			codes = append(codes, code)
		}
	}
	skip := false
	for _, r := range c.Request {
		skip = skip || r.SkipDefault
		if r.Option == "" {
			continue
		}
		code, err := optionCode(r.Option)
		if err != nil {
			return nil, err
		}
		add(code)
	}
	if !skip {
		for _, code := range [...]uint8{classlessRoutes, routers, subnetMask, dnsServers, domainName, domainSearch} {
			add(code)
		}
	}
	if i := slices.Index(codes, classlessRoutes); i > 0 {
		codes = slices.Insert(slices.Delete(codes, i, i+1), 0, classlessRoutes)
	}
	return codes, nil
}

// optionCode returns the code of an option. name is a name of dhcp-options(5) or a number.
func optionCode(name string) (uint8, error) {
	switch name {
	case "dhcp-client-identifier":
		return 61, nil
	case "subnet-mask":
		return subnetMask, nil
	case "routers":
		return routers, nil
	case "host-name":
		return 12, nil
	case "user-class":
		return 77, nil
	case "vendor-class-identifier":
		return 60, nil
	}
	code, err := strconv.ParseUint(name, 10, 8)
	if err != nil {
		return 0, refuse("Can not parse option %q: %w", name, fmt.Errorf("Can not parse option: %w", err))
	}
	if code == 0 || code == 255 {
		return 0, refuse("Can not parse option %q: it is padding or the end of a message", name)
	}
	return uint8(code), nil
}

// lookup returns the last value of a key in CNI_ARGS. Here, as in the reference, a value may
// contain '='.
func lookup(args, key string) (value string, ok bool) {
	for _, pair := range strings.Split(args, ";") {
		if k, v, is := strings.Cut(pair, "="); is && k == key {
			value, ok = v, true
		}
	}
	return value, ok
}

// Network reads only the name of the network. Network serves verbs that must not fail if the
// rest of the configuration is wrong.
func Network(config []byte) (string, error) {
	var c struct {
		Name string `json:"name"`
	}
	if err := json.Unmarshal(config, &c); err != nil {
		return "", spec.Errorf(spec.CodeDecoding, "failed to load netconf: %w", err)
	}
	return c.Name, nil
}
