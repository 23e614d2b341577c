// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hostlocal

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/patchbay-net/patchbay/ipam"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// validate accepts a configuration without ranges if they may come with each ADD, by the
// capability ipRanges.
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

// checkRequested expects each requested address to be in a range.
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

// samples are as many answers as the largest set has ranges. If a runtime may add ranges,
// any answer is possible.
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

// doubts reports fields that are not read, and files.
func doubts(r *plugin.Request) (list []string) {
	conf := plugin.ConfOf[Conf](r)
	if conf.IPAM == nil {
		return nil
	}
	if c := conf.IPAM; c.Subnet == "" && (c.RangeStart != "" || c.RangeEnd != "" || c.Gateway != "") {
		list = append(list, "rangeStart, rangeEnd and gateway are not read without a subnet beside them")
	}
	if dir := conf.IPAM.DataDir; dir != "" && !filepath.IsAbs(dir) {
		list = append(list, fmt.Sprintf("dataDir %q is no absolute path: plugins run in any directory", dir))
	}
	if file := conf.IPAM.ResolvConf; file != "" {
		if _, err := os.Stat(file); err != nil {
			list = append(list, fmt.Sprintf("resolvConf: %v", err))
		}
	}
	return list
}
