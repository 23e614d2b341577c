// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"context"
	"errors"
	"fmt"

	"github.com/patchbay-net/patchbay/cli/doctor"
)

// vet judges the configuration of a network. It prints warnings to standard error and also
// returns them; all problems are in the error.
func (a *app) vet(n *network) (warnings []string, err error) {
	s := a.session()
	defer s.Close()
	var errs []error
	for _, f := range doctor.Validate(a.ctx, a.runtime(n), s, n.List) {
		if f.Level == doctor.Problem {
			errs = append(errs, f)
			continue
		}
		a.warn(f)
		warnings = append(warnings, f.Error())
	}
	if err := errors.Join(errs...); err != nil {
		return warnings, fmt.Errorf("network %s: %w", n.Name, err)
	}
	return warnings, nil
}

// ready judges the configuration, and then runs STATUS.
func (a *app) ready(ctx context.Context, n *network) error {
	if _, err := a.vet(n); err != nil {
		return err
	}
	s := a.session()
	defer s.Close()
	return doctor.Status(ctx, a.runtime(n), s, n.List)
}
