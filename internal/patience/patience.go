// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

// Package patience puts an end to calls of plugins that hang, for a GC: one must not
// keep it from all else.
package patience

import (
	"context"
	"fmt"
	"time"

	"github.com/patchbay-net/patchbay/invoke"
	"github.com/patchbay-net/patchbay/spec"
)

// Invoke calls a plugin and ends the call after limit. The error says so.
func Invoke(ctx context.Context, limit time.Duration, in invoke.Invoker, pluginType string, call *spec.Call) ([]byte, error) {
	bounded, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	out, err := in.Invoke(bounded, pluginType, call)
	if err != nil && bounded.Err() != nil && ctx.Err() == nil {
		err = fmt.Errorf("%s did not end within %v: %w", call.Verb, limit, err)
	}
	return out, err
}
