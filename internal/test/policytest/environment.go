// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policytest

import (
	"testing"

	"github.com/patchbay-net/patchbay/internal/test/draw"
)

// seeded gives a plan the seed of the environment. Without one, the plan keeps its own.
func seeded(t testing.TB, plan Plan) Plan {
	t.Helper()
	if seed, given := draw.Seed(t); given || plan.Seed == 0 {
		plan.Seed = seed
	}
	return plan
}

// Tables returns the number of truth tables to compare: few, or all (internal/test/draw), or what
// PATCHBAY_POLICY_TABLES says.
func Tables(t testing.TB, few, all int) int {
	t.Helper()
	return draw.Number(t, "PATCHBAY_POLICY_TABLES", few, all)
}
