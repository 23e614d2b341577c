// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package endpoint

import (
	"net"

	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// WantedMAC is the Ethernet address that a caller asks for, nil when there is none: the
// capability's (inRuntime) before args.cni.mac (inArgs) before MAC= in CNI_ARGS.
func WantedMAC(r *plugin.Request, inRuntime, inArgs string) (net.HardwareAddr, error) {
	args, err := r.CNIArgs()
	if err != nil {
		return nil, err
	}
	text, _ := spec.LookupArg(args, "MAC")
	if inArgs != "" {
		text = inArgs
	}
	if inRuntime != "" {
		text = inRuntime
	}
	if text == "" {
		return nil, nil
	}
	mac, err := net.ParseMAC(text)
	if err != nil || len(mac) != 6 {
		return nil, spec.Invalid("invalid mac %.40q: want six bytes as 02:00:00:00:00:01", text)
	}
	if err := ValidateMAC(mac); err != nil {
		return nil, spec.Invalid("invalid mac %.40q: %w", text, err)
	}
	return mac, nil
}
