// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package portmap

import "github.com/patchbay-net/patchbay/plugin"

// doubts reports fields that Add silently ignores, as the reference does.
func doubts(r *plugin.Request) (list []string) {
	conf := plugin.ConfOf[Conf](r)
	if conf.MasqAll && !conf.snat() {
		list = append(list, "masqAll has no effect with snat false: nothing is masqueraded")
	}
	if in := r.InList; in != nil && !in.Granted["portMappings"] && len(conf.mappings) == 0 {
		list = append(list, `it publishes nothing: without "capabilities": {"portMappings": true} no runtime tells it of ports`)
	}
	return list
}
