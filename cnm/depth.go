// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cnm

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
)

// EnvDepth gives a plugin the number of drivers that called each other before it: each
// driver runs the plugin that calls the next. The plugin's calls of a driver carry the
// number in a header.
const EnvDepth = "PATCHBAY_CNM_DEPTH"

const depthHeader = "Patchbay-Depth"

// maxDepth is how many drivers may call each other in this way. A network whose plugin
// calls the driver that runs it, for the same network, would never end.
const maxDepth = 2

type depthKey struct{}

// Depth is the depth of a call that a Handler answers, 0 for one of Docker's.
func Depth(ctx context.Context) int {
	n, _ := ctx.Value(depthKey{}).(int)
	return n
}

// deep notes the depth of a call, and refuses one that creates something if it is too
// deep. Calls that remove something are not limited.
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
