// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package tuning

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/endpoint"
	"github.com/patchbay-net/patchbay/spec"
)

// anyName is used for the interface when it is not known; every namespace has it.
const anyName = "lo"

// validate checks the keys of sysctls.
func validate(r *plugin.Request) error {
	_, err := resolveAll(plugin.ConfOf[Conf](r).Sysctl, anyName, r.Session.Paths.Etc)
	return err
}

// doubts reports values that some kinds of interfaces refuse, and sysctls that a module may
// add.
func doubts(r *plugin.Request) (list []string) {
	c := plugin.ConfOf[Conf](r)
	if endpoint.ValidateMTU(c.MTU) != nil {
		list = append(list, fmt.Sprintf("mtu %d: most interfaces take %d to %d", c.MTU, endpoint.LeastMTU, endpoint.MostMTU))
	}
	if mac, err := net.ParseMAC(c.Mac); err == nil && len(mac) != 6 {
		list = append(list, fmt.Sprintf("mac %s is no Ethernet address, which has six bytes", c.Mac))
	}
	if c.MTU != 0 && r.InList != nil && slices.ContainsFunc(r.InList.Answers, func(a *spec.Result) bool { return endpoint.ValidateAnswer(c.MTU, a) != nil }) {
		list = append(list, fmt.Sprintf("mtu %d removes the IPv6 addresses: IPv6 needs %d", c.MTU, endpoint.LeastMTU6))
	}
	if key := c.disablesIPv6(); key != "" && r.InList != nil && slices.ContainsFunc(r.InList.Answers, hasIPv6) {
		list = append(list, fmt.Sprintf("sysctl %s removes the IPv6 addresses that IPAM gives", key))
	}
	keys, _ := resolveAll(c.Sysctl, anyName, r.Session.Paths.Etc) // validate has checked them
	for i, k := range keys {
		list = append(list, k.doubt(c.Sysctl[i].Key, r.Session.Paths.Proc)...)
	}
	return list
}

// disablesIPv6 is the sysctl that disables IPv6, on the interface or on all; empty for
// none.
func (c *Conf) disablesIPv6() string {
	for _, s := range c.Sysctl {
		path, err := resolve(s.Key, "IFNAME")
		_, dir, _ := strings.Cut(path, "ipv6/conf/")
		if err == nil && s.Value != "0" && (dir == "IFNAME/disable_ipv6" || dir == "all/disable_ipv6") {
			return s.Key
		}
	}
	return ""
}

func hasIPv6(r *spec.Result) bool {
	return slices.ContainsFunc(r.IPs, func(ip spec.IPConfig) bool { return ip.Address.Addr().Is6() })
}

// doubt looks for a sysctl in this namespace, which has the same keys as another.
func (s sysctl) doubt(key, proc string) []string {
	fi, err := os.Stat(filepath.Join(proc, "sys", s.key))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return []string{fmt.Sprintf("sysctl %s: this kernel has no such key now", key)}
	case err == nil && fi.IsDir():
		return []string{fmt.Sprintf("sysctl %s is a group of them", key)}
	case s.value == "":
		return []string{fmt.Sprintf("sysctl %s has no value", key)}
	}
	return nil
}
