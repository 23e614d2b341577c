// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"github.com/patchbay-net/patchbay/internal/netstate"
	"github.com/patchbay-net/patchbay/plugin"
)

// HostEnv is Env for a plugin that works only on the host: it saves the thread and the
// sockets in the container's namespace, a fifth of such an ADD.
func (k *Kernel) HostEnv(r *plugin.Request) (*netstate.Env, error) {
	host, err := k.Host()
	if err != nil {
		return nil, err
	}
	env := k.env(r)
	env.Host = host
	return env, nil
}
