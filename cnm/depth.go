// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cnm

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
)

// EnvDepth is the environment variable that counts drivers calling each other: a driver may run
// a plugin that calls the next driver. It gives the plugin the number of drivers before it.
// When the plugin calls a driver, it sends this number in a header.
const EnvDepth = "PATCHBAY_CNM_DEPTH"

const depthHeader = "Patchbay-Depth"

// maxDepth is how many drivers may call each other in this way. Without a limit, a network
// whose plugin calls the driver of the same network would never end.
const maxDepth = 2

type depthKey struct{}

// Depth returns the depth of a call that a Handler answers. It is 0 for a call from Docker.
func Depth(ctx context.Context) int {
	n, _ := ctx.Value(depthKey{}).(int)
	return n
}

// deep stores the depth of a call in the context. It refuses a call that is too deep if that
// call creates something. Calls that remove something are always allowed.
func deep(r *http.Request, method string) (context.Context, error) {
	n, err := strconv.Atoi(r.Header.Get(depthHeader))
	if err != nil || n < 0 {
		n = 0
	}
	ctx := context.WithValue(r.Context(), depthKey{}, n)
	if n > maxDepth && makes(method) {
		return ctx, fmt.Errorf("%d network drivers call each other through their CNI plugins, the limit is %d: a plugin cnm or cnm-ipam uses, by its driver and options, the network that it belongs to", n, maxDepth)
	}
	return ctx, nil
}

func makes(method string) bool {
	switch method {
	case "Plugin.Activate", "NetworkDriver.CreateNetwork", "NetworkDriver.CreateEndpoint", "IpamDriver.RequestPool", "IpamDriver.RequestAddress":
		return true
	}
	return false
}
