// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package firewall

import (
	"fmt"

	"github.com/patchbay-net/patchbay/plugin"
)

// doubts reports fields that Add silently ignores, as the reference does.
func doubts(r *plugin.Request) (list []string) {
	c := plugin.ConfOf[Conf](r)
	switch c.Backend {
	case "", backendIPTables, backendFirewalld:
	default:
		list = append(list, fmt.Sprintf("backend %.60q is unknown, so the default is used: it may be %s or %s", c.Backend, backendIPTables, backendFirewalld))
	}
	if in := r.InList; in != nil && in.Main != "" && in.Main != "bridge" && c.isolates() {
		list = append(list, fmt.Sprintf("ingressPolicy %s applies to bridges, and a %s has none", c.IngressPolicy, in.Main))
	}
	return list
}
