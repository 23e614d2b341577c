// Copyright the Patchbay authors.
// SPDX-License-Identifier: Apache-2.0

package policytest

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
)

// fromEnvironment lets a person repeat a seed (PATCHBAY_POLICY_SEED), or run more tables
// (PATCHBAY_POLICY_TABLES).
func fromEnvironment(t testing.TB, plan Plan) Plan {
	t.Helper()
	if plan.Seed == 0 {
		plan.Seed = rand.Uint64()
	}
	if text := os.Getenv("PATCHBAY_POLICY_SEED"); text != "" {
		plan.Seed = number(t, text)
	}
	if text := os.Getenv("PATCHBAY_POLICY_TABLES"); text != "" {
		plan.Tables = int(number(t, text))
	}
	return plan
}

func number(t testing.TB, text string) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		t.Fatalf("PATCHBAY_POLICY_SEED and PATCHBAY_POLICY_TABLES are numbers: %v", err)
	}
	return n
}
