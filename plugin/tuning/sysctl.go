// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package tuning

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/endpoint"
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// sysctl is one value in the container's namespace.
type sysctl struct {
	key, value string // key with slashes, below net/
	written    string // the key in the configuration
}

func (s sysctl) String() string { return "sandbox: sysctl " + s.key + "=" + s.value }

// Ensure writes the value, and its undo restores the old value. Some keys can be written but not read:
// net/ipv6/route/flush never, net/ipv6/conf/LINK/stable_secret not before it has a value. Nothing can restore
// such a key.
func (s sysctl) Ensure(_ context.Context, env *netstate.Env) (netstate.Undo, error) {
	old, unread := env.Sandbox.Sysctl(s.key)
	if errors.Is(unread, fs.ErrNotExist) {
		return nil, unread
	}
	if err := env.Sandbox.SetSysctl(s.key, s.value); err != nil {
		return nil, err
	}
	if unread != nil {
		return nil, nil
	}
	return func(context.Context) error { return env.Sandbox.SetSysctl(s.key, old) }, nil
}

// Diff compares the value as the kernel reads it. A key that nobody may read, such as net/ipv6/route/flush, does
// not differ.
func (s sysctl) Diff(_ context.Context, env *netstate.Env) (string, error) {
	now, err := env.Sandbox.Sysctl(s.key)
	if errors.Is(err, fs.ErrPermission) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	if !same(s.key, s.value, now) {
		return fmt.Sprintf("Error: Tuning configured value of %s is %s, current value is %s", "/proc/sys/"+s.key, s.value, now), nil
	}
	return "", nil
}

// resolve turns a configured key into a path in /proc/sys. Keys have the two spellings of sysctl.d(5): if the
// first separator is a slash, the key is the path. If it is a dot, dots are slashes and slashes are dots. So
// net/ipv4/conf/eth0.7/arp_filter and net.ipv4.conf.eth0/7.arp_filter are the same. IFNAME becomes the name of the
// interface, which may contain dots.
func resolve(key, ifName string) (string, error) {
	path := key
	if i := strings.IndexAny(key, "./"); i >= 0 && key[i] == '.' {
		path = strings.NewReplacer(".", "/", "/", ".").Replace(key)
	}
	path = "/" + strings.Replace(path, "IFNAME", ifName, 1)
	climbs := strings.Contains(path+"/", "/../") // past the allow list's expressions
	if path = filepath.Clean(path); climbs || !strings.HasPrefix(path, "/net/") {
		return "", spec.Invalid("invalid net sysctl key: %q", key)
	}
	return path[1:], nil
}

// resolveAll checks every key against the operator's allow list and resolves it. If the file
// is missing, everything below net is allowed. If two spellings name one sysctl, the later value counts.
func resolveAll(list Sysctls, ifName, etc string) ([]sysctl, error) {
	allowed, restricted, err := allowList(filepath.Join(etc, "tuning", "allowlist.conf"))
	if err != nil {
		return nil, err
	}
	var out []sysctl
	for _, s := range list {
		if restricted {
			if err := permit(s.Key, allowed); err != nil {
				return nil, err
			}
		}
		path, err := resolve(s.Key, ifName)
		if err != nil {
			return nil, err
		}
		out = slices.DeleteFunc(out, func(o sysctl) bool { return o.key == path })
		out = append(out, sysctl{path, s.Value, s.Key})
	}
	return out, nil
}

// allowList reads a file with one regular expression per line.
func allowList(path string) (lines []string, present bool, err error) {
	data, err := durable.ReadConf(path) // does not wait for a pipe
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("read sysctl allow list: %w", err)
	}
	for _, line := range strings.Split(string(data), "\n") {
		if line = strings.TrimSpace(line); line != "" {
			lines = append(lines, line)
		}
	}
	return lines, true, nil
}

// permit checks a key against the allowed expressions. Like the reference, it does not anchor
// them.
func permit(key string, allowed []string) error {
	for _, expr := range allowed {
		ok, err := regexp.MatchString(expr, key)
		if err != nil {
			return fmt.Errorf("read sysctl allow list: line %q: %w", expr, err)
		}
		if ok {
			return nil
		}
	}
	return spec.Invalid("Sysctl %s is not allowed. Only the following sysctls are allowed: %+v", key, allowed)
}

// anyName stands for the interface while its name is not known, because every namespace has an lo.
const anyName = "lo"

// validate checks the keys of sysctls.
func validate(r *plugin.Request) error {
	_, err := resolveAll(plugin.ConfOf[Conf](r).Sysctl, anyName, r.Session.Paths.Etc)
	return err
}

// doubts warns about values that some kinds of interfaces refuse, and about sysctls that this
// kernel does not have without a module.
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
	keys, _ := resolveAll(c.Sysctl, anyName, r.Session.Paths.Etc) // validate has checked the keys
	for _, k := range keys {
		list = append(list, k.doubt(r.Session.Paths.Proc)...)
	}
	return list
}

// disablesIPv6 returns the configured sysctl that disables IPv6, on this interface or on all. If
// there is none, it returns "".
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

// doubt looks for a sysctl in this process's namespace, because every namespace has the same
// keys.
func (s sysctl) doubt(proc string) []string {
	fi, err := os.Stat(filepath.Join(proc, "sys", s.key))
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return []string{fmt.Sprintf("sysctl %s: this kernel has no such key now", s.written)}
	case err == nil && fi.IsDir():
		return []string{fmt.Sprintf("sysctl %s is a group of them", s.written)}
	case s.value == "":
		return []string{fmt.Sprintf("sysctl %s has no value", s.written)}
	}
	return nil
}
