// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package hostlocal

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/patchbay-net/patchbay/spec"
)

// readResolvConf reads the file of the option resolvConf.
func readResolvConf(path string) (spec.DNS, error) {
	f, err := os.Open(path)
	if err != nil {
		return spec.DNS{}, err
	}
	defer f.Close() //nolint:errcheck // read only
	dns, err := parseResolvConf(f)
	if err != nil {
		return dns, fmt.Errorf("read %s: %w", path, err)
	}
	return dns, nil
}

// parseResolvConf reads the lines of resolv.conf(5) that a result can carry:
// every nameserver, search and options line adds, the last domain wins.
func parseResolvConf(r io.Reader) (dns spec.DNS, err error) {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		fields := strings.Fields(line)
		if len(fields) < 2 || line[0] == '#' || line[0] == ';' {
			continue
		}
		switch fields[0] {
		case "nameserver":
			dns.Nameservers = append(dns.Nameservers, fields[1])
		case "domain":
			dns.Domain = fields[1]
		case "search":
			dns.Search = append(dns.Search, fields[1:]...)
		case "options":
			dns.Options = append(dns.Options, fields[1:]...)
		}
	}
	return dns, lines.Err()
}
