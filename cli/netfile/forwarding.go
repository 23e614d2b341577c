// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package netfile

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/patchbay-net/patchbay/chain"
	"github.com/patchbay-net/patchbay/internal/claim"
	"github.com/patchbay-net/patchbay/internal/durable"
	"github.com/patchbay-net/patchbay/internal/record"
	"github.com/patchbay-net/patchbay/internal/results"
)

// forwarding restores the forwarding sysctl that one of our ADDs switched on. It does so only if
// nothing on the host may need forwarding.
func (m *Remover) forwarding(r *Removal) error {
	for _, key := range []string{"net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"} {
		name := record.MadeSysctl(key)
		note, err := m.Records.Made(name)
		if err != nil {
			r.kept("%s: %v", key, err)
			continue
		}
		if note == nil {
			continue
		}
		now, err := m.Host.Sysctl(key)
		if err != nil {
			return fmt.Errorf("read %s: %w", key, err)
		}
		if now == note.Before {
			if err := m.Records.ForgetMade(name); err != nil {
				return err
			}
			continue
		}
		why, err := m.needed(key)
		if err != nil {
			return err
		}
		if why != "" {
			r.kept("%s=%s, which was %s: %s", key, now, note.Before, why)
			continue
		}
		if err := m.Host.SetSysctl(key, note.Before); err != nil {
			return fmt.Errorf("switch forwarding off: %w", err)
		}
		r.removed("%s=%s", key, now)
		if err := m.Records.ForgetMade(name); err != nil {
			return err
		}
	}
	return nil
}

// needed returns the reason to leave forwarding on, or "".
func (m *Remover) needed(key string) (why string, err error) {
	dir, err := chain.LoadDir(m.Dir)
	switch {
	case err != nil:
		return "", err
	case len(dir.Lists) > 0:
		return fmt.Sprintf("network %s may need it", dir.Lists[0].Name), nil
	case len(dir.Broken) > 0:
		return fmt.Sprintf("the network in %s may need it", dir.Broken[0].File), nil
	}
	for _, pattern := range []string{
		filepath.Join(m.Paths.Run, claim.Attachments, "*", "*"), filepath.Join(results.Dir(m.Paths.CNI), "*"),
		filepath.Join(m.Paths.Run, "mesh", "*"), filepath.Join(m.Paths.State, "docker", "networks", "*"),
	} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			return "", err
		}
		if len(found) > 0 {
			return found[0] + " is there, and its network may need it", nil
		}
	}
	if why, err = m.virtual(); why != "" || err != nil {
		return why, err
	}
	return m.atBoot(key), nil
}

// virtual looks for bridges, tunnels and veths, because the software that made them may need
// forwarding.
func (m *Remover) virtual() (why string, err error) {
	links, err := m.Host.LinkList()
	if err != nil {
		return "", fmt.Errorf("list interfaces: %w", err)
	}
	for _, l := range links {
		plain := slices.Contains([]string{"device", "dummy", "ifb", "bond", "vlan"}, l.Type()) && l.Attrs().MasterIndex == 0
		if !plain && !fallback(l.Attrs().Name) {
			return fmt.Sprintf("the interface %s (%s) may need it", l.Attrs().Name, l.Type()), nil
		}
	}
	return "", nil
}

// fallback reports whether the kernel makes an interface of this name in every namespace.
// Packets that match no tunnel arrive there.
func fallback(name string) bool {
	return slices.Contains([]string{"sit0", "tunl0", "gre0", "gretap0", "erspan0", "ip_vti0", "ip6_vti0", "ip6tnl0", "ip6gre0"}, name)
}

// atBoot finds a file by which an operator switches forwarding on at boot.
func (m *Remover) atBoot(key string) (why string) {
	for _, file := range m.Sysctl {
		data, err := durable.ReadConf(file)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(data)) {
			k, v, _ := strings.Cut(strings.TrimPrefix(strings.TrimSpace(line), "-"), "=")
			if strings.ReplaceAll(strings.TrimSpace(k), ".", "/") == key && strings.TrimSpace(v) == "1" {
				return file + " wants it"
			}
		}
	}
	return ""
}

// SysctlFiles returns the files that `sysctl --system` reads.
func SysctlFiles() (files []string) {
	for _, pattern := range []string{"/etc/sysctl.conf", "/etc/sysctl.d/*.conf", "/run/sysctl.d/*.conf", "/usr/local/lib/sysctl.d/*.conf", "/usr/lib/sysctl.d/*.conf"} {
		found, _ := filepath.Glob(pattern) // cannot fail: the patterns are valid
		files = append(files, found...)
	}
	return files
}
