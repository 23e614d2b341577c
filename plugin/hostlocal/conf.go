// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hostlocal

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/ipam"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// Conf is the part of the calling plugin's configuration that this plugin reads.
type Conf struct {
	IPAM *IPAM `json:"ipam"`

	RuntimeConfig struct {
		// IPRanges are range sets that come before all others. Reference: same.
		IPRanges [][]Range `json:"ipRanges"`

		// IPs are requested addresses, with or without a prefix length. Reference: same.
		IPs []string `json:"ips"`
	} `json:"runtimeConfig"`

	Args struct {
		CNI struct {
			// IPs are further requested addresses, like IP in CNI_ARGS; all of them are requested.
			// Reference: other keys in CNI_ARGS are an error unless IgnoreUnknown is set.
			IPs []string `json:"ips"`
		} `json:"cni"`
	} `json:"args"`
}

// IPAM is the section `ipam`. The fields of Range are one more set, which comes before the sets in
// Ranges.
type IPAM struct {
	Range

	// Type is host-local.
	// Reference: same.
	Type string `json:"type"`

	// Ranges are range sets with the same four keys; each set gives one address. Reference: a
	// full set stays full after a reboot, and the address of an empty file is lost forever.
	Ranges [][]Range `json:"ranges"`

	// Routes are copied into the result. Reference: accepts a route without dst.
	Routes []spec.Route `json:"routes"`

	// ResolvConf is a file whose nameserver, domain, search and options lines become the result's
	// dns. Reference: same.
	ResolvConf string `json:"resolvConf"`

	// DataDir holds the reservations, in a directory for each network. Default:
	// /var/lib/cni/networks. Reference: DEL looks only in the configured directory.
	DataDir string `json:"dataDir"`
}

// Range is a part of a range set.
type Range struct {
	// Subnet in CIDR notation; together with the next three keys it is a set that comes before
	// ranges. Reference: same.
	Subnet string `json:"subnet"`

	// RangeStart is the first address to give out.
	// Default: the subnet's first.
	// Reference: same.
	RangeStart string `json:"rangeStart"`

	// RangeEnd is the last address to give out. Default: the subnet's last address, or for IPv4
	// the one before broadcast. Reference: accepts an end before the start.
	RangeEnd string `json:"rangeEnd"`

	// Gateway is the gateway in the result; it is never given out. Default: the subnet's first
	// address. Reference: same.
	Gateway string `json:"gateway"`
}

// pool is a validated configuration.
type pool struct {
	sets       []ipam.RangeSet
	requested  []netip.Addr
	routes     []spec.Route
	resolvConf string
	dataDir    string
}

// load reads and checks everything that an ADD needs. If there is no range, the error wraps
// ipam.ErrNoRanges.
func load(r *plugin.Request) (*pool, error) {
	conf, err := r.Conf()
	if err != nil {
		return nil, err
	}
	return conf.(*Conf).pool(r)
}

func (c *Conf) pool(r *plugin.Request) (p *pool, err error) {
	if c.IPAM == nil {
		return nil, spec.Invalid("IPAM config missing 'ipam' key")
	}
	p = &pool{routes: c.IPAM.Routes, resolvConf: c.IPAM.ResolvConf, dataDir: dataDir(r, c.IPAM.DataDir)}
	if err := plugin.CheckRoutes(p.routes); err != nil {
		return nil, err
	}
	if p.requested, err = requested(r, c); err != nil {
		return nil, err
	}
	if p.sets, err = Sets(c.all()); err != nil {
		return nil, spec.Invalid("%w", err)
	}
	return p, r.CheckFamilies(ipam.Families(p.sets))
}

// all returns the sets in the order of the result: the capability's sets, the set of the section's
// own fields, and the sets in ranges.
func (c *Conf) all() [][]Range {
	all := append([][]Range(nil), c.RuntimeConfig.IPRanges...)
	if c.IPAM.Subnet != "" {
		all = append(all, []Range{c.IPAM.Range})
	}
	return append(all, c.IPAM.Ranges...)
}

// Sets returns the canonical range sets of a configuration.
func Sets(conf [][]Range) ([]ipam.RangeSet, error) {
	out := make([]ipam.RangeSet, len(conf))
	for i, set := range conf {
		for _, c := range set {
			r, err := ipam.ParseRange(c.Subnet, c.RangeStart, c.RangeEnd, c.Gateway)
			if err != nil {
				return nil, err
			}
			out[i] = append(out[i], r)
		}
	}
	return out, ipam.Canonicalize(out)
}

// requested returns the addresses that CNI_ARGS, args.cni and the capability ask for.
func requested(r *plugin.Request, conf *Conf) ([]netip.Addr, error) {
	var texts []string
	args, err := r.CNIArgs()
	if err != nil {
		return nil, err
	}
	if ip, ok := spec.LookupArg(args, "IP"); ok && ip != "" {
		if _, err := parseIP(ip); err != nil {
			return nil, spec.Errorf(spec.CodeInvalidEnvironment, "ARGS: error parsing value of pair %q: %w", "IP="+ip, err)
		}
		texts = append(texts, ip)
	}
	texts = append(append(texts, conf.Args.CNI.IPs...), conf.RuntimeConfig.IPs...)
	out := make([]netip.Addr, len(texts))
	for i, s := range texts {
		if out[i], err = parseIP(s); err != nil {
			return nil, spec.Invalid("cannot understand ip: %w", err)
		}
	}
	return out, nil
}

// parseIP reads an address, with or without "/" and a prefix length.
func parseIP(s string) (netip.Addr, error) {
	host, _, hasPrefix := strings.Cut(s, "/")
	if hasPrefix {
		if _, err := netip.ParsePrefix(s); err != nil {
			return netip.Addr{}, fmt.Errorf("invalid IP address %s", s)
		}
	}
	a, err := ipam.ParseAddr(host)
	if err != nil || !a.IsValid() {
		return netip.Addr{}, fmt.Errorf("invalid IP address %s", s)
	}
	return a, nil
}

func dataDir(r *plugin.Request, configured string) string {
	if configured != "" {
		return configured
	}
	return r.Session.Paths.Pools()
}

// configuredDir returns the directory of a configuration that may be invalid.
func configuredDir(r *plugin.Request) (string, error) {
	var conf struct {
		IPAM struct {
			DataDir string `json:"dataDir"`
		} `json:"ipam"`
	}
	err := r.Decode(&conf)
	return dataDir(r, conf.IPAM.DataDir), err
}

// validate checks the configuration. It accepts one without ranges if each ADD may bring them
// (capability ipRanges).
func validate(r *plugin.Request) error {
	p, err := load(r)
	if errors.Is(err, ipam.ErrNoRanges) && (r.InList == nil || r.InList.Granted["ipRanges"]) {
		return nil
	}
	if err != nil {
		return err
	}
	for i, set := range p.sets {
		if _, ok := set.First(); !ok {
			return spec.Invalid("range set %d holds no address but the gateway's: %s", i, set)
		}
	}
	if r.InList == nil || r.InList.Granted["ipRanges"] {
		return nil
	}
	return p.checkRequested()
}

// checkRequested returns an error if a requested address is in no range.
func (p *pool) checkRequested() error {
	for _, a := range p.requested {
		i := slices.IndexFunc(p.sets, func(s ipam.RangeSet) bool { return s.Contains(a) })
		switch {
		case i < 0:
			return spec.Invalid("requested ip %s is in no range", a)
		case p.sets[i][p.sets[i].Find(a)].Gateway == a:
			return spec.Invalid("requested ip %s is subnet's gateway", a)
		}
	}
	return nil
}

// samples returns possible answers. Together they use every range of every set. If a runtime may
// add ranges, any answer is possible.
func samples(r *plugin.Request) (list []*spec.Result) {
	p, err := load(r)
	if err != nil || r.InList.Granted["ipRanges"] {
		return nil
	}
	for n := range slices.Max(lengths(p.sets)) {
		result := &spec.Result{Routes: p.routes}
		for _, set := range p.sets {
			one := set[min(n, len(set)-1)]
			if a, ok := (ipam.RangeSet{one}).First(); ok {
				result.IPs = append(result.IPs, spec.IPConfig{Address: netip.PrefixFrom(a, one.Subnet.Bits()), Gateway: one.Gateway})
			}
		}
		list = append(list, result)
	}
	return list
}

func lengths(sets []ipam.RangeSet) (list []int) {
	for _, s := range sets {
		list = append(list, len(s))
	}
	return list
}

// doubts warns about fields and files that are not read.
func doubts(r *plugin.Request) (list []string) {
	conf := plugin.ConfOf[Conf](r)
	if conf.IPAM == nil {
		return nil
	}
	if c := conf.IPAM; c.Subnet == "" && (c.RangeStart != "" || c.RangeEnd != "" || c.Gateway != "") {
		list = append(list, "rangeStart, rangeEnd and gateway have no effect without a subnet in the same section")
	}
	if dir := conf.IPAM.DataDir; dir != "" && !filepath.IsAbs(dir) {
		list = append(list, fmt.Sprintf("dataDir %q is no absolute path, and a runtime may start plugins in any directory", dir))
	}
	if file := conf.IPAM.ResolvConf; file != "" {
		if _, err := durable.ReadConf(file); err != nil {
			list = append(list, fmt.Sprintf("resolvConf: %v", err))
		}
	}
	return list
}
