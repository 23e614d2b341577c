// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cnm

import (
	"context"
	"fmt"
	"net/http"
	"strconv"
)

// EnvDepth tells a plugin by how many drivers it is called, each of which runs the
// plugin that calls the next. Its calls of a driver say so in a header.
const EnvDepth = "PATCHBAY_CNM_DEPTH"

const depthHeader = "Patchbay-Depth"

// maxDepth is how many drivers may call each other so. A network whose plugin drives
// the driver that runs it, for that network again, would have no end.
const maxDepth = 2

type depthKey struct{}

// Depth is how deep in other drivers a call is that a Handler answers, 0 for one of
// Docker's.
func Depth(ctx context.Context) int {
	n, _ := ctx.Value(depthKey{}).(int)
	return n
}

// deep notes the depth of a call, and refuses one that makes something where there
// are too many drivers. What takes away goes on.
func deep(r *http.Request, method string) (context.Context, error) {
	n, err := strconv.Atoi(r.Header.Get(depthHeader))
	if err != nil || n < 0 {
		n = 0
	}
	ctx := context.WithValue(r.Context(), depthKey{}, n)
	if n > maxDepth && makes(method) {
		return ctx, fmt.Errorf("%d network drivers call each other by their CNI plugins, of %d at most: a plugin cnm or cnm-ipam names, by its driver and options, the network that it is of", n, maxDepth)
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
