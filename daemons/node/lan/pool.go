// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package lan

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/internal/prefix"
)

// Range is a range of addresses of one family, with both ends.
type Range struct{ First, Last netip.Addr }

// Contains reports whether an address is in the range.
func (r Range) Contains(a netip.Addr) bool {
	return a.BitLen() == r.First.BitLen() && r.First.Compare(a) <= 0 && a.Compare(r.Last) <= 0
}

// Overlaps reports whether two ranges have an address in common.
func (r Range) Overlaps(o Range) bool { return r.Contains(o.First) || o.Contains(r.First) }

// String returns the range as a pool has it.
func (r Range) String() string { return r.First.String() + "-" + r.Last.String() }

// Pool is a set of addresses that Services may get.
type Pool struct {
	Name       string
	Ranges     []Range
	Manual     bool     // only Services that request an address or the pool get one
	Namespaces []string // whose Services may have its addresses; none: all
	Wrong      string   // why the pool gives no address; "": it does
}

// has reports whether a pool has an address, even if it gives none.
func (p *Pool) has(a netip.Addr) bool {
	return slices.ContainsFunc(p.Ranges, func(r Range) bool { return r.Contains(a) })
}

// serves reports whether the Services of a namespace may have the pool's addresses.
func (p *Pool) serves(namespace string) bool {
	return len(p.Namespaces) == 0 || slices.Contains(p.Namespaces, namespace)
}

// family reports whether a pool has addresses of a family.
func (p *Pool) family(ipv6 bool) bool {
	return slices.ContainsFunc(p.Ranges, func(r Range) bool { return r.First.Is6() == ipv6 })
}

// ParsePools reads the data of the ConfigMap. A key is the name of a pool. Its value has one entry a line: a prefix such as 192.0.2.16/28, a range
// such as 192.0.2.10-192.0.2.20, an address, "manual", or "namespaces NAME...". What follows a # is a comment.
//
// A pool that cannot be read as a whole, or has addresses of a pool before it (in the order of names), gives no address. ParsePools says so in Pool.Wrong.
func ParsePools(data map[string]string) (list []Pool) {
	for _, name := range slices.Sorted(maps.Keys(data)) {
		p, err := parsePool(name, data[name])
		if err == nil {
			err = p.conflict(list)
		}
		if err != nil {
			p.Wrong = fmt.Sprintf("the pool %s gives no address: %v", name, err)
		}
		list = append(list, p)
	}
	return list
}

// conflict says which earlier pool has addresses of this one.
func (p *Pool) conflict(earlier []Pool) error {
	for i := range earlier {
		for _, theirs := range earlier[i].Ranges {
			for _, r := range p.Ranges {
				if r.Overlaps(theirs) {
					return fmt.Errorf("its range %s overlaps %s of the pool %s: give each address to one pool", r, theirs, earlier[i].Name)
				}
			}
		}
	}
	return nil
}

func parsePool(name, text string) (p Pool, err error) {
	p.Name = name
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		fields := strings.Fields(line)
		switch {
		case len(fields) == 0:
		case fields[0] == "namespaces" && len(fields) > 1:
			p.Namespaces = append(p.Namespaces, fields[1:]...)
		case fields[0] == "manual" && len(fields) == 1:
			p.Manual = true
		default:
			r, wrong := parseRange(strings.Join(fields, ""))
			if err = errors.Join(err, wrong); wrong == nil {
				p.Ranges = append(p.Ranges, r)
			}
		}
	}
	if err == nil && len(p.Ranges) == 0 {
		err = errors.New("it has no addresses: write prefixes such as 192.0.2.16/28 or ranges such as 192.0.2.10-192.0.2.20, one a line")
	}
	return p, err
}

func parseRange(text string) (r Range, err error) {
	wrong := fmt.Errorf("%q is no prefix such as 192.0.2.16/28, no range such as 192.0.2.10-192.0.2.20 and no address", text)
	if p, err := netip.ParsePrefix(text); err == nil {
		if p != p.Masked() {
			return r, fmt.Errorf("%q has bits beside its prefix: write %s, or a range", text, p.Masked())
		}
		r = Range{p.Addr(), prefix.Last(p)}
		return r, r.usable()
	}
	first, last, two := strings.Cut(text, "-")
	if !two {
		last = first
	}
	if r.First, err = netip.ParseAddr(first); err != nil {
		return r, wrong
	}
	if r.Last, err = netip.ParseAddr(last); err != nil || r.First.BitLen() != r.Last.BitLen() || r.Last.Less(r.First) {
		return r, wrong
	}
	return r, r.usable()
}

// usable returns an error if hosts of a LAN do not send packets to the addresses of a range.
func (r Range) usable() error {
	for _, a := range []netip.Addr{r.First, r.Last} {
		if !prefix.IsHost(a) {
			return fmt.Errorf("%s is no address that a LAN can have", a)
		}
	}
	return nil
}
