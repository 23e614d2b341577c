// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package invoke

import (
	"context"
	"fmt"
	"time"

	"github.com/patchbay-net/patchbay/spec"
)

// Within calls a plugin and ends the call after limit, which the error then says: a plugin
// that hangs must not keep a GC from the others.
func Within(ctx context.Context, limit time.Duration, in Invoker, pluginType string, call *spec.Call) ([]byte, error) {
	bounded, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	out, err := in.Invoke(bounded, pluginType, call)
	if err != nil && bounded.Err() != nil && ctx.Err() == nil {
		err = fmt.Errorf("%s did not end within %v: %w", call.Verb, limit, err)
	}
	return out, err
}
