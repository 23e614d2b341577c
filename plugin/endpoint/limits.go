// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"strings"

	"github.com/patchbay-net/patchbay/spec"
)

// The MTUs, in bytes, that the kernel accepts: below the first it has no IPv4, below the
// second no IPv6 (RFC 8200), above the last no interface.
const (
	LeastMTU  = 68
	LeastMTU6 = 1280
	MostMTU   = 65535
)

// ValidateMTU refuses an MTU that no interface can have; 0 leaves it to the kernel.
func ValidateMTU(mtu int) error {
	if mtu != 0 && (mtu < LeastMTU || mtu > MostMTU) {
		return spec.Invalid("invalid MTU %d: must be 0 (the kernel's) or between %d and %d", mtu, LeastMTU, MostMTU)
	}
	return nil
}

// ValidateMAC refuses an Ethernet address that no interface can have. It does not check
// addresses of other kinds of hardware.
func ValidateMAC(mac net.HardwareAddr) error {
	switch {
	case len(mac) != 6:
	case mac[0]&1 != 0:
		return errors.New("it is a multicast address")
	case bytes.Equal(mac, make([]byte, 6)):
		return errors.New("it is all zeroes")
	}
	return nil
}

// ValidateNewName refuses names that the kernel accepts for no interface: two are
// directories of sysctls, and with % it chooses another name itself.
func ValidateNewName(name string) error {
	if name == "all" || name == "default" {
		return fmt.Errorf("the kernel has sysctls under the name %s, so no interface can have it", name)
	}
	if strings.Contains(name, "%") {
		return fmt.Errorf("the kernel would make another name of %s: leave the %% out", name)
	}
	return nil
}
