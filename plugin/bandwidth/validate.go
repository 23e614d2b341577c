// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package bandwidth

import (
	"fmt"

	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/spec"
)

// validate refuses limits without a veth, if the list shows which plugin makes the
// interface.
func validate(r *plugin.Request) error {
	if plugin.ConfOf[Conf](r).shapes.none() {
		return nil
	}
	if main := withoutVeth(r); main != "" {
		return spec.Invalid("a %s has no end on the host to limit: bandwidth needs a bridge or ptp", main)
	}
	return nil
}

// withoutVeth is the plugin that makes the interface, if that is no veth.
func withoutVeth(r *plugin.Request) string {
	if r.InList == nil || r.InList.Main == "bridge" || r.InList.Main == "ptp" {
		return ""
	}
	return r.InList.Main
}

// packet is the largest packet of most interfaces, in bytes.
const packet = 1500

func doubts(r *plugin.Request) (list []string) {
	limits := plugin.ConfOf[Conf](r).shapes
	granted := r.InList != nil && r.InList.Granted["bandwidth"]
	if limits.none() && !granted {
		list = append(list, "it limits nothing: it has no rate, and no capability bandwidth by which the runtime would give one")
	}
	if main := withoutVeth(r); limits.none() && main != "" {
		list = append(list, fmt.Sprintf("a %s has no end on the host to limit: bandwidth needs a bridge or ptp", main))
	}
	list = append(list, limits.ingress.doubt("ingressBurst")...)
	return append(list, limits.egress.doubt("egressBurst")...)
}

func (s shape) doubt(key string) []string {
	if s.rate == 0 || s.burst >= packet {
		return nil
	}
	return []string{fmt.Sprintf("%s is %d bytes: no larger packet ever passes", key, s.burst)}
}
