// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package portmap

import (
	"context"

	"github.com/patchbay-net/patchbay/plugin"
	"github.com/patchbay-net/patchbay/plugin/kernel"
	"github.com/patchbay-net/patchbay/spec"
)

// status reports whether an ADD could work: the configuration is valid, and we may change the
// firewall.
func status(_ context.Context, r *plugin.Request) error {
	conf, _, err := decode(r.Config)
	if err != nil {
		return err
	}
	if _, err := newConditions(r, conf); err != nil {
		return err
	}
	if err := kernel.Of(r).NFT.Status(); err != nil {
		return spec.Errorf(spec.CodeNotAvailable, "portmap cannot publish ports: %w", err)
	}
	return nil
}
