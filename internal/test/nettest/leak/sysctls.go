// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package leak

import (
	"os"
	"path/filepath"
	"strings"
)

// Sysctls reads the settings of IPv4 and IPv6 for all links of the calling thread's network namespace. A key is
// "sysctl net/ipv4/conf/eth0/arp_filter". Settings that cannot be read, such as a secret, are left out. A snapshot does not have
// them, because a DEL need not restore what ends with the container's namespace.
func Sysctls() Attributes {
	files, _ := filepath.Glob("/proc/sys/net/ipv[46]/conf/*/*") // the pattern is sound
	all := Attributes{}
	for _, file := range files {
		if value, err := os.ReadFile(file); err == nil {
			all[line("sysctl", strings.TrimPrefix(file, "/proc/sys/"))] = strings.TrimSpace(string(value))
		}
	}
	return all
}
